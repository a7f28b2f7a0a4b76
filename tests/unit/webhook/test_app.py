"""The HTTP side: statuses, deadlines, logs and metrics."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import REGISTRY

from tests.support.objects import JSON, Counted, obj, pod, review, trial, unreadable
from webhook import app
from webhook.cluster import Cluster, ObjectsCluster, Unreadable, seconds_left
from webhook.command import Entrypoint
from webhook.events import Events
from webhook.pods import Pods
from webhook.review import Reason, Refusal, Request, Verdict
from webhook.settings import Settings

T1 = trial("t1", spec={"metricsCollector": {"collector": {"kind": "Push"}}})
JOB = obj("batch/v1", "Job", "t1", T1)
HEADERS = {"Content-Type": "application/json"}


class Site:
    """An application with pods' handler over a cluster of objects."""

    def __init__(self, cluster: Cluster | None = None, **routes: app.Handler) -> None:
        self.cluster = cluster or Counted(T1, JOB)
        self.events = Events(self.cluster)
        self.log = io.StringIO()
        self.faults: list[str] = []
        table = {"/mutate-pod": Pods(self.events).mutate} | {f"/{k}": v for k, v in routes.items()}
        made = app.create(table, self.cluster, Settings(), lambda: self.faults, self.log)
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=made, raise_app_exceptions=True), base_url="http://webhook"
        )

    async def post(self, body: Any, path: str = "/mutate-pod", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return await self.http.post(path, content=content, headers=HEADERS | headers)

    async def ask(self, body: JSON, path: str = "/mutate-pod") -> JSON:
        answer = await self.post(body, path)
        assert answer.status_code == 200, answer.text
        response: JSON = answer.json()["response"]
        return response

    @property
    def lines(self) -> list[JSON]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


def patch(response: JSON) -> list[JSON]:
    operations: list[JSON] = json.loads(base64.b64decode(response.get("patch", "W10=")))
    return operations


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_trials_pod_is_patched() -> None:
    response = await Site().ask(review(pod(JOB)))
    assert response["allowed"] is True
    assert any(
        o["value"] == "t1" for o in patch(response) if "katib.kubeflow.org~1trial" in o["path"]
    ) or any(
        o["path"] == "/metadata/labels" and o["value"]["katib.kubeflow.org/trial"] == "t1"
        for o in patch(response)
    )


UNTOUCHED: dict[str, JSON] = {
    "a pod without an owner": review(pod()),
    "an update of a pod": review(pod(JOB), operation="UPDATE"),
    "a deletion of a pod": {**review(pod(JOB), operation="DELETE", object=None, oldObject=pod(JOB))},
    "a pod's binding": review(pod(JOB), subResource="binding"),
    "a pod's ephemeral containers": review(pod(JOB), operation="UPDATE", subResource="ephemeralcontainers"),
    "a connection to a pod": review(pod(JOB), operation="CONNECT", subResource="exec"),
    "another kind": review(JOB),
    "a Pod of another group": review({**pod(JOB), "apiVersion": "example.org/v1"}),
}


@pytest.mark.parametrize("body", UNTOUCHED.values(), ids=UNTOUCHED.keys())
async def test_what_is_not_the_creation_of_a_trials_pod_is_allowed_untouched(body: JSON) -> None:
    assert await Site().ask(body) == {"uid": "review-1", "allowed": True}


async def test_the_namespace_is_the_requests_not_the_objects() -> None:
    lying = pod(JOB, namespace="hpo")
    site = Site()
    assert patch(await site.ask(review(lying, namespace="theirs"))) == []
    assert patch(await site.ask(review(pod(JOB), namespace="hpo"))) != []


async def ignored(_r: Request, _c: Cluster, _s: Settings) -> Verdict:
    return Verdict()


BAD: dict[str, tuple[str, str, bytes, dict[str, str], int]] = {
    "no JSON": ("POST", "/mutate-pod", b"{", HEADERS, 400),
    "nothing": ("POST", "/mutate-pod", b"", HEADERS, 400),
    "v1beta1": (
        "POST",
        "/mutate-pod",
        orjson.dumps({**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"}),
        HEADERS,
        400,
    ),
    "a pod instead of a review": ("POST", "/mutate-pod", orjson.dumps(pod()), HEADERS, 400),
    "a pod without spec": (
        "POST",
        "/mutate-pod",
        orjson.dumps(review({"apiVersion": "v1", "kind": "Pod", "metadata": {}})),
        HEADERS,
        400,
    ),
    "deeply nested": ("POST", "/mutate-pod", b"[" * 100_000, HEADERS, 400),
    "YAML": ("POST", "/mutate-pod", b"a: b", {"Content-Type": "application/yaml"}, 415),
    "no content type": ("POST", "/mutate-pod", b"{}", {}, 415),
    "too large, as it says itself": (
        "POST",
        "/mutate-pod",
        b"{}",
        {**HEADERS, "Content-Length": str(17 << 20)},
        413,
    ),
    "too large": ("POST", "/mutate-pod", b" " * (17 << 20), HEADERS, 413),
    "the wrong method": ("GET", "/mutate-pod", b"", HEADERS, 405),
    "the wrong path": ("POST", "/mutate", b"{}", HEADERS, 404),
}


@pytest.mark.parametrize(("method", "path", "body", "headers", "status"), BAD.values(), ids=BAD.keys())
async def test_a_bad_request_gets_its_status_and_one_line(
    method: str, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    site = Site()
    answer = await site.http.request(method, path, content=body, headers=headers)
    assert answer.status_code == status
    assert "Traceback" not in answer.text
    assert answer.text.count("\n") <= 1
    if status in (400, 413, 415):
        (line,) = site.lines
        assert line["status"] == status


async def test_a_body_in_endless_chunks_is_cut_off() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 1 << 30:
            sent += 1 << 20
            yield b" " * (1 << 20)

    answer = await Site().http.post("/mutate-pod", content=endless(), headers=HEADERS)
    assert answer.status_code == 413


async def test_a_body_that_does_not_come_is_given_up() -> None:
    released = asyncio.Event()

    async def receive() -> JSON:
        await released.wait()
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    site = Site()
    made = site.http._transport.app  # type: ignore[attr-defined]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/mutate-pod",
        "raw_path": b"/mutate-pod",
        "query_string": b"timeout=600ms",
        "root_path": "",
        "scheme": "https",
        "server": ("h", 1),
        "client": ("c", 1),
        "headers": [(b"content-type", b"application/json")],
    }
    await made(scope, receive, send)
    assert sent[0]["status"] == 408
    released.set()


async def boom(_r: Request, _c: Cluster, _s: Settings) -> Verdict:
    raise KeyError("a bug of ours")


async def test_a_bug_of_ours_is_500_in_one_line_and_a_traceback_in_the_log_alone() -> None:
    site = Site(bug=boom)
    answer = await site.post(review(pod()), "/bug")
    assert answer.status_code == 500
    assert "bug" not in answer.text
    assert "a bug of ours" in site.log.getvalue()
    assert count("trialtap_webhook_admissions_total", path="/bug", outcome="failed") == 1


async def slow(_r: Request, _c: Cluster, _s: Settings) -> Verdict:
    await asyncio.sleep(60)
    return Verdict()


async def test_a_handler_that_hangs_is_answered_within_the_deadline() -> None:
    site = Site(slow=slow)
    begin = asyncio.get_running_loop().time()
    answer = await site.post(review(pod()), "/slow?timeout=1s")
    assert answer.status_code == 504
    assert "no verdict within 0.5 s" in answer.text
    assert asyncio.get_running_loop().time() - begin < 5


async def test_api_calls_are_told_the_requests_deadline() -> None:
    told: list[float] = []

    async def ask(_r: Request, _c: Cluster, _s: Settings) -> Verdict:
        told.append(seconds_left(60))
        return Verdict()

    site = Site(ask=ask)
    await site.post(review(pod()), "/ask?timeout=3s")
    await site.post(review(pod()), "/ask")
    assert told[0] == pytest.approx(2.5, abs=0.3)
    assert told[1] == pytest.approx(9.5, abs=0.3)


DURATIONS = [
    (b"timeout=10s", 9.5),
    (b"a=b&timeout=1m30s", 89.5),
    (b"timeout=500ms", 0.1),
    (b"timeout=2.5s&dryRun=All", 2.0),
    (b"timeout=", 9.5),
    (b"timeout=nonsense", 9.5),
    (b"notimeout=1s", 9.5),
    (b"", 9.5),
]


@pytest.mark.parametrize(("told", "expected"), DURATIONS)
def test_the_deadline_is_what_the_api_server_tells_less_the_way_back(told: bytes, expected: float) -> None:
    assert app.seconds_for(told) == pytest.approx(expected)


async def test_before_the_trials_are_listed_the_api_server_applies_its_failure_policy() -> None:
    cluster = Counted(T1, JOB)
    cluster.synced = False
    answer = await Site(cluster).post(review(pod(JOB)))
    assert answer.status_code == 503
    assert "not been listed" in answer.text


async def test_a_pod_that_may_be_a_trials_is_refused_when_its_owner_cannot_be_read() -> None:
    before = count("trialtap_webhook_owner_unreadable_total")
    cluster = Counted(T1, JOB, fail=unreadable("Job"))
    site = Site(cluster)
    response = await site.ask(review(pod(JOB)))
    assert response["allowed"] is False
    assert response["status"]["reason"] == "OwnerUnreadable"
    assert 'may belong to Trial "t1"' in response["status"]["message"]
    assert "403" in response["status"]["message"]
    assert count("trialtap_webhook_owner_unreadable_total") == before + 1
    await site.events.drain()
    assert [e["involvedObject"]["name"] for e in cluster.created] == ["t1"]


async def test_a_pod_that_is_no_trials_by_its_name_is_allowed_with_a_warning_and_counted() -> None:
    before = count("trialtap_webhook_owner_unreadable_total")
    web = obj("batch/v1", "Job", "web")
    cluster = Counted(T1, web, fail=unreadable("Job"))
    response = await Site(cluster).ask(review(pod(web, name="web-1")))
    assert response["allowed"] is True
    assert patch(response) == []
    assert "cannot tell whether this pod is a trial's" in response["warnings"][0]
    assert count("trialtap_webhook_owner_unreadable_total") == before + 1


async def test_an_api_server_that_hangs_costs_no_more_than_the_deadline() -> None:
    class Hanging(ObjectsCluster):
        async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
            seconds = seconds_left()
            await asyncio.sleep(seconds)
            raise Unreadable(f"get {kind}: no answer within {seconds:.1f} s")

    begin = asyncio.get_running_loop().time()
    answer = await Site(Hanging([T1, JOB])).post(review(pod(JOB)), "/mutate-pod?timeout=1s")
    assert asyncio.get_running_loop().time() - begin < 3
    assert answer.json()["response"]["allowed"] is False
    assert "no answer within" in answer.json()["response"]["status"]["message"]


WRONG = trial("t1", container="absent")
WRONG_JOB = obj("batch/v1", "Job", "t1", WRONG)


def controlled(owner: JSON) -> JSON:
    made = pod(owner)
    made["metadata"]["ownerReferences"][0]["controller"] = True
    return made


async def test_a_refusal_is_told_to_the_trial_once_and_never_on_a_dry_run() -> None:
    cluster = Counted(WRONG, WRONG_JOB)
    site = Site(cluster)
    for _ in range(3):
        response = await site.ask(review(controlled(WRONG_JOB), dryRun=True))
        assert response["allowed"] is False
    await site.events.drain()
    assert cluster.created == []
    for _ in range(3):
        await site.ask(review(controlled(WRONG_JOB)))
    await site.events.drain()
    (told,) = cluster.created
    assert told["involvedObject"]["uid"] == WRONG["metadata"]["uid"]
    assert told["reason"] == "PrimaryContainerMissing"
    assert told["message"] == response["status"]["message"]


async def test_a_trial_that_cannot_be_read_is_refused_by_the_name_of_its_field() -> None:
    broken = trial("t1", spec={"earlyStoppingRules": "no list"})
    job = obj("batch/v1", "Job", "t1", broken)
    response = await Site(Counted(broken, job)).ask(review(pod(job)))
    assert response["status"]["reason"] == "TrialUnreadable"
    assert "spec.earlyStoppingRules" in response["status"]["message"]


async def test_one_line_of_json_is_logged_per_admission() -> None:
    site = Site()
    await site.ask(review(pod(JOB)))
    await site.ask(review(pod()))
    first, second = site.lines
    assert (first["outcome"], second["outcome"]) == ("patched", "allowed")
    assert first["namespace"] == "hpo"
    assert first["name"] == "t1-abcde"
    assert second["decision"] == "no trial's pod"


async def test_refusals_are_counted_by_their_reason() -> None:
    async def refuse(_r: Request, _c: Cluster, _s: Settings) -> Verdict:
        raise Refusal(Reason.INVALID, "no")

    before = count("trialtap_webhook_refusals_total", reason="Invalid")
    response = await Site(refuse=refuse).ask(review(pod()), "/refuse")
    assert response["status"]["message"] == "no"
    assert count("trialtap_webhook_refusals_total", reason="Invalid") == before + 1


async def test_health_is_that_the_process_turns_and_ready_is_that_it_can_answer() -> None:
    site = Site()
    assert (await site.http.get("/healthz")).status_code == 200
    assert (await site.http.get("/readyz")).text == "ok\n"
    site.faults = ["trials.kubeflow.org: 403", "certificate expired"]
    answer = await site.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.text == "trials.kubeflow.org: 403\ncertificate expired\n"
    assert (await site.http.get("/healthz")).status_code == 200


async def test_an_entrypoint_is_looked_up_only_where_the_plan_needs_one() -> None:
    asked: list[str] = []

    async def lookup(_pod: JSON, _namespace: str, image: str) -> Entrypoint:
        asked.append(image)
        return Entrypoint(entrypoint=("from-image",))

    t = trial("t1")
    job = obj("batch/v1", "Job", "t1", t)
    cluster = ObjectsCluster([t, job])
    handler: Callable[..., Any] = Pods(Events(cluster), lookup).mutate
    site = Site(cluster, pods=handler)
    await site.ask(review(pod(job)), "/pods")
    assert asked == []
    bare = pod(job)
    del bare["spec"]["containers"][0]["command"]
    response = await site.ask(review(bare), "/pods")
    assert asked == ["i"]
    assert "from-image" in json.dumps(patch(response))
    response = await site.ask(review(bare))
    assert response["allowed"] is False
    assert response["status"]["reason"] == "EntrypointUnknown"
