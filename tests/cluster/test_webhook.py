"""The webhook on a real API server: what it sees, what comes out, what it may do."""

import base64
import concurrent.futures
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support import manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.objects import JSON, ref
from tests.support.onserver import (
    CHAINS,
    CONTAINER,
    COUNTER,
    JOB_SPEC,
    SUSPENDED,
    UNREADABLE,
    create,
    label,
    make,
    make_chain,
    make_trial,
    pod,
    sidecars,
)
from tests.support.webhook import Webhook


def test_a_real_jobs_pod_comes_out_injected_and_is_stored_with_its_native_sidecar(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    t = make_trial(plane, hpo, "t1", collector="StdOut")
    make(plane, hpo, "batch/v1", "Job", "t1", t, spec=JOB_SPEC)

    def pods() -> list[JSON]:
        found: list[JSON] = plane.get(f"/api/v1/namespaces/{hpo}/pods")["items"]
        return found

    wait_until(pods, 30, "the job controller to make a pod")
    (made,) = pods()
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Job"
    assert label(made) == "t1"
    assert sidecars(made) == ["metrics-logger-and-collector"]
    (main,) = made["spec"]["containers"]
    assert [*main["command"], *main.get("args", [])][-3:] == CONTAINER["command"]
    assert main["command"][0].endswith("/tap")
    assert made["metadata"]["annotations"]["trialtap/decision"] == "injected"


@pytest.mark.parametrize("links", CHAINS.values(), ids=CHAINS.keys())
def test_a_pod_of_every_chain_is_found_with_the_rights_of_the_webhooks_account(
    plane: ControlPlane, webhook: Webhook, hpo: str, links: list[str]
) -> None:
    made = create(plane, hpo, pod(make_chain(plane, hpo, links, "StdOut")))
    assert label(made) == "t1"
    assert sidecars(made) == ["metrics-logger-and-collector"]


def test_a_kind_installed_while_the_webhook_runs_works_as_soon_as_it_may_be_read(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    crd = manifests.crd("brand.example.org/v3", "Newcomer", "newcomers")
    plane.apply(crd)
    assert (
        plane.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}").returncode == 0
    )
    rbac: JSON = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "newcomers"},
        "rules": [{"apiGroups": ["brand.example.org"], "resources": ["newcomers"], "verbs": ["get"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "newcomers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "newcomers"},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": manifests.HOME, "name": manifests.account_name()}
        ],
    }
    t = make_trial(plane, hpo, "t1", "brand.example.org/v3 Newcomer")
    owner = make(plane, hpo, "brand.example.org/v3", "Newcomer", "t1", t)
    refused = plane.create(f"/api/v1/namespaces/{hpo}/pods", pod(owner))
    assert refused.status_code == 403
    assert 'add "newcomers.brand.example.org" to trialResources' in refused.json()["message"]
    plane.apply(rbac, binding)
    wait_until(
        lambda: plane.create(f"/api/v1/namespaces/{hpo}/pods", pod(owner)).status_code == 201,
        20,
        "the new rule",
    )
    assert label(create(plane, hpo, pod(owner))) == "t1"


def test_an_owner_that_may_not_be_read_refuses_a_trials_pod_and_warns_of_any_other(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    api_version, kind = UNREADABLE.split()
    t = make_trial(plane, hpo, "t1", UNREADABLE)
    hidden = make(plane, hpo, api_version, kind, "t1", t)
    refused = plane.create(f"/api/v1/namespaces/{hpo}/pods", pod(hidden))
    assert refused.status_code == 403
    assert refused.json()["reason"] == "OwnerUnreadable"
    said = refused.json()["message"]
    assert 'may belong to Trial "t1"' in said
    assert 'may not get hiddens.secret.example.org; add "hiddens.secret.example.org"' in said
    other = make(plane, hpo, api_version, kind, "web")
    allowed = plane.create(f"/api/v1/namespaces/{hpo}/pods", pod(other))
    assert allowed.status_code == 201
    assert "cannot tell whether this pod is a trial" in allowed.headers["Warning"]
    assert webhook.metric("trialtap_webhook_owner_unreadable_total") >= 2
    events = wait_until(
        lambda: plane.get(f"/api/v1/namespaces/{hpo}/events")["items"], 10, "the refusal's Event"
    )
    assert [(e["involvedObject"]["uid"], e["reason"]) for e in events] == [
        (t["metadata"]["uid"], "OwnerUnreadable")
    ]
    described = plane.kubectl("describe", "trial", "t1", "-n", hpo).stdout
    assert "OwnerUnreadable" in described


FORBIDDEN = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("list", "configmaps"),
    ("list", "pods"),
    ("create", "pods"),
    ("delete", "pods"),
    ("list", "jobs.batch"),
    ("update", "jobs.batch"),
    ("update", "trials.kubeflow.org"),
    ("delete", "trials.kubeflow.org"),
    ("list", "events"),
    ("impersonate", "users"),
    ("get", "hiddens.secret.example.org"),
]


