"""Certificates on a real API server: replicas at once, rotations under load, meddling, restarts."""

import json
import os
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator

import pytest

from certs import issue, pem
from tests.support import helm, installed
from tests.support.cluster import ControlPlane, wait_until
from tests.support.installed import Load, Release

pytestmark = [
    pytest.mark.skipif(helm.find() is None, reason=helm.HOW_TO_GET),
    pytest.mark.skipif(not installed.may_bind_low_ports(), reason="the Service's port 443 needs root here"),
]
ROTATIONS = int(os.environ.get("TRIALTAP_FAULTS", "10"))
PER_SECOND = 100.0


@pytest.fixture(scope="module")
def trial(control_plane: ControlPlane) -> installed.JSON:
    control_plane.apply(*installed.crds())
    return installed.make_trial(control_plane, "certificates-trials", "rotated")


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, trial: installed.JSON) -> Iterator[Release]:
    with installed.released(control_plane, "certificates") as release:
        release.install("--set=dbManager.tls.enabled=true")
        release.start(2)
        yield release


@pytest.fixture(scope="module")
def job(control_plane: ControlPlane, trial: installed.JSON, release: Release) -> installed.JSON:
    return installed.make_job(control_plane, trial)


def served(replica: installed.Replica) -> bytes:
    return (replica.folder / "tls.crt").read_bytes()


def published(release: Release) -> list[set[str]]:
    """The CAs of each distinct caBundle, by fingerprint."""
    return [{ca.fingerprint for ca in pem.authorities(b64decode(bundle))} for bundle in release.bundles()]


def current(release: Release) -> str:
    return pem.fingerprint(b64decode(release.secret().get("ca.crt", "")))


def ask(release: Release, wish: str) -> None:
    """What `python -m certs rotate` asks."""
    path = f"/api/v1/namespaces/{release.namespace}/secrets/trialtap-certificates"
    body = {"metadata": {"annotations": {"trialtap/rotate": wish}}}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert release.plane.client.patch(path, json=body, headers=headers).status_code == 200


