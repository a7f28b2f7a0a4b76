"""What the chart's service accounts may do, asked of a real API server, against a golden list."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import helm, installed
from tests.support.cluster import ControlPlane
from tests.support.installed import Release

pytestmark = pytest.mark.skipif(helm.find() is None, reason=helm.HOW_TO_GET)
GOLDEN = Path(__file__).parents[1] / "golden/rbac"
NAMESPACE = "rbac-of-the-chart"


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane) -> Iterator[Release]:
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "pulls"}})
    with installed.released(control_plane, NAMESPACE) as release:
        release.install(
            "--set=controller.enabled=true,dbManager.auth=token,dbManager.tls.enabled=true,crds.install=false",
            "--set=entrypointLookup.pullSecretNamespaces={pulls}",
        )
        yield release


def allowed(release: Release, account: str, namespace: str) -> str:
    """`kubectl auth can-i --list`, less what every account may do."""

    def listed(name: str) -> list[str]:
        user = f"system:serviceaccount:{NAMESPACE}:{name}"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
        asked = [f"--as={user}", *(f"--as-group={group}" for group in groups)]
        done = release.plane.kubectl("auth", "can-i", "--list", "-n", namespace, "--no-headers", *asked)
        assert done.returncode == 0, done.stderr
        return [" ".join(line.split()) for line in done.stdout.splitlines()]

    everybody = set(listed("default"))
    return "".join(f"{line}\n" for line in sorted(set(listed(account)) - everybody))


@pytest.mark.parametrize("account", ["trialtap-webhook", "trialtap-db-manager", "trialtap-controller"])
@pytest.mark.parametrize("place", ["own", "pulls", "default"])
def test_an_account_may_do_this_and_nothing_else(
    release: Release, account: str, place: str, update_golden: bool
) -> None:
    found = allowed(release, account, NAMESPACE if place == "own" else place)
    golden = GOLDEN / f"{account}-in-{place}.txt"
    if update_golden:
        golden.write_text(found)
    assert found == golden.read_text(), "look at the difference, then run with --update-golden"


@pytest.mark.parametrize(
    ("verb", "resource", "answer"),
    [
        ("get", "secrets/trialtap-certificates", "yes"),
        ("patch", "secrets/trialtap-certificates", "yes"),
        ("create", "secrets/trialtap-certificates", "yes"),
        ("get", "secrets/another", "no"),
        ("list", "secrets", "no"),
        ("create", "secrets", "no"),
        ("delete", "secrets/trialtap-certificates", "no"),
        ("update", "leases/trialtap-certificates", "yes"),
        ("update", "leases/another", "no"),
        ("patch", f"mutatingwebhookconfigurations/trialtap-{NAMESPACE}", "yes"),
        ("patch", "mutatingwebhookconfigurations/another", "no"),
        ("delete", f"mutatingwebhookconfigurations/trialtap-{NAMESPACE}", "no"),
        ("get", "jobs", "yes"),
        ("list", "jobs", "no"),
        ("create", "pods", "no"),
        ("patch", "trials", "no"),
    ],
)
def test_the_webhook_is_held_to_names_and_verbs(
    release: Release, verb: str, resource: str, answer: str
) -> None:
    user = f"--as=system:serviceaccount:{NAMESPACE}:trialtap-webhook"
    done = release.plane.kubectl("auth", "can-i", verb, resource, "-n", NAMESPACE, user)
    assert done.stdout.split()[-1] == answer, done.stdout + done.stderr