@pytest.mark.parametrize(("verb", "resource"), FORBIDDEN)
def test_the_webhooks_account_may_not(plane: ControlPlane, verb: str, resource: str) -> None:
    who = f"system:serviceaccount:{manifests.HOME}:{manifests.account_name()}"
    assert plane.kubectl("auth", "can-i", verb, resource, "-A", "--as", who).stdout.strip() == "no"


OWNERS_UNSEEN: dict[str, list[JSON]] = {
    "no owner": [],
    "a DaemonSet": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}],
    "a Node": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}],
}
OWNERS_SELDOM: dict[str, list[JSON]] = {
    "a ReplicaSet": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r"}],
    "a StatefulSet": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s"}],
}
OWNERS_SEEN: dict[str, list[JSON]] = {
    "a Job": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j"}],
    "a kind of no API": [{"apiVersion": "no.example.org/v1", "kind": "Nothing", "name": "x", "uid": "x"}],
    "a DaemonSet of another group": [
        {"apiVersion": "example.org/v1", "kind": "DaemonSet", "name": "d", "uid": "d"}
    ],
    "a ReplicaSet and a Job": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r"},
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j"},
    ],
}


@pytest.mark.parametrize("owners", OWNERS_UNSEEN.values(), ids=OWNERS_UNSEEN.keys())
def test_a_pod_that_is_no_trials_by_its_owners_kind_is_never_seen(
    plane: ControlPlane, webhook: Webhook, hpo: str, owners: list[JSON]
) -> None:
    create(plane, hpo, pod(refs=owners))
    assert webhook.admissions(namespace=hpo) == []


@pytest.mark.parametrize(
    "owners", [*OWNERS_SEEN.values(), *OWNERS_SELDOM.values()], ids=[*OWNERS_SEEN, *OWNERS_SELDOM]
)
def test_a_pod_of_any_other_owner_is_seen_once(
    plane: ControlPlane, webhook: Webhook, hpo: str, owners: list[JSON]
) -> None:
    made = create(plane, hpo, pod(refs=owners))
    assert len(webhook.admissions(namespace=hpo)) == 1
    assert label(made) is None
    assert "trialtap/decision" not in made["metadata"].get("annotations", {})


def test_a_namespace_without_the_label_is_never_seen(plane: ControlPlane, webhook: Webhook) -> None:
    name = f"other-{next(COUNTER)}"
    plane.apply(manifests.namespace(name, labelled=False))
    wait_until(
        lambda: plane.client.get(f"/api/v1/namespaces/{name}/serviceaccounts/default").status_code == 200,
        20,
        "the namespace's service account",
    )
    owner = make_chain(plane, name, CHAINS["Job"])
    assert label(create(plane, name, pod(owner))) is None
    assert webhook.admissions(namespace=name) == []


