"""The spool: what a producer gives is read from files like any other, over restarts, with its cursor."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector import spool as spool_module
from collector.checkpoint import Checkpoint
from collector.source import Findings
from collector.spool import Spool, SpoolFiles, SpoolParser
from collector.tail import SegmentsTail
from trialtap.points import MetricPoint


class Counter:
    """Counts on from its cursor."""

    def __init__(self, upto: int, fail_at: int = -1) -> None:
        self.findings = Findings()
        self.upto = upto
        self.fail_at = fail_at

    def run(self, write: Callable[..., None], stopped: threading.Event, cursor: Any) -> None:
        for i in range(0 if cursor is None else cursor, self.upto):
            if i == self.fail_at:
                self.fail_at = -1
                raise RuntimeError("the source is away")
            write([MetricPoint("m", str(i), i, i), MetricPoint("k", "ü\n", i)], cursor=i + 1)


@pytest.fixture
def wake() -> int:
    return os.pipe2(os.O_NONBLOCK)[1]


def points(tmp_path: Path) -> list[MetricPoint]:
    tail = SegmentsTail(f"{tmp_path}/spool", SpoolFiles(Findings()), Checkpoint(str(tmp_path / "c")))
    found: list[MetricPoint] = []
    while (chunk := tail.read(True)) is not None:
        found += chunk.points
    return found


def expected(count: int) -> list[MetricPoint]:
    return [p for i in range(count) for p in (MetricPoint("m", str(i), i, i), MetricPoint("k", "ü\n", i))]


def test_points_come_back_as_they_were_given(tmp_path: Path, wake: int) -> None:
    spool = Spool(Counter(100), f"{tmp_path}/spool", 1 << 30, wake)
    spool.run()
    assert spool.ended.is_set()
    assert points(tmp_path) == expected(100)


def test_a_producer_goes_on_from_its_cursor_after_a_restart(tmp_path: Path, wake: int) -> None:
    Spool(Counter(10), f"{tmp_path}/spool", 1 << 30, wake).run()
    Spool(Counter(25), f"{tmp_path}/spool", 1 << 30, wake).run()
    assert points(tmp_path) == expected(25)


def test_the_cursor_outlives_its_segment(tmp_path: Path, wake: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT", 100)
    Spool(Counter(10), f"{tmp_path}/spool", 1 << 30, wake).run()
    segments = sorted(tmp_path.glob("spool.*"))
    assert len(segments) > 3
    for segment in segments[:-1]:  # as acknowledged ones are
        segment.unlink()
    assert Spool(Counter(10), f"{tmp_path}/spool", 1 << 30, wake)._cursor == 10


def test_a_line_that_a_crash_cut_is_skipped_and_given_again(tmp_path: Path, wake: int) -> None:
    Spool(Counter(10), f"{tmp_path}/spool", 1 << 30, wake).run()
    segment = tmp_path / "spool.000001"
    segment.write_bytes(segment.read_bytes()[:-5])
    Spool(Counter(12), f"{tmp_path}/spool", 1 << 30, wake).run()
    assert points(tmp_path) == expected(12)


def test_a_producer_that_fails_is_run_again(
    tmp_path: Path, wake: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "PAUSE", 0.01)
    Spool(Counter(10, fail_at=5), f"{tmp_path}/spool", 1 << 30, wake).run()
    assert points(tmp_path) == expected(10)


def test_past_its_bound_the_oldest_goes(tmp_path: Path, wake: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT", 100)
    Spool(Counter(100), f"{tmp_path}/spool", 1000, wake).run()
    assert sum(path.stat().st_size for path in tmp_path.glob("spool.*")) < 3000
    assert points(tmp_path)[-1] == expected(100)[-1]


def test_many_points_at_once_are_several_lines(tmp_path: Path, wake: int) -> None:
    many = expected(5000)

    class Flood(Counter):
        def run(self, write: Callable[..., None], stopped: threading.Event, cursor: Any) -> None:
            write(many)

    Spool(Flood(0), f"{tmp_path}/spool", 1 << 30, wake).run()
    assert points(tmp_path) == many


@pytest.mark.parametrize(
    "line", [b"{", b"[[1]]", b"[[]]", b"null", b"\xff\xfe", b'[{"cursor": 1}]', b"[1, 2]"]
)
def test_no_line_is_too_odd(line: bytes) -> None:
    good = b'[["m", "1", 5, null]]\n'
    used, found = SpoolParser(Findings()).feed(line + b"\n" + good, final=False)
    assert used == len(line) + 1 + len(good)
    assert found[-1:] == [MetricPoint("m", "1", 5)]
