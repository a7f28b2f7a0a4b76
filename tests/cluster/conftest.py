"""One control plane for all of these tests; each test makes namespaces of its own."""

from collections.abc import Iterator

import pytest

from tests.support import cluster, helm, manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.onserver import BUILT_IN, COUNTER, READABLE, UNREADABLE, wait_for_registration
from tests.support.webhook import Webhook


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if cluster.assets() else cluster.HOW_TO_GET
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    folder = cluster.assets()
    assert folder is not None
    plane = cluster.ControlPlane(folder)
    try:
        yield plane.start()
    finally:
        plane.stop()


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    if helm.find() is None:
        pytest.skip(helm.HOW_TO_GET)
    kinds = [
        manifests.crd(*key.split(), plural) for key, plural in READABLE.items() if plural not in BUILT_IN
    ]
    kinds.append(manifests.crd(*UNREADABLE.split(), "hiddens"))
    control_plane.apply(*manifests.KATIB, *kinds)
    control_plane.apply(*manifests.account())
    for crd in [*manifests.KATIB, *kinds]:
        done = control_plane.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}")
        assert done.returncode == 0, done.stderr
    return control_plane


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The webhook with its own account's rights, registered with the API server."""
    kubeconfig = plane.kubeconfig(plane.token(manifests.HOME, manifests.account_name()))
    served = Webhook(tmp_path_factory.mktemp("webhook"), "--kubeconfig", kubeconfig).start()
    try:
        served.wait_ready()
        plane.apply(manifests.configuration(served.url, served.ca))
        wait_for_registration(plane, served)
        yield served
        plane.client.delete("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/trialtap")
    finally:
        status = served.stop()
    assert status == 0


@pytest.fixture
def hpo(plane: ControlPlane) -> str:
    """A labelled namespace of the test's own."""
    name = f"hpo-{next(COUNTER)}"
    plane.apply(manifests.namespace(name))
    wait_until(
        lambda: plane.client.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").status_code == 200,
        20,
        "the namespace's service account",
    )
    return name