LIES: dict[str, Callable[[JSON, JSON], JSON]] = {
    "a vanished owner": lambda job, _t: pod(refs=[ref(job, name="gone")]),
    "an owner made anew under the same name": lambda job, _t: pod(refs=[ref(job, uid="of-the-old-one")]),
    "the trial itself as owner": lambda _j, t: pod(t),
    "a name that climbs": lambda job, _t: pod(refs=[ref(job, name="../../../../api/v1/nodes")]),
    "an encoded name that climbs": lambda job, _t: pod(refs=[ref(job, name="..%2F..%2Fsecrets")]),
    "a kind that nobody serves": lambda job, _t: pod(refs=[ref(job, kind="Jobber")]),
    "a group that nobody serves": lambda job, _t: pod(refs=[ref(job, apiVersion="batch.example.org/v1")]),
    "an owner that lives in no namespace": lambda job, _t: pod(
        refs=[ref(job, apiVersion="rbac.authorization.k8s.io/v1", kind="ClusterRole", name="admin")]
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_pod_that_lies_about_its_owner_is_created_untouched(
    plane: ControlPlane, webhook: Webhook, hpo: str, lie: Callable[[JSON, JSON], JSON]
) -> None:
    t = make_trial(plane, hpo, "t1")
    job = make(plane, hpo, "batch/v1", "Job", "t1", t, **SUSPENDED)
    body = lie(job, t)
    body["metadata"]["labels"] = {"katib.kubeflow.org/trial": "t1"}
    made = create(plane, hpo, body)
    assert "trialtap/decision" not in made["metadata"].get("annotations", {})
    assert label(create(plane, hpo, pod(job))) == "t1"


def test_an_owner_in_an_older_version_of_its_group_is_found_by_the_version_that_is_served(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    t = make_trial(plane, hpo, "t1")
    job = make(plane, hpo, "batch/v1", "Job", "t1", t, **SUSPENDED)
    assert label(create(plane, hpo, pod(refs=[ref(job, apiVersion="batch/v1beta1")]))) == "t1"


def test_a_dry_run_is_answered_in_full_and_leaves_nothing_behind(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    t = make_trial(plane, hpo, "t1", container="absent")
    job = make(plane, hpo, "batch/v1", "Job", "t1", t, **SUSPENDED)
    body = pod(job)
    body["metadata"]["ownerReferences"][0]["controller"] = True

    def told() -> list[str]:
        found = plane.get(f"/api/v1/namespaces/{hpo}/events")["items"]
        return [e["reason"] for e in found if e["involvedObject"]["kind"] == "Trial"]

    held_back = 'trialtap_webhook_events_total{outcome="held_back"}'
    before = webhook.metric(held_back)
    for _ in range(2):
        refused = plane.create(f"/api/v1/namespaces/{hpo}/pods?dryRun=All", body)
        assert refused.status_code == 403
    assert plane.create(f"/api/v1/namespaces/{hpo}/pods", body).status_code == 403
    wait_until(told, 10, "the Event")
    assert told() == ["PrimaryContainerMissing"]
    assert webhook.metric(held_back) == before  # the dry runs had told nothing
    assert plane.create(f"/api/v1/namespaces/{hpo}/pods", body).status_code == 403
    assert told() == ["PrimaryContainerMissing"]
    assert webhook.metric(held_back) == before + 1


def test_our_own_output_is_answered_with_no_patch(plane: ControlPlane, webhook: Webhook, hpo: str) -> None:
    owner = make_chain(plane, hpo, CHAINS["Job"], "StdOut")
    first = create(plane, hpo, pod(owner, name="t1-a"))
    again = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "t1-b",
            **{k: first["metadata"][k] for k in ("labels", "annotations", "ownerReferences")},
        },
        "spec": first["spec"],
    }
    second = create(plane, hpo, again)
    assert second["spec"] == first["spec"]
    assert [line["outcome"] for line in webhook.admissions(namespace=hpo)] == ["patched", "allowed"]


def test_two_hundred_pods_at_once_are_all_injected(plane: ControlPlane, webhook: Webhook, hpo: str) -> None:
    trials = [make_trial(plane, hpo, f"t{n}", collector="StdOut") for n in range(10)]
    jobs = [make(plane, hpo, "batch/v1", "Job", t["metadata"]["name"], t, **SUSPENDED) for t in trials]
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        made = list(pool.map(lambda n: create(plane, hpo, pod(jobs[n % 10])), range(200)))
    assert len({m["metadata"]["uid"] for m in made}) == 200
    assert [label(m) for m in made] == [f"t{n % 10}" for n in range(200)]
    assert all(sidecars(m) == ["metrics-logger-and-collector"] for m in made)


def calls(webhook: Webhook) -> float:
    return sum(
        webhook.metric(f'trialtap_webhook_api_calls_total{{outcome="{outcome}",purpose="{purpose}"}}')
        for purpose in ("get", "discovery", "create")
        for outcome in ("ok", "not_found", "failed")
    )


def test_no_api_call_is_made_for_a_pod_whose_owner_and_trial_are_known(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    owner = make_chain(plane, hpo, CHAINS["TrainJob"], "StdOut")
    create(plane, hpo, pod(owner))
    before = calls(webhook)
    for _ in range(20):
        assert label(create(plane, hpo, pod(owner))) == "t1"
    assert calls(webhook) == before


def test_a_deleted_trial_made_anew_under_its_name_is_not_taken_for_the_old_one(
    plane: ControlPlane, webhook: Webhook, hpo: str
) -> None:
    t = make_trial(plane, hpo, "t1")
    job = make(plane, hpo, "batch/v1", "Job", "t1", **SUSPENDED)
    plane.client.patch(
        f"/apis/batch/v1/namespaces/{hpo}/jobs/t1",
        json={"metadata": {"ownerReferences": [ref(t, uid="00000000-0000-0000-0000-000000000000")]}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert label(create(plane, hpo, pod(job))) is None


def test_trials_come_and_go_with_the_watch(plane: ControlPlane, webhook: Webhook, hpo: str) -> None:
    before = webhook.metric("trialtap_webhook_trials")
    make_trial(plane, hpo, "seen")
    wait_until(lambda: webhook.metric("trialtap_webhook_trials") == before + 1, 10, "the watch to bring it")
    plane.client.delete(f"/apis/kubeflow.org/v1beta1/namespaces/{hpo}/trials/seen")
    wait_until(lambda: webhook.metric("trialtap_webhook_trials") == before, 10, "the watch to take it")


MESH = {"name": "mesh-proxy", "image": "example.org/proxy:1", "restartPolicy": "Always"}


class Mesh(http.server.BaseHTTPRequestHandler):
    """Another webhook, called after ours: its native sidecar goes behind ours."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        there = request["object"]["spec"].get("initContainers", [])
        operations = (
            []
            if any(c["name"] == MESH["name"] for c in there)
            else [{"op": "add", "path": "/spec/initContainers/-", "value": MESH}]
        )
        answer = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch"}
        answer["patch"] = base64.b64encode(json.dumps(operations).encode()).decode()
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mesh(plane: ControlPlane, webhook: Webhook, hpo: str) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mesh)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(webhook.folder / "tls.crt", webhook.folder / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    registered = manifests.configuration(f"https://127.0.0.1:{server.server_port}", webhook.ca, "zz-mesh")
    del registered["webhooks"][1]
    registered["webhooks"][0] |= {"name": "mesh.example.org", "matchConditions": []}
    registered["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": hpo}}
    plane.apply(registered)
    probe = pod()
    probe["spec"]["initContainers"] = [CONTAINER | {"name": "other"}]
    wait_until(
        lambda: MESH["name"] in sidecars(create(plane, hpo, probe, dry_run=True)), 20, "the mesh's webhook"
    )
    yield
    plane.client.delete("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-mesh")
    server.shutdown()
    server.server_close()


def test_called_again_after_a_mesh_added_its_sidecar_ours_moves_behind_it(
    plane: ControlPlane, webhook: Webhook, hpo: str, mesh: None
) -> None:
    made = create(plane, hpo, pod(make_chain(plane, hpo, CHAINS["Job"], "StdOut")))
    assert sidecars(made) == ["mesh-proxy", "metrics-logger-and-collector"]
    assert [line["outcome"] for line in webhook.admissions(namespace=hpo)] == ["patched", "patched"]


@pytest.fixture(scope="module")
def webhook_down(plane: ControlPlane, webhook: Webhook) -> Iterator[None]:
    """The API server is told an address where nobody listens."""
    plane.apply(manifests.configuration("https://127.0.0.1:1", webhook.ca))
    refused = pod(refs=OWNERS_SEEN["a Job"])
    wait_until(
        lambda: plane.create("/api/v1/namespaces/registration/pods?dryRun=All", refused).status_code == 500,
        20,
        "the API server to heed it",
    )
    yield
    plane.apply(manifests.configuration(webhook.url, webhook.ca))
    wait_until(
        lambda: plane.create("/api/v1/namespaces/registration/pods?dryRun=All", refused).status_code == 201,
        20,
        "the API server to heed it",
    )


@pytest.mark.parametrize(
    "owners", [*OWNERS_UNSEEN.values(), *OWNERS_SELDOM.values()], ids=[*OWNERS_UNSEEN, *OWNERS_SELDOM]
)
def test_while_the_webhook_is_down_a_pod_of_such_an_owner_is_created_all_the_same(
    plane: ControlPlane, webhook_down: None, hpo: str, owners: list[JSON]
) -> None:
    create(plane, hpo, pod(refs=owners))


@pytest.mark.parametrize("owners", OWNERS_SEEN.values(), ids=OWNERS_SEEN.keys())
def test_while_the_webhook_is_down_a_pod_of_any_other_owner_is_refused(
    plane: ControlPlane, webhook_down: None, hpo: str, owners: list[JSON]
) -> None:
    answer = plane.create(f"/api/v1/namespaces/{hpo}/pods", pod(refs=owners))
    assert answer.status_code == 500
    assert "pods.webhook.trialtap" in answer.text


@pytest.mark.parametrize("owners", OWNERS_SEEN.values(), ids=OWNERS_SEEN.keys())
def test_while_the_webhook_is_down_every_pod_elsewhere_is_created(
    plane: ControlPlane, webhook_down: None, owners: list[JSON]
) -> None:
    create(plane, "default", pod(refs=owners))