def certs(release: Release, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    where = ["-n", release.namespace, f"--kubeconfig={release.plane.kubeconfig()}"]
    return subprocess.run(
        [sys.executable, "-m", "certs", command, *where, *more],
        capture_output=True,
        text=True,
        check=False,
        cwd=installed.REPOSITORY,
        timeout=100,
    )


def test_two_replicas_at_once_on_an_empty_cluster_make_one_ca(release: Release) -> None:
    assert published(release) == [{current(release)}]
    assert len({served(replica) for replica in release.replicas}) == 1
    leading = [r for r in release.replicas if any("holds the Lease" in line for line in r.certs.lines)]
    assert len(leading) == 1


def test_status_says_what_is_there(release: Release) -> None:
    done = certs(release, "status")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trialtap-webhook.certificates.svc.cluster.local" in done.stdout
    assert done.stdout.count(" trusts ") == 5
    assert "fault" not in done.stdout


def test_status_names_what_is_wrong(release: Release) -> None:
    done = certs(
        release, "status", "--secret=nowhere", f"--mutating={release.configuration}", "--validating=none"
    )
    assert done.returncode == 1
    assert "fault: Secret certificates/nowhere is not there" in done.stdout
    assert "fault: webhook configuration none is not there" in done.stdout


def test_the_db_manager_is_handed_the_certificate_and_pods_its_ca(
    release: Release, job: installed.JSON
) -> None:
    path = f"/api/v1/namespaces/{release.namespace}/secrets/trialtap-db-manager-tls"
    data = release.plane.get(path)["data"]
    assert data.keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert b64decode(data["tls.crt"]) == served(release.replicas[0])
    names = pem.names(issue.read(b64decode(data["tls.crt"])))
    assert "trialtap-db-manager.certificates.svc" in names
    pod = release.plane.create(*Load(release.plane, job, 1).request).json()
    (sidecar,) = [c for c in pod["spec"]["initContainers"] if c["name"] == "metrics-logger-and-collector"]
    env = {variable["name"]: variable.get("value") for variable in sidecar["env"]}
    assert env["TRIALTAP_DB_CA"].encode() == b64decode(data["ca.crt"])


def test_rotations_under_load_fail_no_admission(release: Release, job: installed.JSON) -> None:
    seen = {current(release)}
    with Load(release.plane, job, PER_SECOND) as load:
        begin = time.monotonic()
        for _ in range(ROTATIONS):
            ask(release, "ca")
            wait_until(lambda: current(release) not in seen, 60, "the next CA to sign")
            seen.add(current(release))
        wait_until(
            lambda: len({served(replica) for replica in release.replicas}) == 1, 30, "both to serve the last"
        )
        time.sleep(3)  # the webhook looks at its files every two seconds
        seconds = time.monotonic() - begin
    assert load.answers.keys() == {"injected"}, load.answers
    assert len(seen) == ROTATIONS + 1
    print(f"{load.answers['injected'] / seconds:.0f} admissions a second for {seconds:.0f} s")


def test_rotate_renews_and_a_caller_that_knows_only_the_ca_before_goes_on_trusting(release: Release) -> None:
    before = b64decode(release.secret()["ca.crt"])
    done = certs(release, "rotate")
    assert done.returncode == 0, done.stderr
    now = release.secret()
    check = ["openssl", "verify", "-x509_strict", "-CAfile", "/dev/stdin", "-untrusted"]
    folder = release.home
    (folder / "served.pem").write_bytes(b64decode(now["tls.crt"]))
    said = subprocess.run(
        [*check, folder / "served.pem", folder / "served.pem"], input=before, capture_output=True, check=False
    )
    assert said.returncode == 0, said.stderr


def test_a_wiped_bundle_is_put_back(release: Release) -> None:
    before = release.bundles()
    for kind, names in (("mutating", 3), ("validating", 2)):
        operations = [
            {"op": "replace", "path": f"/webhooks/{i}/clientConfig/caBundle", "value": ""}
            for i in range(names)
        ]
        name = f"{kind}webhookconfiguration/{release.configuration}"
        done = release.plane.kubectl("patch", name, "--type=json", "-p", json.dumps(operations))
        assert done.returncode == 0, done.stderr
    begin = time.monotonic()
    wait_until(lambda: release.bundles() == before, 20, "the bundles to come back")
    print(f"put back after {time.monotonic() - begin:.1f} s")


@pytest.mark.parametrize("how", ["deleted", "rubbish", "truncated"])
def test_a_spoiled_secret_is_repaired_without_a_new_ca(
    release: Release, job: installed.JSON, how: str
) -> None:
    before, path = current(release), f"/api/v1/namespaces/{release.namespace}/secrets/trialtap-certificates"
    spoiled = {
        "rubbish": dict.fromkeys(release.secret(), "cnViYmlzaA=="),
        "truncated": {key: value[: len(value) // 8 * 4] for key, value in release.secret().items()},
    }
    with Load(release.plane, job, 20) as load:
        if how == "deleted":
            assert release.plane.client.delete(path).status_code == 200
        else:
            body = {"data": spoiled[how]}
            headers = {"Content-Type": "application/merge-patch+json"}
            assert release.plane.client.patch(path, json=body, headers=headers).status_code == 200
        wait_until(
            lambda: release.plane.client.get(path).status_code == 200 and current(release) == before, 30, how
        )
        time.sleep(3)
    assert load.answers.keys() == {"injected"}, load.answers


def test_a_secret_lost_with_all_replicas_gives_a_new_ca_beside_the_old(
    release: Release, job: installed.JSON
) -> None:
    before = current(release)
    for replica in list(release.replicas):
        release.retire(replica)
    path = f"/api/v1/namespaces/{release.namespace}/secrets/trialtap-certificates"
    assert release.plane.client.delete(path).status_code == 200
    release.start(2)
    (trusted,) = published(release)
    assert current(release) != before
    assert {before, current(release)} <= trusted
    with Load(release.plane, job, 20) as load:
        time.sleep(2)
    assert load.answers.keys() == {"injected"}, load.answers


def test_a_leader_that_is_told_to_stop_hands_the_lease_on(release: Release) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/trialtap-certificates"
    holder = release.plane.get(path)["spec"]["holderIdentity"]
    (leader,) = [replica for replica in release.replicas if replica.folder.name == holder]
    release.start(1)
    release.retire(leader)
    # A term is 30 seconds long.
    wait_until(
        lambda: release.plane.get(path)["spec"].get("holderIdentity") not in {None, holder},
        15,
        "a new leader",
    )


def test_a_rolling_restart_under_load_fails_no_admission(release: Release, job: installed.JSON) -> None:
    with Load(release.plane, job, PER_SECOND / 2) as load:
        for replica in list(release.replicas):
            release.start(1)
            release.retire(replica)
    print(f"{load.answers['injected']} admissions")
    assert load.answers.keys() == {"injected"}, load.answers
    assert len(release.replicas) == 2
