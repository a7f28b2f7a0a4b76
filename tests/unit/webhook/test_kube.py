"""The cluster behind an API server: caches by list and watch, live reads, and an API server that misbehaves."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tests.support.fakeapi import FakeAPI, status
from tests.support.objects import JSON, obj, pod, review, trial
from trialtap import kube
from trialtap.kube import API, path_of, stop
from webhook import app
from webhook.cluster import NotFound, Unreadable, deadline
from webhook.events import Events
from webhook.kube import KubeCluster
from webhook.pods import Pods
from webhook.settings import Settings

TRIALS = "/apis/kubeflow.org/v1beta1/namespaces/hpo/trials"
ALL_TRIALS = "/apis/kubeflow.org/v1beta1/trials"
JOBS = "/apis/batch/v1/namespaces/hpo/jobs"


class Running:
    """A KubeCluster that follows a FakeAPI."""

    def __init__(self, api: FakeAPI, cluster: KubeCluster, log: list[str]) -> None:
        self.api = api
        self.cluster = cluster
        self.log = log


@asynccontextmanager
async def running(folder: Path, api: FakeAPI | None = None) -> AsyncIterator[Running]:
    async with (api or FakeAPI()).serve() as served:
        client = await API.connect(served.kubeconfig(folder))
        log: list[str] = []
        cluster = KubeCluster(client, "kubeflow", log.append)
        task = asyncio.create_task(cluster.run())
        try:
            yield Running(served, cluster, log)
        finally:
            await stop(task)
            await client.close()


async def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Running]:
    api = FakeAPI()
    api.put(TRIALS, trial("t1"))
    api.put(JOBS, obj("batch/v1", "Job", "j1"))
    async with running(tmp_path, api) as found:
        await asyncio.wait_for(found.cluster.wait_synced(), 10)
        await until(lambda: sum(request.startswith("WATCH") for request in api.requests) == 5)
        yield found


async def test_trials_are_kept_by_one_list_and_one_watch(site: Running) -> None:
    for n in range(30):
        site.api.put(TRIALS, trial(f"more-{n}"))
    await until(lambda: site.cluster.trial("uid-Trial-more-29"))
    asked = [request for request in site.api.requests if request.endswith("/trials")]
    assert asked == [f"GET {ALL_TRIALS}", f"WATCH {ALL_TRIALS}"]


async def test_a_long_list_comes_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "PAGE", 10)
    api = FakeAPI()
    for n in range(35):
        api.put(TRIALS, trial(f"t{n}"))
    async with running(tmp_path, api) as found:
        await asyncio.wait_for(found.cluster.wait_synced(), 10)
        assert all(found.cluster.trial(f"uid-Trial-t{n}") for n in range(35))
        assert api.requests.count(f"GET {ALL_TRIALS}") == 4


async def test_a_trial_is_the_same_object_until_it_changes_and_gone_when_deleted(site: Running) -> None:
    first = site.cluster.trial("uid-Trial-t1")
    assert first is not None
    assert first["spec"]["primaryContainerName"] == "main"
    site.api.put(TRIALS, trial("t1", status={"conditions": [{"type": "Running", "status": "True"}]}))
    site.api.put(TRIALS, trial("t1", container="other"))
    await until(lambda: site.cluster.trial("uid-Trial-t1") is not first)
    changed = site.cluster.trial("uid-Trial-t1")
    assert changed is not None
    assert changed["spec"]["primaryContainerName"] == "other"
    assert changed is site.cluster.trial("uid-Trial-t1")
    site.api.delete(TRIALS, "t1")
    await until(lambda: site.cluster.trial("uid-Trial-t1") is None)


async def test_unfinished_trials_are_found_by_the_beginning_of_a_name(site: Running) -> None:
    assert [t["metadata"]["name"] for t in site.cluster.trials_named("hpo", "t1-abc")] == ["t1"]
    assert site.cluster.trials_named("other", "t1-abc") == []
    done = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    site.api.put(TRIALS, trial("t1", status=done))
    await until(lambda: not site.cluster.trials_named("hpo", "t1-abc"))
    assert site.cluster.trial("uid-Trial-t1") is not None


async def test_the_other_caches_follow_too(site: Running) -> None:
    labelled = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "hpo", "uid": "n", "labels": {"a": "b"}},
    }
    site.api.put("/api/v1/namespaces", labelled)
    site.api.put("/api/v1/namespaces/hpo/limitranges", obj("v1", "LimitRange", "l", spec={"limits": []}))
    config = obj("v1", "ConfigMap", "katib-config", namespace="kubeflow", data={"katib-config.yaml": "a: 1"})
    site.api.put("/api/v1/namespaces/kubeflow/configmaps", config)
    suggestion = obj("kubeflow.org/v1beta1", "Suggestion", "e", spec={"algorithm": {}})
    site.api.put("/apis/kubeflow.org/v1beta1/namespaces/hpo/suggestions", suggestion)
    await until(
        lambda: (
            (site.cluster.namespace("hpo") or {}).get("metadata", {}).get("labels") == {"a": "b"}
            and site.cluster.limit_ranges("hpo")
            and site.cluster.katib_config() == {"a": 1}
            and site.cluster.suggestion("hpo", "e")
        )
    )
    site.api.delete("/api/v1/namespaces/kubeflow/configmaps", "katib-config")
    site.api.delete("/api/v1/namespaces/hpo/limitranges", "l")
    await until(lambda: site.cluster.katib_config() is None and not site.cluster.limit_ranges("hpo"))


async def test_a_katib_config_that_is_no_yaml_counts_as_absent_and_is_logged(site: Running) -> None:
    for text in ("a: [", "just text"):
        config = obj(
            "v1", "ConfigMap", "katib-config", namespace="kubeflow", data={"katib-config.yaml": text}
        )
        site.log.clear()
        site.api.put("/api/v1/namespaces/kubeflow/configmaps", config)
        await until(lambda: any("counts as absent" in line for line in site.log))
        assert site.cluster.katib_config() is None


async def test_what_changed_while_the_watch_was_broken_is_seen(site: Running) -> None:
    site.api.put(TRIALS, trial("t2"))
    await until(lambda: site.cluster.trial("uid-Trial-t2"))
    site.api.fault = lambda request: status(410, "too old") if "watch" in request.query else None
    site.api.put(TRIALS, trial("t3"), silent=True)
    site.api.delete(TRIALS, "t2", silent=True)
    site.api.break_watches()
    await until(lambda: site.cluster.trial("uid-Trial-t3") and not site.cluster.trial("uid-Trial-t2"))
    site.api.fault = lambda _request: None


async def test_an_expired_watch_lists_anew(site: Running) -> None:
    site.api.put(TRIALS, trial("t4"), silent=True)
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    site.api.say(ALL_TRIALS, gone)
    await until(lambda: site.cluster.trial("uid-Trial-t4"))


async def test_a_bookmark_moves_the_version_and_nothing_else(site: Running) -> None:
    asked: list[str] = []

    def spy(request: web.Request) -> None:
        if request.path == ALL_TRIALS and "watch" in request.query:
            asked.append(request.query["resourceVersion"])

    site.api.fault = spy
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Trial", "metadata": {"resourceVersion": "7777"}}}
    site.api.say(ALL_TRIALS, bookmark)
    await asyncio.sleep(0.1)
    site.api.break_watches()
    await until(lambda: "7777" in asked)
    assert site.cluster.trial("uid-Trial-t1") is not None


async def test_an_object_that_cannot_be_taken_does_not_stop_the_others(site: Running) -> None:
    site.api.say(ALL_TRIALS, {"type": "ADDED", "object": {"kind": "Trial", "metadata": {}}})
    await until(lambda: any("KeyError" in line for line in site.log))
    site.api.put(TRIALS, trial("t5"))
    await until(lambda: site.cluster.trial("uid-Trial-t5"))


async def test_without_the_trial_kind_there_are_no_trials_until_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "ABSENT_SECONDS", 0.1)
    api = FakeAPI()
    kinds = api.kinds.pop("/apis/kubeflow.org/v1beta1")
    async with running(tmp_path, api) as found:
        await asyncio.wait_for(found.cluster.wait_synced(), 10)
        assert found.cluster.faults() == []
        api.kinds["/apis/kubeflow.org/v1beta1"] = kinds
        api.put(TRIALS, trial("t1"))
        await until(lambda: found.cluster.trial("uid-Trial-t1"))


async def test_what_may_not_be_listed_is_named_and_keeps_the_webhook_unready(tmp_path: Path) -> None:
    api = FakeAPI()
    api.fault = lambda r: status(403, "trials is forbidden") if r.path == ALL_TRIALS else None
    async with running(tmp_path, api) as found:
        await until(lambda: any("trials is forbidden" in f for f in found.cluster.faults()))
        assert found.cluster.synced is False
        (fault,) = [f for f in found.cluster.faults() if "not listed yet" not in f]
        assert fault.startswith("trials.kubeflow.org: 403")
        api.fault = lambda _r: None
        await asyncio.wait_for(found.cluster.wait_synced(), 20)
        await until(lambda: found.cluster.faults() == [])


async def test_an_object_is_read_live_by_its_kinds_resource(site: Running) -> None:
    found = await site.cluster.get("batch/v1", "Job", "hpo", "j1")
    assert found["metadata"]["uid"] == "uid-Job-j1"
    assert site.api.requests[-2:] == ["GET /apis/batch/v1", f"GET {JOBS}/j1"]
    await site.cluster.get("batch/v1", "Job", "hpo", "j1")
    assert site.api.requests.count("GET /apis/batch/v1") == 1
    assert await site.cluster.scope("batch/v1", "Job") is True
    assert await site.cluster.scope("v1", "Namespace") is False


ABSENT: dict[str, tuple[str, str, str]] = {
    "no such object": ("batch/v1", "Job", "none"),
    "no such kind": ("batch/v1", "Jobber", "j1"),
    "no such group": ("example.org/v1", "Thing", "x"),
    "a subresource's kind is no kind of its own": ("batch/v1", "jobs/status", "j1"),
    "no such core version": ("v2", "Pod", "x"),
    "a name that climbs": ("batch/v1", "Job", ".."),
    "a name with a slash": ("batch/v1", "Job", "../secrets"),
    "a name that is encoded": ("batch/v1", "Job", "..%2Fx"),
    "an apiVersion that climbs": ("../v1", "Job", "j1"),
}


@pytest.mark.parametrize(("api_version", "kind", "name"), ABSENT.values(), ids=ABSENT.keys())
async def test_what_is_not_there_is_not_found(site: Running, api_version: str, kind: str, name: str) -> None:
    with pytest.raises(NotFound):
        await site.cluster.get(api_version, kind, "hpo", name)
    assert not any(".." in request for request in site.api.requests)


async def test_a_name_is_encoded_in_the_path(site: Running) -> None:
    site.api.put(JOBS, obj("batch/v1", "Job", "a:b c"))
    await site.cluster.get("batch/v1", "Job", "hpo", "a:b c")
    assert site.api.requests[-1] == f"GET {JOBS}/a:b%20c"
    assert path_of("batch/v1", "jobs", "hpo", "a:b c/d?e") == f"{JOBS}/a%3Ab%20c%2Fd%3Fe"


async def test_a_version_that_is_served_no_more_is_read_by_the_groups_preferred_one(site: Running) -> None:
    preferred = {"kind": "APIGroup", "preferredVersion": {"groupVersion": "batch/v1"}}
    site.api.fault = lambda r: web.json_response(preferred) if r.path == "/apis/batch" else None
    found = await site.cluster.get("batch/v1beta1", "Job", "hpo", "j1")
    assert found["metadata"]["name"] == "j1"


async def test_a_kind_that_moved_to_another_plural_is_discovered_anew(site: Running) -> None:
    await site.cluster.get("batch/v1", "Job", "hpo", "j1")
    site.api.kinds["/apis/batch/v1"] = [("Job", "works", True)]
    site.api.put("/apis/batch/v1/namespaces/hpo/works", obj("batch/v1", "Job", "w1"))
    assert (await site.cluster.get("batch/v1", "Job", "hpo", "w1"))["metadata"]["name"] == "w1"


async def test_a_kind_that_comes_later_is_found_within_five_seconds(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.kube.UNKNOWN_SECONDS", 0.2)
    with pytest.raises(NotFound):
        await site.cluster.get("new.example.org/v1", "New", "hpo", "n")
    with pytest.raises(NotFound):
        await site.cluster.get("new.example.org/v1", "New", "hpo", "n")
    assert site.api.requests.count("GET /apis/new.example.org/v1") == 1
    site.api.kinds["/apis/new.example.org/v1"] = [("New", "news", True)]
    site.api.put("/apis/new.example.org/v1/namespaces/hpo/news", obj("new.example.org/v1", "New", "n"))
    await asyncio.sleep(0.3)
    assert await site.cluster.get("new.example.org/v1", "New", "hpo", "n")


def on_jobs(answer: Callable[[], Any]) -> Callable[[web.Request], Any]:
    return lambda request: answer() if request.path.startswith(JOBS) else None


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "403": (lambda: status(403, "no"), 'may not get jobs.batch; add "jobs.batch" to trialResources'),
    "500": (lambda: status(500, "etcd is away"), "500 InternalError: etcd is away"),
    "503": (lambda: web.Response(status=503, text="starting"), "503"),
    "no JSON": (lambda: web.Response(text="<html>"), "no JSON"),
    "a list": (lambda: web.json_response([]), "no JSON object"),
    "hangs": (lambda: "hang", "no answer within"),
}


@pytest.mark.parametrize(("answer", "said"), FAULTS.values(), ids=FAULTS.keys())
async def test_what_the_api_server_does_not_say_is_unreadable_and_said(
    site: Running, answer: Callable[[], Any], said: str
) -> None:
    site.api.fault = on_jobs(answer)
    with deadline(0.5), pytest.raises(Unreadable, match=said):
        await site.cluster.get("batch/v1", "Job", "hpo", "j1")


async def test_discovery_that_fails_is_unreadable(site: Running) -> None:
    site.api.fault = lambda r: status(500, "broken") if r.path == "/apis/batch/v1" else None
    with pytest.raises(Unreadable, match="broken"):
        await site.cluster.scope("batch/v1", "Job")


async def test_an_api_server_that_asks_for_patience_is_asked_again(site: Running) -> None:
    turns = iter([status(429, "slow down", **{"Retry-After": "0"}), None])
    site.api.fault = lambda r: next(turns, None) if r.path.startswith(JOBS) else None
    assert await site.cluster.get("batch/v1", "Job", "hpo", "j1")


async def test_equal_reads_that_overlap_are_one_call_and_each_keeps_its_own_deadline(site: Running) -> None:
    await site.cluster.scope("batch/v1", "Job")
    gate = asyncio.Event()
    original = site.api._answer

    async def slow(request: web.Request) -> web.StreamResponse:
        if request.path.startswith(JOBS):
            await gate.wait()
        return await original(request)

    site.api._answer = slow  # type: ignore[method-assign]
    site.api.fault = lambda request: "hang" if request.path.startswith(JOBS) and not gate.is_set() else None

    async def impatient() -> JSON:
        with deadline(0.2):
            return await site.cluster.get("batch/v1", "Job", "hpo", "j1")

    results = await asyncio.gather(*(impatient() for _ in range(50)), return_exceptions=True)
    assert all(isinstance(result, Unreadable) for result in results)
    assert site.api.requests.count(f"GET {JOBS}/j1") == 1


async def test_events_are_created_in_their_namespace(site: Running) -> None:
    await site.cluster.create("v1", "Event", "hpo", {"metadata": {"name": "e"}})
    assert site.api.requests[-1] == "POST /api/v1/namespaces/hpo/events"
    assert site.api.created == [{"metadata": {"name": "e"}}]
    site.api.fault = lambda r: status(403, "no") if r.method == "POST" else None
    with pytest.raises(Unreadable, match="may not create events"):
        await site.cluster.create("v1", "Event", "hpo", {"metadata": {"name": "e"}})


async def test_without_a_configuration_the_next_step_is_said() -> None:
    with pytest.raises(ValueError, match="give --kubeconfig FILE outside a cluster"):
        await API.connect()


ADMISSIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "answers 500": (lambda: status(500, "etcd is away"), "etcd is away"),
    "hangs": (lambda: "hang", "no answer within"),
    "forbids": (lambda: status(403, "no"), 'add "jobs.batch" to trialResources'),
}


@pytest.mark.parametrize(("answer", "said"), ADMISSIONS.values(), ids=ADMISSIONS.keys())
async def test_a_pod_is_answered_within_the_deadline_while_the_api_server(
    site: Running, answer: Callable[[], Any], said: str
) -> None:
    events = Events(site.cluster)
    made = app.create(
        {"/mutate-pod": Pods(events).mutate}, site.cluster, Settings(), site.cluster.faults, io.StringIO()
    )
    site.api.fault = on_jobs(answer)
    begin = asyncio.get_running_loop().time()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://w") as http:

        async def ask(owner: JSON, name: str) -> JSON:
            body = review(pod(owner, name=name))
            response: JSON = (await http.post("/mutate-pod?timeout=1s", json=body)).json()["response"]
            return response

        ours, other = obj("batch/v1", "Job", "t1", trial("t1")), obj("batch/v1", "Job", "web")
        refused, allowed = await asyncio.gather(ask(ours, "t1-x"), ask(other, "web-x"))
    assert asyncio.get_running_loop().time() - begin < 5
    assert refused["allowed"] is False
    assert said in refused["status"]["message"]
    assert allowed["allowed"] is True
    assert said in allowed["warnings"][0]
    await events.drain()
    assert [event["involvedObject"]["name"] for event in site.api.created] == ["t1"]
