"""The chart's CRDs: made where they are absent, its own from then on, and left when it goes."""

from collections.abc import Iterator

import pytest

from tests.support import helm, installed
from tests.support.cluster import ControlPlane, wait_until
from tests.support.installed import JSON, Release

pytestmark = pytest.mark.skipif(helm.find() is None, reason=helm.HOW_TO_GET)
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMES = ("experiments", "suggestions", "trials")
NAMESPACE = "crds-of-the-chart"


def found(plane: ControlPlane, name: str) -> JSON:
    return plane.get(f"{CRDS}/{name}.kubeflow.org")


def established(crd: JSON) -> bool:
    conditions = crd.get("status", {}).get("conditions", [])
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@pytest.fixture
def release(control_plane: ControlPlane) -> Iterator[Release]:
    """On a cluster without Katib's kinds; what this makes is nobody's at the end."""
    control_plane.free_trials()
    for name in NAMES:
        control_plane.client.delete(f"{CRDS}/{name}.kubeflow.org")
    for name in NAMES:
        path = f"{CRDS}/{name}.kubeflow.org"
        wait_until(lambda path=path: control_plane.client.get(path).status_code == 404, 30, "the CRDs to go")
    with installed.released(control_plane, NAMESPACE) as release:
        yield release
    control_plane.kubectl(
        "annotate",
        "crd",
        *(f"{name}.kubeflow.org" for name in NAMES),
        "meta.helm.sh/release-name-",
        "meta.helm.sh/release-namespace-",
    )
    control_plane.apply(*installed.crds())


def test_crds_are_made_kept_up_to_date_and_outlive_the_release(release: Release) -> None:
    plane, off = release.plane, "--set=webhooks.pod=false,webhooks.experiment=false,webhooks.trial=false"
    release.install(off)
    for name in NAMES:
        wait_until(lambda name=name: established(found(plane, name)), 30, f"{name} to be established")
        annotations = found(plane, name)["metadata"]["annotations"]
        assert annotations["meta.helm.sh/release-name"] == "trialtap"
        assert annotations["helm.sh/resource-policy"] == "keep"
    trial = installed.make_trial(plane, f"{NAMESPACE}-trials", "kept")

    release.helm("upgrade", "trialtap", str(helm.CHART), off, "--set=commonLabels.team=ml")
    assert found(plane, "trials")["metadata"]["labels"]["team"] == "ml"

    release.helm("uninstall", "trialtap")
    path = f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}-trials/trials/kept"
    assert plane.get(path)["metadata"]["uid"] == trial["metadata"]["uid"]

    release.install(off)
    assert plane.get(path)["metadata"]["uid"] == trial["metadata"]["uid"]
