"""The chart as a user has it: install, inject, helm test, upgrade, uninstall, by helm on a real API server."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import helm, installed
from tests.support.cluster import ControlPlane, wait_until
from tests.support.installed import JSON, Load, Release

pytestmark = [
    pytest.mark.skipif(helm.find() is None, reason=helm.HOW_TO_GET),
    pytest.mark.skipif(not installed.may_bind_low_ports(), reason="the Service's port 443 needs root here"),
]
NAMESPACE, TRIALS = "installed", "installed-trials"


@pytest.fixture(scope="module")
def trial(control_plane: ControlPlane) -> JSON:
    # Somebody else's CRDs, as Katib would have brought them.
    control_plane.apply(*installed.crds())
    return installed.make_trial(control_plane, TRIALS, "waits")


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, trial: JSON) -> Iterator[Release]:
    with installed.released(control_plane, NAMESPACE) as release:
        notes = release.install()
        assert f"helm test trialtap -n {NAMESPACE}" in notes
        yield release


@pytest.fixture(scope="module")
def job(release: Release, trial: JSON) -> JSON:
    return installed.make_job(release.plane, trial)


@pytest.fixture(scope="module")
def serving(release: Release, job: JSON) -> Release:
    """With its replicas; they start only now, when a Job has been waiting for them."""
    release.start(2)
    return release


def owned_pods(plane: ControlPlane, name: str) -> list[JSON]:
    pods = plane.get(f"/api/v1/namespaces/{TRIALS}/pods")["items"]
    return [p for p in pods if name in {o["name"] for o in p["metadata"].get("ownerReferences", [])}]


def make_pod(plane: ControlPlane, namespace: str, owners: list[JSON]) -> int:
    container = {"name": "main", "image": "main", "command": ["true"]}
    metadata = {"generateName": "pod-", "ownerReferences": owners}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    return plane.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod).status_code


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("", 201),
        ("apps/v1 DaemonSet", 201),
        ("apps/v1 ReplicaSet", 201),
        ("apps/v1 StatefulSet", 201),
        ("v1 Node", 201),
        ("batch/v1 Job", 500),
        ("example.org/v1 StatefulSet", 500),
    ],
)
def test_before_the_first_replica_serves_only_pods_of_possible_trials_wait(
    release: Release, kind: str, code: int
) -> None:
    api_version, _, name = kind.partition(" ")
    item = {"apiVersion": api_version, "kind": name, "metadata": {"name": "owner", "uid": "1-2-3"}}
    owners = [installed.owner(item)] if kind else []
    assert not release.replicas
    assert make_pod(release.plane, TRIALS, owners) == code
    assert make_pod(release.plane, "default", owners) == 201
    assert make_pod(release.plane, NAMESPACE, owners) == 201


def test_a_job_that_waited_gets_its_pod_and_none_is_lost(serving: Release) -> None:
    (pod,) = wait_until(lambda: owned_pods(serving.plane, "waits"), 100, "the Job's controller to try again")
    assert installed.is_injected(pod)


def test_crds_of_somebody_else_stay_theirs(serving: Release) -> None:
    crd = serving.plane.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trials.kubeflow.org")
    assert "meta.helm.sh/release-name" not in (crd["metadata"].get("annotations") or {})


def test_helm_test_proves_an_injection(serving: Release, tmp_path: Path) -> None:
    hooks = helm.objects(serving.helm("get", "hooks", "trialtap"))
    (pod,) = [item for item in hooks if item["kind"] == "Pod"]
    others = [item for item in hooks if item["kind"] != "Pod"]
    for item in others:
        serving.plane.apply(item)
    account = pod["spec"]["serviceAccountName"]
    (tmp_path / "token").write_text(serving.plane.token(NAMESPACE, account))
    (tmp_path / "ca.crt").write_bytes(serving.plane.ca.read_bytes())
    (configmap,) = [item for item in others if item["kind"] == "ConfigMap"]
    script = tmp_path / "test.py"
    script.write_text(configmap["data"]["test.py"])
    host, _, port = serving.plane.url.removeprefix("https://").partition(":")
    (container,) = pod["spec"]["containers"]
    given = {variable["name"]: variable["value"] for variable in container["env"]}
    env = {**given, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    done = subprocess.run(
        [sys.executable, "-I", script],
        env={**os.environ, **env, "SERVICE_ACCOUNT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    for item in others:
        metadata = item["metadata"]
        where = ["-n", metadata["namespace"]] if "namespace" in metadata else []
        serving.plane.kubectl("delete", "--wait=false", item["kind"], metadata["name"], *where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "comes out with its collector" in done.stdout


def test_an_upgrade_keeps_the_ca_and_is_trusted_at_every_moment(serving: Release, job: JSON) -> None:
    ca, before = serving.secret()["ca.crt"], serving.bundles()
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.update(serving.bundles())

    watcher = threading.Thread(target=look)
    watcher.start()
    with Load(serving.plane, job, 30) as load:
        serving.helm("upgrade", "trialtap", str(helm.CHART), "--set", "sidecar.flushGraceSeconds=45")
        time.sleep(2)
    done.set()
    watcher.join()
    assert seen == before
    assert serving.secret()["ca.crt"] == ca
    assert load.answers.keys() == {"injected"}, load.answers
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/trialtap-webhook"
    settings = yaml.safe_load(serving.plane.get(path)["data"]["settings.yaml"])
    assert settings["sidecar"]["flushGraceSeconds"] == 45


def test_uninstall_leaves_nothing_of_ours_and_everything_of_the_users(serving: Release) -> None:
    plane = serving.plane
    assert all(replica.is_ready() for replica in serving.replicas)
    # The replicas run on for a while, as pods do, and must not make again what is taken away.
    serving.helm("uninstall", "trialtap")
    time.sleep(5)
    for replica in list(serving.replicas):
        serving.retire(replica)
    kinds = "secrets,leases,configmaps,serviceaccounts,services,deployments,roles,rolebindings"
    left = json.loads(plane.kubectl("-n", NAMESPACE, "get", kinds, "-o", "json").stdout)["items"]
    assert {f"{i['kind']} {i['metadata']['name']}" for i in left} <= {
        "ServiceAccount default",
        "ConfigMap kube-root-ca.crt",
    }
    cluster_kinds = (
        "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings"
    )
    left = json.loads(plane.kubectl("get", cluster_kinds, "-o", "json").stdout)["items"]
    assert not [
        i["metadata"]["name"] for i in left if i["metadata"]["name"].startswith(serving.configuration)
    ]
    claims = plane.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims")["items"]
    assert [claim["metadata"]["name"] for claim in claims] == ["trialtap-db-manager"]
    assert plane.get(f"/apis/kubeflow.org/v1beta1/namespaces/{TRIALS}/trials/waits")
    assert owned_pods(plane, "waits")
