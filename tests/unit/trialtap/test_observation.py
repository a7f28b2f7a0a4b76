"""Summaries: nan and infinities are counted and never best."""

import pytest

from trialtap.observation import Summary, summarize
from trialtap.points import MetricPoint

CASES = [
    ("numbers", ["0.5", "0.25", "1e0"], (3, "0.25", "1e0", "1e0")),
    ("a first nan does not stick", ["nan", "2", "1"], (3, "1", "2", "1")),
    ("infinities are kept as latest only", ["1", "inf"], (2, "1", "1", "inf")),
    ("text", ["Genotype(a)"], (1, "unavailable", "unavailable", "Genotype(a)")),
]


@pytest.mark.parametrize(
    ("values", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_summary_of(values: list[str], expected: tuple[int, str, str, str]) -> None:
    found = summarize(MetricPoint("m", value, index) for index, value in enumerate(values))["m"]
    assert (found.count, found.min, found.max, found.latest) == expected


def test_latest_is_the_newest_time_and_of_equal_times_the_later_row() -> None:
    rows = [
        MetricPoint("m", "1", 5),
        MetricPoint("m", "2", 9),
        MetricPoint("m", "3", 9),
        MetricPoint("m", "4", 7),
    ]
    assert summarize(rows)["m"].latest == "3"


def test_metrics_come_in_the_order_of_their_first_rows() -> None:
    assert list(summarize([MetricPoint("b", "1", 0), MetricPoint("a", "1", 1)])) == ["b", "a"]


def test_nothing_gives_nothing() -> None:
    assert summarize([]) == {}
    assert Summary().latest == "unavailable"
