"""The SDK: what a source yields becomes points with times and cursors, and the end of training is the end."""

import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.sdk import Adapter, Args, Point, text_of
from collector.source import Stamp
from trialtap.points import MetricPoint

NOW = 1_800_000_000_000_000_000
ARGS = Args(trial="t", metrics=("loss", "acc"), poll=0.01)


class Made:
    """A source that yields what it was given."""

    def __init__(self, points: Callable[[Any], Iterator[Point | None]]) -> None:
        self.points = points


class Kept:
    """What was written: batches with their cursors."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[MetricPoint], Any]] = []
        self.stopped = threading.Event()

    def __call__(self, points: Sequence[MetricPoint], cursor: Any = None) -> None:
        self.batches.append((list(points), cursor))

    @property
    def points(self) -> list[MetricPoint]:
        return [point for points, _ in self.batches for point in points]


def ran(points: Callable[[Any], Iterator[Point | None]], cursor: Any = None) -> Kept:
    """Run a source that ends by itself."""
    kept = Kept()
    Adapter(Made(points), ARGS, Stamp(clock=lambda: NOW)).run(kept, kept.stopped, cursor)
    return kept


def test_points_keep_name_value_step_and_order() -> None:
    def points(cursor: Any) -> Iterator[Point | None]:
        yield Point("loss", 0.5, step=1)
        yield Point("acc", "0.25")
        yield None
        yield Point("loss", 0.4, step=2)

    kept = ran(points)
    assert [(p.name, p.value, p.step) for p in kept.points] == [
        ("loss", "0.5", 1), ("acc", "0.25", None), ("loss", "0.4", 2),
    ]  # fmt: skip
    assert [p.time - NOW for p in kept.points] == [0, 1000, 2000]


@pytest.mark.parametrize(
    ("given_time", "nanoseconds"),
    [
        (None, NOW),
        (1_700_000_000, 1_700_000_000_000_000_000),
        (1_700_000_000.25, 1_700_000_000_250_000_000),
        (datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=UTC), 1_700_000_000_000_005_000),
        (datetime(2023, 11, 14, 22, 13, 20, 5), 1_700_000_000_000_005_000),
        (datetime(2023, 11, 15, 7, 13, 20, tzinfo=timezone(timedelta(hours=9))), 1_700_000_000_000_000_000),
    ],
)
def test_a_time_may_be_given_in_several_ways(given_time: Any, nanoseconds: int) -> None:
    kept = ran(lambda _: iter([Point("loss", 1, time=given_time)]))
    assert kept.points[0].time == nanoseconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (3, "3"), (True, "1"), (float("nan"), "nan"), (float("-inf"), "-inf"),
        (" 0.5 ", "0.5"), ("Genotype(a, b)", "Genotype(a, b)"), (10**30, "1" + "0" * 30),
        (np.float64(0.25), "0.25"), (np.float32(0.5), "0.5"), (np.int64(7), "7"),
    ],
)  # fmt: skip
def test_a_value_is_written_as_what_it_is(value: Any, text: str) -> None:
    assert text_of(value) == text


@given(st.floats(allow_nan=False))
def test_no_float_loses_a_digit(value: float) -> None:
    assert float(text_of(value)) == value


def test_names_that_were_not_asked_for_are_noted_and_not_reported() -> None:
    kept = Kept()
    adapter = Adapter(Made(lambda _: iter([Point("lr", 1, cursor=7), Point("loss", 2)])), ARGS)
    adapter.run(kept, kept.stopped, None)
    assert [point.name for point in kept.points] == ["loss"]
    assert adapter.findings.names == {"lr": 1, "loss": 1}


def test_the_cursor_is_kept_with_its_point_even_where_that_one_is_not_reported() -> None:
    kept = ran(lambda _: iter([Point("loss", 1, cursor=1), Point("lr", 2, cursor={"at": 2})]))
    assert kept.batches[-1][1] == {"at": 2}


def test_points_without_a_cursor_are_written_with_the_next_that_has_one() -> None:
    def points(cursor: Any) -> Iterator[Point | None]:
        for row in range(2000):
            yield Point("loss", row)
            yield Point("acc", row, cursor=row)

    kept = ran(points)
    assert len(kept.points) == 4000
    assert len(kept.batches) > 4
    for batch, cursor in kept.batches:
        assert batch[-1].name == "acc"
        assert batch[-1].value == str(cursor)


def test_the_source_is_told_where_it_was() -> None:
    kept = ran(lambda cursor: iter([Point("loss", cursor["at"])]), {"at": 5})
    assert kept.points[0].value == "5"


def test_what_came_before_an_error_is_kept() -> None:
    def points(cursor: Any) -> Iterator[Point | None]:
        yield Point("loss", 1, cursor=1)
        raise OSError("gone")

    kept = Kept()
    with pytest.raises(OSError, match="gone"):
        Adapter(Made(points), ARGS).run(kept, kept.stopped, None)
    assert [(len(batch), cursor) for batch, cursor in kept.batches] == [(1, 1)]


def test_the_source_looks_once_more_after_training_has_ended() -> None:
    kept = Kept()
    looks = []

    def points(cursor: Any) -> Iterator[Point | None]:
        yield None
        kept.stopped.set()
        yield None  # this look had begun before the end
        looks.append("after the end")
        yield Point("loss", 1)
        yield Point("loss", 2)
        yield None
        looks.append("too late")
        yield Point("loss", 3)

    Adapter(Made(points), ARGS).run(kept, kept.stopped, None)
    assert [point.value for point in kept.points] == ["1", "2"]
    assert looks == ["after the end"]


def test_points_are_written_while_the_source_goes_on() -> None:
    kept = Kept()

    def points(cursor: Any) -> Iterator[Point | None]:
        yield Point("loss", 1)
        yield None
        assert len(kept.points) == 1
        yield Point("loss", 2)

    Adapter(Made(points), ARGS).run(kept, kept.stopped, None)
    assert len(kept.points) == 2


def test_the_source_of_the_documentation_runs_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("docs/custom-collectors.md").read_text().split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {"__name__": "documentation"}
    exec(compile(text, "docs/custom-collectors.md", "exec"), scope)  # noqa: S102 - our own page
    asked = []

    def open_url(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        rows = [{"id": 5, "loss": 0.5, "epoch": 1}, {"id": 6, "loss": 0.4, "epoch": 2}]
        return io.BytesIO(json.dumps(rows if "after=4" in url else []).encode())

    monkeypatch.setattr(scope["urllib"].request, "urlopen", open_url)
    points = scope["Api"](Args(trial="t", metrics=("loss",), path="http://localhost/rows")).points(4)
    assert [next(points) for _ in range(3)] == [
        Point("loss", 0.5, step=1, cursor=5), Point("loss", 0.4, step=2, cursor=6), None,
    ]  # fmt: skip
    assert next(points) is None
    assert asked == ["http://localhost/rows?after=4", "http://localhost/rows?after=6"]
