"""The chart's controller with the rights that the chart gives it: a Trial becomes its Job."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import helm, installed
from tests.support.cluster import ControlPlane, free_port, wait_until
from tests.support.installed import Program, Release

pytestmark = pytest.mark.skipif(helm.find() is None, reason=helm.HOW_TO_GET)
NAMESPACE = "controller-of-the-chart"
SWITCHES = "controller.enabled=true,webhooks.pod=false,webhooks.experiment=false,webhooks.trial=false"


@pytest.fixture
def release(control_plane: ControlPlane) -> Iterator[Release]:
    control_plane.apply(*installed.crds())
    with installed.released(control_plane, NAMESPACE) as release:
        release.install(f"--set={SWITCHES}")
        yield release


def test_a_trial_becomes_its_job(release: Release) -> None:
    plane = release.plane
    (container,) = plane.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/trialtap-controller")["spec"][
        "template"
    ]["spec"]["containers"]
    config = plane.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/trialtap-controller")["data"]
    account = plane.kubeconfig(plane.token(NAMESPACE, "trialtap-controller"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "controller.yaml").write_text(config["controller.yaml"])
        values = {
            "/etc/trialtap/controller": folder,
            "0.0.0.0:6788": "127.0.0.1:0",
            "0.0.0.0:8080": "127.0.0.1:0",
            f"trialtap-db-manager.{NAMESPACE}.svc:6789": f"127.0.0.1:{free_port()}",
        }
        arguments = installed.replaced(container["args"], values)
        program = Program([*container["command"][1:], *arguments, f"--kubeconfig={account}"], {})
        try:
            program.wait_for("controller ready")
            trial = installed.make_trial(plane, f"{NAMESPACE}-trials", "made")
            path = f"/apis/batch/v1/namespaces/{NAMESPACE}-trials/jobs/made"
            wait_until(lambda: plane.client.get(path).status_code == 200, 60, "\n".join(program.lines[-20:]))
            assert plane.get(path)["metadata"]["ownerReferences"][0]["uid"] == trial["metadata"]["uid"]
            trials = f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}-trials/trials/made"

            def running() -> bool:
                conditions = plane.get(trials).get("status", {}).get("conditions", [])
                return any(c["type"] == "Running" and c["status"] == "True" for c in conditions)

            wait_until(running, 30, "the Trial to be Running")
            assert not [line for line in program.lines if "forbidden" in line], program.lines
        finally:
            # Without its finalizer the Trial can go when nobody serves it any more.
            headers = {"Content-Type": "application/merge-patch+json"}
            body = {"metadata": {"finalizers": None}}
            program.stop()
            plane.client.patch(
                f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}-trials/trials/made",
                json=body,
                headers=headers,
            )
