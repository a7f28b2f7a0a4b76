"""Who sees what of a trial's rows: the Katib view and the thinning of long answers, without a server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbmanager.katibview import FIRST_ROWS, HEARD_MS, Thinner, is_open, of_all, of_metric, superseded
from dbmanager.rows import Row, Stream
from dbmanager.service import _reply


def row(index: int, value: str, name: str = "loss", stream: str | None = "s", step: int | None = None) -> Row:
    return Row(index, f"2026-01-01 00:00:00.{index:06d}", index % 1000, name, value, step, "ns", stream)


def stream(
    identity: str = "s", attempt: int = 0, ended_at: int | None = None, seen_at: int = 1_000_000
) -> Stream:
    return Stream(identity, "ns", "t", "pod", attempt, 1, ended_at, seen_at, None)


OPEN = {
    "no stream": ([], 0, False),
    "a stream heard of just now": ([stream()], 0, True),
    "a stream heard of 60 s ago": ([stream()], HEARD_MS, True),
    "a stream whose collector is dead": ([stream()], HEARD_MS + 1, False),
    "an ended stream": ([stream(ended_at=1)], 0, False),
    "one ended, one open": ([stream("a", ended_at=1), stream("b")], 0, True),
    "an open stream of an attempt before": ([stream("a", 0), stream("b", 1, ended_at=1)], 0, True),
}


@pytest.mark.parametrize(("streams", "later", "expected"), OPEN.values(), ids=OPEN.keys())
def test_rows_are_to_be_expected_while_an_open_stream_is_heard_of(
    streams: list[Stream], later: int, expected: bool
) -> None:
    assert is_open(streams, 1_000_000 + later) is expected


def test_every_attempt_but_the_newest_is_superseded() -> None:
    assert superseded([]) == frozenset()
    assert superseded([stream("a", 3)]) == frozenset()
    assert superseded([stream("a", 0), stream("b", 1), stream("c", 2), stream("d", 2)]) == {"a", "b"}


VIEWS = {
    "numbers stay": (["1", "-2e3", "+.5"], ["1", "-2e3", "+.5"]),
    "what is not finite goes": (["nan", "1", "inf", "-Infinity", "NaN", "1e999"], ["1"]),
    "text stays": (["Genotype(a)", "1"], ["Genotype(a)", "1"]),
    "unavailable goes behind a number before it": (["1", "unavailable"], ["1"]),
    "unavailable goes behind a number after it": (["unavailable", "1"], ["1"]),
    "unavailable alone stays once": (["unavailable", "unavailable"], ["unavailable"]),
    "unavailable stays beside nan": (["nan", "unavailable"], ["unavailable"]),
    "nothing": ([], []),
}


@pytest.mark.parametrize(("values", "expected"), VIEWS.values(), ids=VIEWS.keys())
def test_a_reader_of_a_metric_gets_what_katib_can_use(values: list[str], expected: list[str]) -> None:
    rows = [row(index, value) for index, value in enumerate(values)]
    assert [found.value for found in of_metric(rows, frozenset())] == expected


def test_a_reader_of_a_metric_gets_the_newest_attempt_and_rows_without_stream() -> None:
    rows = [row(0, "1", stream="old"), row(1, "2", stream="new"), row(2, "3", stream=None)]
    assert [found.value for found in of_metric(rows, frozenset({"old"}))] == ["2", "3"]


def test_a_reader_of_all_gets_all_but_unavailable() -> None:
    assert [found.value for found in of_all([row(0, "unavailable"), row(1, "nan"), row(2, "1")])] == [
        "nan",
        "1",
    ]


texts = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.sampled_from(["nan", "inf", "x", "", "é" * 300]),
    st.text(max_size=200),
)
rows_of = st.lists(
    st.tuples(
        texts, st.sampled_from(["loss", "acc", "é" * 100]), st.none() | st.integers(-(2**63), 2**63 - 1)
    )
)


@given(rows_of, st.integers(2_000, 20_000))
def test_what_stays_is_in_order_and_within_the_size(
    data: list[tuple[str, str, int | None]], limit: int
) -> None:
    rows = [
        row(index, value.replace("\ud800", ""), name, step=step)
        for index, (value, name, step) in enumerate(data)
    ]
    thinner = Thinner(limit)
    for one in rows:
        thinner.add(one)
    kept = thinner.rows()
    assert [one.id for one in kept] == sorted({one.id for one in kept})
    assert len(kept) + thinner.dropped == thinner.fed == len(rows)
    assert _reply(kept).ByteSize() <= limit + 100  # the reply's own fields
    if not thinner.dropped:
        assert kept == rows


def test_the_first_the_last_and_each_metrics_extremes_stay() -> None:
    limit = 400_000
    thinner = Thinner(limit)
    rows = [row(index, str(index % 777), ("loss", "acc")[index % 2]) for index in range(20_000)]
    rows[5001] = row(5001, "-5", "acc")
    rows[6000] = row(6000, "9999", "loss")
    for one in rows:
        thinner.add(one)
    kept = thinner.rows()
    assert kept[:FIRST_ROWS] == rows[:FIRST_ROWS]
    assert rows[5001] in kept
    assert rows[6000] in kept
    tail = len(kept) - FIRST_ROWS - 2
    assert kept[-tail:] == rows[-tail:]
    assert tail > 3000
