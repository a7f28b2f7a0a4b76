"""Every golden pod is one that a real API server takes."""

from pathlib import Path

import pytest
import yaml

from tests.support import manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.objects import JSON

PODS = Path(__file__).parents[1] / "golden" / "pods"
FILES = {file.parent.name: file for file in sorted(PODS.glob("*/pod.yaml"))}
RESTRICTED = "golden-restricted"
PLAIN = "golden"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    restricted = manifests.namespace(RESTRICTED, labelled=False)
    restricted["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.apply(manifests.namespace(PLAIN, labelled=False), restricted)
    for name in (PLAIN, RESTRICTED):
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda path=account: control_plane.client.get(path).status_code == 200, 20, account)
    return control_plane


def submit(plane: ControlPlane, namespace: str, file: Path) -> JSON:
    pod = yaml.safe_load(file.read_text(encoding="utf-8"))
    pod["metadata"]["namespace"] = namespace
    pod["spec"]["serviceAccountName"] = pod["spec"]["serviceAccount"] = "default"
    answer = plane.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
    assert answer.status_code == 201, answer.json()["message"]
    stored: JSON = answer.json()
    return stored


@pytest.mark.parametrize("name", FILES)
def test_the_api_server_takes_the_golden_pod_and_drops_nothing_of_it(plane: ControlPlane, name: str) -> None:
    stored = submit(plane, PLAIN, FILES[name])
    wanted = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    for kind in ("initContainers", "containers"):
        found = {container["name"]: container for container in stored["spec"].get(kind, [])}
        for container in wanted["spec"].get(kind, []):
            for key in ("restartPolicy", "command", "args", "securityContext", "lifecycle"):
                assert found[container["name"]].get(key) == container.get(key), key


@pytest.mark.parametrize("name", [name for name in FILES if "restricted" in name])
def test_a_restricted_namespace_takes_what_was_restricted_before(plane: ControlPlane, name: str) -> None:
    submit(plane, RESTRICTED, FILES[name])
