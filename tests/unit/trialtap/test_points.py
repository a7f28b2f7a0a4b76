"""Times: read and written to the nanosecond, within the years 1-9999."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialtap.points import NANOSECONDS, YEAR_ONE, format_time, parse_time

LAST = 253_402_300_800 * NANOSECONDS - 1


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2024-03-05T02:55:09+09:00", 1709574909 * NANOSECONDS),
        ("2024-03-04 17:55:09,123", 1709574909 * NANOSECONDS + 123_000_000),
        ("2024-03-04T17:55:09.1234567899Z", 1709574909 * NANOSECONDS + 123_456_789),
        ("2016-12-31T23:59:60Z", 1483228800 * NANOSECONDS),
        ("0001-01-01T00:00:00Z", YEAR_ONE),
        ("9999-12-31T23:59:59.999999999Z", LAST),
    ],
)
def test_a_time_is_read_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert parse_time(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2024-13-01T00:00:00Z",
        "2024-02-30T00:00:00Z",
        "2024-01-01",
        "0001-01-01T00:00:00+01:00",
        "٢٠٢٤-01-01T00:00:00Z",
    ],
)
def test_what_is_no_time_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


@given(st.integers(YEAR_ONE, LAST))
def test_a_time_written_reads_back_as_the_same(nanoseconds: int) -> None:
    assert parse_time(format_time(nanoseconds)) == nanoseconds


@given(st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))
def test_a_time_agrees_with_datetime(moment: datetime) -> None:
    assert format_time(parse_time(moment.isoformat())).rstrip("Z") in moment.isoformat()
