"""Thinning keeps what a person would see."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbmanager.rest_columns import microseconds
from dbmanager.rest_curves import curve, numbers
from dbmanager.rows import split_time

VALUES = st.one_of(st.floats(), st.integers(-5, 5).map(float))
SERIES = st.lists(st.tuples(st.integers(-100, 100).map(float), VALUES), max_size=300)


@given(SERIES, st.integers(1, 20))
def test_every_bucket_keeps_its_extremes_and_no_more_is_drawn_than_fits(
    series: list[tuple[float, float]], buckets: int
) -> None:
    x, y = np.array([a for a, _ in series]), np.array([b for _, b in series])
    found = curve(x, y, buckets)
    finite = [(a, b) for a, b in series if math.isfinite(b)]
    assert found.count == len(series)
    assert found.nonfinite == len(series) - len(finite)
    assert found.x.size <= 2 * buckets + 2
    assert list(found.x) == sorted(found.x)
    assert set(zip(found.x, found.y, strict=True)) <= set(finite)
    if not finite:
        assert found.least is found.greatest is found.latest is None
        return
    assert found.y.min() == y[found.least] == min(b for _, b in finite)
    assert found.y.max() == y[found.greatest] == max(b for _, b in finite)
    assert found.x[0] == min(a for a, _ in finite)
    assert found.x[-1] == max(a for a, _ in finite) == x[found.latest]
    if found.means.size:
        assert found.weights.sum() == len(finite)
        slack = 1e-9 * max(abs(found.y.min()), abs(found.y.max()), 1e-300)
        assert (found.means >= found.y.min() - slack).all()
        assert (found.means <= found.y.max() + slack).all()
    else:
        assert len(finite) <= 2 * buckets


def test_one_spike_among_a_hundred_thousand_stays() -> None:
    y = np.zeros(100_000)
    y[77_777] = 1
    found = curve(np.arange(100_000.0), y, 100)
    assert found.x[found.y.argmax()] == 77_777


def test_a_range_runs_on_to_the_edges_and_knows_the_best_before_it() -> None:
    x = np.arange(100.0)
    found = curve(x, 100 - x, 500, first=40.5, last=50.5)
    assert list(found.x) == [*range(40, 52)]
    assert (found.least_before, found.greatest_before) == (61, 100)
    assert found.count == 100
    assert found.least == 99


@pytest.mark.parametrize("first", [1000.0, -1000.0])
def test_a_range_beside_the_series_is_no_error(first: float) -> None:
    assert curve(np.arange(10.0), np.ones(10), 5, first=first, last=first + 1).count == 10


@given(st.lists(st.one_of(st.none(), st.text(max_size=5), st.floats().map(str)), max_size=20))
def test_what_is_no_number_is_nan(texts: list[str | None]) -> None:
    def alone(text: str | None) -> float:
        try:
            return float(text or "x")
        except ValueError:
            return math.nan

    assert np.array_equal(numbers(texts), np.array([alone(text) for text in texts]), equal_nan=True)


@given(st.lists(st.integers(-62_135_596_800 * 10**6, 253_402_300_799 * 10**6), min_size=1, max_size=20))
def test_times_are_read_exactly_from_the_year_1_to_9999(moments: list[int]) -> None:
    assert microseconds([split_time(moment * 1000)[0] for moment in moments]).tolist() == moments


def test_postgresql_leaves_zeros_out() -> None:
    assert microseconds(["1970-01-01 00:00:01", "1970-01-01 00:00:01.5", None]).tolist() == [
        1_000_000,
        1_500_000,
        -62_135_596_800 * 10**6,
    ]
