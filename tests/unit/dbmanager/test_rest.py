"""The REST API on every database, over HTTP as its clients have it."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from dbmanager.auth import UnauthenticatedError
from dbmanager.rest import application
from dbmanager.rows import NewRow, Origin, Report, split_time
from dbmanager.store import Store
from tests.support.rest import BEGIN, put, put_plain, serving


@pytest.fixture
def client(store: Store) -> Iterator[httpx.Client]:
    with serving(application(store)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def get(client: httpx.Client, path: str, **params: Any) -> Any:
    response = client.get(f"/api/v1/{path}", params=params)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response) -> tuple[int, str]:
    body = response.json()
    assert set(body) == {"detail"}
    return response.status_code, body["detail"]


def values(points: list[dict[str, Any]]) -> list[str]:
    return [point["value"] for point in points]


def test_trials_are_listed_by_namespace_and_name_a_page_at_a_time(store: Store, client: httpx.Client) -> None:
    for namespace, trial in [("b", "tune-1"), ("a", "tune-2"), ("a", "other"), ("a", "tune-1")]:
        put(store, trial, ["1"], namespace=namespace)
    put_plain(store, "katib", [("2026-01-31T12:00:00Z", "loss", "1")])
    pages: list[list[tuple[str | None, str]]] = []
    cursor = None
    while True:
        page = get(client, "trials", limit=2, **({"cursor": cursor} if cursor else {}))
        pages.append([(trial["namespace"], trial["name"]) for trial in page["trials"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert pages == [
        [(None, "katib"), ("a", "other")],
        [("a", "tune-1"), ("a", "tune-2")],
        [("b", "tune-1")],
    ]
    found = get(client, "trials", namespace="a", prefix="tune-")["trials"]
    assert [trial["name"] for trial in found] == ["tune-1", "tune-2"]


def test_a_trial_says_its_attempts_and_pods_and_whether_it_is_live(
    store: Store, client: httpx.Client
) -> None:
    put(store, "t", ["1"], attempt=0, end=True)
    put(store, "t", ["1"], attempt=1, pod="w0")
    put(store, "t", ["1"], attempt=1, pod="w1")
    put(store, "done", ["1"], end=True)
    done, trial = get(client, "trials")["trials"]
    assert (trial["attempts"], trial["pods"], trial["live"]) == (2, 3, True)
    assert (done["name"], done["live"]) == ("done", False)
    assert trial["lastSeen"] >= done["lastSeen"][:10]


def test_points_come_by_time_and_pages_join_without_loss_or_double(
    store: Store, client: httpx.Client
) -> None:
    # All in the same nanosecond: only the id tells them apart.
    rows = [NewRow(*split_time(BEGIN), "loss", str(n), n) for n in range(25)]
    store.report(Report("t", rows, Origin("a", "p", "s"))).result()
    seen: list[str] = []
    cursor = None
    while True:
        page = get(client, "trials/t/metrics", limit=10, **({"cursor": cursor} if cursor else {}))
        seen += values(page["points"])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [str(n) for n in range(25)]


FILTERS = [
    ({"metric": "acc"}, ["a0", "a1", "a2"]),
    ({"metric": ["acc", "loss"], "attempt": 0}, ["0", "1", "2", "a0", "a1", "a2"]),
    ({"start": "2026-01-31T12:00:01Z", "metric": "loss", "attempt": 0}, ["1", "2"]),
    ({"end": "2026-01-31T12:00:01Z", "metric": "loss", "attempt": 0}, ["0", "1"]),
    ({"end": "2026-01-31T13:00:01+01:00", "metric": "loss", "attempt": 0}, ["0", "1"]),
    ({"firstStep": 2}, ["2", "a2", "12"]),
    ({"lastStep": 0}, ["0", "a0", "10"]),
    ({"attempt": 1}, ["10", "11", "12"]),
    ({"pod": "t-1"}, ["10", "11", "12"]),
    ({"pod": "nobody"}, []),
]


@pytest.mark.parametrize(("params", "expected"), FILTERS, ids=str)
def test_points_are_chosen_by(store: Store, client: httpx.Client, params: Any, expected: list[str]) -> None:
    put(store, "t", ["0", "1", "2"])
    put(store, "t", ["a0", "a1", "a2"], metric="acc")
    put(store, "t", ["10", "11", "12"], attempt=1)
    assert sorted(values(get(client, "trials/t/metrics", **params)["points"])) == sorted(expected)


@pytest.mark.parametrize("how", ["parameter", "header"])
def test_all_points_are_streamed_as_ndjson_and_csv(store: Store, client: httpx.Client, how: str) -> None:
    put(store, "t", ["0.5", "nan", 'a,"b"\nc', "δ😀"], pod="p")

    def fetch(kind: str, media: str) -> httpx.Response:
        if how == "parameter":
            response = client.get("/api/v1/trials/t/metrics", params={"format": kind})
        else:
            response = client.get("/api/v1/trials/t/metrics", headers={"Accept": media})
        assert response.headers["content-type"].startswith(media)
        return response

    lines = [json.loads(line) for line in fetch("ndjson", "application/x-ndjson").text.splitlines()]
    assert values(lines) == ["0.5", "nan", 'a,"b"\nc', "δ😀"]
    assert lines[1] == {
        "trial": "t",
        "namespace": "team-a",
        "name": "loss",
        "value": "nan",
        "time": "2026-01-31T12:00:01Z",
        "step": 1,
        "pod": "p",
        "stream": "team-a.p.loss",
        "ordinal": None,
        "attempt": 0,
        "id": lines[0]["id"] + 1,
    }
    rows = list(csv.DictReader(io.StringIO(fetch("csv", "text/csv").text, newline="")))
    assert [row["value"] for row in rows] == values(lines)
    assert [row["time"] for row in rows] == [line["time"] for line in lines]


def test_in_the_order_of_storing_rows_carry_their_ordinals_from_where_the_stream_began_again(
    store: Store, client: httpx.Client
) -> None:
    put(store, "t", ["0", "1"])
    rows = [NewRow(*split_time(BEGIN), "loss", str(n), n) for n in range(5, 8)]
    store.report(Report("t", rows, Origin("team-a", "t-0", "team-a.t-0.loss", 5, gap=True))).result()
    text = client.get("/api/v1/trials/t/metrics", params={"format": "ndjson", "order": "stored"}).text
    lines = [json.loads(line) for line in text.splitlines()]
    # The hole of three rows left no mark: numbers are right from the end, which is what a second import needs.
    assert [(line["value"], line["ordinal"]) for line in lines][-3:] == [("5", 5), ("6", 6), ("7", 7)]
    assert [line["value"] for line in lines] == ["0", "1", "5", "6", "7"]
    rest = client.get(
        "/api/v1/trials/t/metrics", params={"format": "ndjson", "order": "stored", "after": lines[2]["id"]}
    ).text
    assert [json.loads(line)["ordinal"] for line in rest.splitlines()] == [6, 7]


def test_nan_is_never_the_best_and_a_retried_attempt_stands_apart(store: Store, client: httpx.Client) -> None:
    put(store, "t", ["-99", "5"], attempt=0)
    put(store, "t", ["nan", "3", "inf", "1", "unavailable", "2"], attempt=1)
    summary = get(client, "trials/t/summary")
    (metric,) = summary["metrics"]
    assert (metric["min"], metric["max"], metric["latest"], metric["count"]) == ("1", "3", "2", 6)
    assert [(a["attempt"], a["pods"], a["metrics"][0]["min"]) for a in summary["attempts"]] == [
        (0, ["t-0"], "-99"),
        (1, ["t-1"], "1"),
    ]


def test_a_name_in_two_namespaces_must_be_told_apart(store: Store, client: httpx.Client) -> None:
    put(store, "t", ["1"], namespace="a")
    put(store, "t", ["2"], namespace="b")
    for path in ("trials/t/metrics", "trials/t/summary"):
        code, detail = refused(client.get(f"/api/v1/{path}"))
        assert code == 409
        assert detail == "namespace: trial t is in a, b; name one of them"
        assert client.get(f"/api/v1/{path}", params={"namespace": "b"}).status_code == 200
    assert refused(client.delete("/api/v1/trials/t"))[0] == 409
    assert client.delete("/api/v1/trials/t", params={"namespace": "a"}).json() == {"rows": 1}
    assert values(get(client, "trials/t/metrics")["points"]) == ["2"]


def test_deleting_is_for_good(store: Store, client: httpx.Client) -> None:
    put(store, "t", ["1", "2"])
    assert client.delete("/api/v1/trials/t").json() == {"rows": 2}
    put(store, "t", ["3"], first=2)  # what the collector still sends
    assert refused(client.get("/api/v1/trials/t/metrics"))[0] == 404
    assert refused(client.delete("/api/v1/trials/t"))[0] == 404


REFUSALS = [
    ("trials?limit=0", 422, "limit: "),
    ("trials?limit=9999", 422, "limit: "),
    ("trials?cursor=zzz", 422, "cursor: is none that this API gave"),
    ("trials?namespace=%00", 422, "namespace: "),
    ("trials/t/metrics?start=yesterday", 422, "start: 'yesterday' is no RFC 3339 time"),
    ("trials/t/metrics?end=12345-01-01T00:00:00Z", 422, "end: "),
    ("trials/t/metrics?firstStep=x", 422, "firstStep: "),
    (f"trials/t/metrics?lastStep={2**63}", 422, "lastStep: "),
    ("trials/t/metrics?metric=", 422, "metric"),
    ("trials/t/metrics?format=xml", 422, "format: "),
    ("trials/t/metrics?order=stored", 422, "order: "),
    ("trials/tt/metrics", 404, "trial: there is no tt; the nearest are t"),
    ("trials/t/summary?namespace=other", 404, "trial: there is no t in namespace other, but in team-a"),
    ("trials/%00/summary", 422, "trial: "),
    ("events", 422, "trial: "),
    ("curves", 405, "method: GET is not for /api/v1/curves"),
    ("nothing", 404, "path: there is no /api/v1/nothing"),
]


@pytest.mark.parametrize(("path", "code", "begin"), REFUSALS, ids=lambda value: str(value)[:40])
def test_a_refusal_names_the_parameter(
    store: Store, client: httpx.Client, path: str, code: int, begin: str
) -> None:
    put(store, "t", ["1"])
    status, detail = refused(client.get(f"/api/v1/{path}"))
    assert status == code
    assert detail.startswith(begin)


@pytest.mark.parametrize("name", ["a/b", "ä ö", "a?b&c", "A", "%41", "a b "])
def test_any_name_that_the_table_holds_can_be_read(store: Store, client: httpx.Client, name: str) -> None:
    put(store, name, ["1"], pod="p")
    put(store, "a", ["2"], pod="q")
    assert values(get(client, f"trials/{quote(name, safe='')}/metrics")["points"]) == ["1"]


class OneNamespace:
    """Tokens that are the name of their namespace."""

    async def namespace(self, authorization: str | None) -> str | None:
        if not authorization:
            raise UnauthenticatedError("authorization: no bearer token")
        return authorization.removeprefix("Bearer ")


@pytest.fixture
def limited(store: Store) -> Iterator[httpx.Client]:
    with (
        serving(application(store, OneNamespace())) as url,
        httpx.Client(base_url=url, headers={"Authorization": "Bearer a"}) as client,
    ):
        yield client


def test_a_token_reads_and_deletes_in_its_own_namespace_only(store: Store, limited: httpx.Client) -> None:
    put(store, "t", ["1"], namespace="a")
    put(store, "t", ["2"], namespace="b")
    put(store, "secret", ["3"], namespace="b")
    put_plain(store, "nobody", [("2026-01-31T12:00:00Z", "loss", "1")])
    assert [trial["name"] for trial in get(limited, "trials")["trials"]] == ["t"]
    assert values(get(limited, "trials/t/metrics")["points"]) == ["1"]
    for path in ("trials?namespace=b", "trials/t/metrics?namespace=b", "events?trial=b/t"):
        code, detail = refused(limited.get(f"/api/v1/{path}"))
        assert (code, detail.partition(";")[0]) == (403, "namespace: the token may read a, not b")
    for path in ("trials/secret/summary", "trials/nobody/metrics"):
        code, detail = refused(limited.get(f"/api/v1/{path}"))
        assert code == 404
        assert "b" not in detail.split()
    assert refused(limited.get("/api/v1/trials/nobody/metrics?namespace=a"))[0] == 404
    named = {"trials": [{"name": "nobody", "namespace": "a"}]}
    assert limited.post("/api/v1/curves", json=named).json()["curves"] == []
    assert refused(limited.delete("/api/v1/trials/t?namespace=b"))[0] == 403
    body = {
        "trials": [{"name": "t"}, {"name": "t", "namespace": "b"}, {"name": "secret"}, {"name": "nobody"}]
    }
    drawn = limited.post("/api/v1/curves", json=body).json()
    assert [curve["namespace"] for curve in drawn["curves"]] == ["a"]
    assert [trial["name"] for trial in drawn["missing"]] == ["t", "secret", "nobody"]


def test_a_push_client_with_a_token_is_read_by_its_namespace(store: Store, limited: httpx.Client) -> None:
    rows = [NewRow(*split_time(BEGIN), "loss", "1")]
    store.report(Report("push", rows, None, "a")).result()
    store.report(Report("push", rows, None, "b")).result()
    assert len(get(limited, "trials/push/metrics")["points"]) == 1
    assert (
        limited.post("/api/v1/curves", json={"trials": [{"name": "push"}]}).json()["curves"][0]["count"] == 1
    )


def test_without_a_token_nothing_is_told(store: Store, limited: httpx.Client) -> None:
    put(store, "t", ["1"], namespace="a")
    for method, path in [
        ("GET", "trials"),
        ("GET", "trials/t/metrics"),
        ("DELETE", "trials/t"),
        ("POST", "curves"),
    ]:
        response = limited.request(
            method,
            f"/api/v1/{path}",
            headers={"Authorization": ""},
            json={"trials": [{"name": "t"}]} if method == "POST" else None,
        )
        assert refused(response) == (401, "authorization: no bearer token")
        assert response.headers["www-authenticate"] == "Bearer"
    assert limited.get("/", headers={"Authorization": ""}).status_code == 200  # the page asks for one


def test_the_page_may_ask_no_other_host(client: httpx.Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "http" not in policy
    assert "unsafe" not in policy
