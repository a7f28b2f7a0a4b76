"""Live points and curves that go on from each other: nothing missed, nothing twice."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from dbmanager.rest import application
from dbmanager.rest_columns import ColumnCache
from dbmanager.rest_live import Tail
from dbmanager.rows import TrialKey
from dbmanager.store import Store
from tests.support.rest import put, put_plain, serving


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with serving(application(store)) as url:
        yield url


class Listener:
    """Reads server-sent events in a thread until it has seen enough."""

    def __init__(self, url: str, enough: int, headers: dict[str, str] | None = None, **params: Any) -> None:
        self.points: list[dict[str, Any]] = []
        self.last_id = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, enough, headers or {}, params))
        self._thread.start()
        assert self._ready.wait(20)

    def _read(self, url: str, enough: int, headers: dict[str, str], params: dict[str, Any]) -> None:
        with httpx.stream(
            "GET", f"{url}/api/v1/events", params=params, headers=headers, timeout=30
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                self._ready.set()
                if line.startswith("id: "):
                    self.last_id = line[4:]
                if line.startswith("data: ["):
                    self.points += json.loads(line[6:])
                    if len(self.points) >= enough:
                        return

    def values(self) -> list[str]:
        """What came, once there was enough."""
        self._thread.join(30)
        assert not self._thread.is_alive(), self.points
        return [point["value"] for point in self.points]


def curves(url: str, *trials: str, **more: Any) -> Any:
    body = {"trials": [{"name": name} for name in trials], **more}
    response = httpx.post(f"{url}/api/v1/curves", json=body, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()


def test_events_go_on_where_the_curves_ended(store: Store, url: str) -> None:
    put(store, "t", ["1", "2"])
    drawn = curves(url, "t")
    put(store, "t", ["3"], first=2)  # between the two requests
    put(store, "other", ["9"])
    listener = Listener(url, 3, trial="t", after=drawn["cursor"])
    put(store, "t", ["4", "5"], first=3)
    assert drawn["curves"][0]["y"] == [1, 2]
    assert listener.values() == ["3", "4", "5"]
    point = listener.points[0]
    assert (point["trial"], point["namespace"], point["pod"], point["step"], point["attempt"]) == (
        *("t", "team-a", "t-0"),
        *(2, 0),
    )


def test_a_listener_that_comes_back_gets_what_it_missed(store: Store, url: str) -> None:
    put(store, "t", ["1"])
    listener = Listener(url, 1, trial="team-a/t", after=0)
    assert listener.values() == ["1"]
    put(store, "t", ["2", "3"], first=1)
    again = Listener(url, 2, {"Last-Event-ID": listener.last_id}, trial="team-a/t")
    assert again.values() == ["2", "3"]


def test_events_are_of_the_trials_and_metrics_asked_for(store: Store, url: str) -> None:
    put(store, "t", ["b1"], namespace="b")
    listener = Listener(url, 2, trial=["a/t", "u"], metric="loss", after=0)
    put(store, "t", ["a1"], namespace="a")
    put(store, "t", ["no"], namespace="a", metric="acc")
    put(store, "u", ["u1"], namespace="c")
    assert listener.values() == ["a1", "u1"]


def test_a_listener_may_come_before_the_first_point(store: Store, url: str) -> None:
    listener = Listener(url, 1, trial="later")
    put_plain(store, "later", [("2026-01-31T12:00:00Z", "loss", "1")])
    assert listener.values() == ["1"]


def test_curves_follow_every_change_of_the_database(store: Store, url: str) -> None:
    def seen(*trials: str, **more: Any) -> list[list[float]]:
        return [curve["y"] for curve in curves(url, *trials, **more)["curves"]]

    put(store, "t", ["1"])
    assert seen("t") == [[1]]
    put(store, "t", ["2", "nan"], first=1)
    assert seen("t") == [[1, 2]]
    put(store, "t", ["5"], attempt=1)
    assert seen("t") == [[5]]
    assert seen("t", apart=True) == [[1, 2], [5]]
    store.delete("t")
    assert seen("t") == []
    put(store, "t", ["7"], pod="new")
    assert seen("t") == [[7]]


def test_curves_without_steps_count_the_reports(store: Store, url: str) -> None:
    put_plain(store, "t", [(f"2026-01-31T12:00:0{n}Z", "loss", str(n)) for n in range(3)])
    (curve,) = curves(url, "t")["curves"]
    assert (curve["xIs"], curve["x"], curve["attempt"], curve["pod"]) == ("report", [1, 2, 3], None, None)
    (curve,) = curves(url, "t", x="elapsed")["curves"]
    assert (curve["x"], curve["least"]["time"]) == ([0, 1, 2], "2026-01-31T12:00:00Z")


def test_the_metric_of_most_trials_is_drawn_unless_one_is_named(store: Store, url: str) -> None:
    put(store, "a", ["1"], metric="acc")
    put(store, "a", ["1"], metric="loss", pod="x")
    put(store, "b", ["1"], metric="loss")
    answer = curves(url, "a", "b", "nowhere")
    assert (answer["metric"], answer["metrics"]) == ("loss", ["acc", "loss"])
    assert answer["missing"] == [{"name": "nowhere", "namespace": None}]
    assert len(curves(url, "a", "b", metric="acc")["curves"]) == 1


def test_the_greatest_floats_are_drawn_as_numbers(store: Store, url: str) -> None:
    put(store, "t", ["1e308", "-1e308", "1e-320", "inf", "1" * 400, "5"] * 20)
    (curve,) = curves(url, "t", buckets=5)["curves"]
    for name in ("x", "y", "meansX", "means"):
        assert curve[name]
        assert None not in curve[name]
    assert curve["nonfinite"] == 40


def test_five_hundred_trials_of_long_names_can_be_listened_to(store: Store, url: str) -> None:
    names = [f"team-a/{n:04}-{'x' * 60}" for n in range(500)]
    listener = Listener(url, 1, trial=names, after=0)
    put(store, names[-1].partition("/")[2], ["1"], pod="p")
    assert listener.values() == ["1"]


def test_columns_beyond_their_memory_are_read_again_not_kept(store: Store) -> None:
    for n in range(4):
        put(store, f"t{n}", ["1", "2", "3"])
    cache = ColumnCache(store, limit=200)
    keys = [TrialKey("team-a", f"t{n}") for n in range(4)]
    for _ in range(2):
        found, _, _ = cache.read(keys)
        assert [found[key].values.tolist() for key in keys] == [[1, 2, 3]] * 4
    assert sum(kept.columns.nbytes for kept in cache._kept.values()) <= 200


def test_a_large_trial_of_two_streams_is_read_whole(store: Store) -> None:
    for pod in ("w0", "w1"):
        put(store, "t", [str(n) for n in range(3000)], pod=pod)
    put_plain(store, "t", [("2026-01-31T12:00:00Z", "loss", "x" * 100)])
    found, _, newest = ColumnCache(store).read([TrialKey("team-a", "t")])
    (columns,) = found.values()
    assert columns.values.size == 6001
    assert np.isnan(columns.values).sum() == 1
    assert np.nansum(columns.values) == 2 * sum(range(3000))
    assert newest >= 6001


def test_a_tail_reads_on_through_many_rows(store: Store) -> None:
    tail = Tail(store, [TrialKey("team-a", "t")], (), 0)
    put(store, "t", [str(n) for n in range(4500)])
    seen: list[str] = []
    while True:
        _, points = tail.look()
        if not points:
            break
        seen += [point["value"] for point in points]
    assert seen == [str(n) for n in range(4500)]
