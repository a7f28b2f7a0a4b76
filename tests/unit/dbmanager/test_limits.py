"""What is refused before it reaches a database, and that the reason names the field."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbmanager.limits import check
from dbmanager.rows import NewRow, Origin, RefusedError, Report, database_time, rfc3339, split_time
from trialtap.points import format_time, parse_time

AT = database_time("2026-01-01T00:00:00Z")
GOOD = NewRow(*AT, "loss", "1")
ORIGIN = Origin("ns", "pod", "stream")

REFUSED = {
    "an empty trial name": (Report("", [GOOD]), "trial_name: is empty"),
    "a trial name of 256 characters": (
        Report("é" * 256, [GOOD]),
        "trial_name: has 256 characters; at most 255",
    ),
    "NUL in a trial name": (Report("a\0b", [GOOD]), "trial_name: holds a NUL character"),
    "an empty metric name": (
        Report("t", [GOOD, NewRow(*AT, "", "1")]),
        r"metric_logs\[1\].metric.name: is empty",
    ),
    "a metric name of 256 characters": (
        Report("t", [NewRow(*AT, "x" * 256, "1")]),
        r"observation_log.metric_logs\[0\].metric.name: has 256 characters",
    ),
    "NUL in a metric name": (Report("t", [NewRow(*AT, "\0", "1")]), r"\[0\].metric.name: holds a NUL"),
    "a value of 65,536 bytes": (
        Report("t", [GOOD, NewRow(*AT, "loss", "x" * 65_536)]),
        r"\[1\].metric.value: of metric 'loss' has 65536 bytes; at most 65535",
    ),
    "a value of 32,768 characters of two bytes": (
        Report("t", [NewRow(*AT, "loss", "é" * 32_768)]),
        "has 65536 bytes",
    ),
    "NUL in a value": (
        Report("t", [NewRow(*AT, "loss", "1\0")]),
        r"\[0\].metric.value: of metric 'loss' holds a NUL",
    ),
    "a namespace of 256 characters": (
        Report("t", [], ORIGIN._replace(namespace="n" * 256)),
        "origin.namespace: has 256 characters",
    ),
    "a pod of 256 characters": (Report("t", [], ORIGIN._replace(pod="n" * 256)), "origin.pod: has 256"),
    "an empty stream": (Report("t", [], ORIGIN._replace(stream="")), "origin.stream: must be 1-255"),
    "a blank in a stream": (Report("t", [], ORIGIN._replace(stream="a b")), "origin.stream: must be"),
    "a stream past ASCII": (Report("t", [], ORIGIN._replace(stream="é")), "origin.stream: must be"),
    "a stream of 256 characters": (
        Report("t", [], ORIGIN._replace(stream="s" * 256)),
        "origin.stream: must be",
    ),
    "an ordinal past 64 bits": (
        Report("t", [GOOD], ORIGIN._replace(first=2**63 - 1)),
        "origin.first: ordinals end",
    ),
}


@pytest.mark.parametrize(("report", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_with_a_reason(report: Report, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        check(report, {})


KEPT = {
    "255 characters of four bytes": Report("𝛼" * 255, [NewRow(*AT, "𝛼" * 255, "1")]),
    "65,535 bytes": Report("t", [NewRow(*AT, "loss", "é" * 32_767 + "x")]),
    "an empty value": Report("t", [NewRow(*AT, "loss", "")]),
    "no rows": Report("t", []),
    "rows without time": Report("t", [None, GOOD, None], ORIGIN, skipped=2),
    "no namespace and no pod": Report("t", [GOOD], Origin("", "", "s")),
}


@pytest.mark.parametrize("report", KEPT.values(), ids=KEPT.keys())
def test_it_is_kept(report: Report) -> None:
    check(report, {})


CHARACTERS = {
    "latin1 holds no Greek": ("cp1252", "α"),
    "latin1 holds no emoji": ("cp1252", "x😀"),
    "utf8mb3 holds no emoji": ("utf8mb3", "x😀"),
    "ascii holds no accent": ("ascii", "é"),
}


@pytest.mark.parametrize(("codec", "text"), CHARACTERS.values(), ids=CHARACTERS.keys())
def test_a_character_that_the_table_does_not_hold_is_refused_by_name(codec: str, text: str) -> None:
    for name, (column, report) in {
        "trial_name": ("trial_name", Report(text, [])),
        "metric_name": (r"\[1\].metric.name", Report("t", [None, NewRow(*AT, text, "1")], skipped=1)),
        "value": (r"\[0\].metric.value", Report("t", [NewRow(*AT, "m", text)])),
    }.items():
        with pytest.raises(
            RefusedError, match=rf"{column}: the character '{text[-1]}' .*--convert-character-set"
        ):
            check(report, {name: codec})
        check(report, {})


def test_what_the_table_holds_is_not_refused() -> None:
    check(
        Report("é", [NewRow(*AT, "ü€", "ß")]), dict.fromkeys(("trial_name", "metric_name", "value"), "cp1252")
    )
    check(
        Report("α", [NewRow(*AT, "שלום", "中")]),
        dict.fromkeys(("trial_name", "metric_name", "value"), "utf8mb3"),
    )


TIMES = {
    "2026-01-31T12:00:00Z": ("2026-01-31 12:00:00.000000", 0),
    "2026-01-31T12:00:00.5Z": ("2026-01-31 12:00:00.500000", 0),
    "2026-01-31T12:00:00.123456789Z": ("2026-01-31 12:00:00.123456", 789),
    "2026-01-31T12:00:00.9999999999Z": ("2026-01-31 12:00:00.999999", 999),
    "2026-01-31T12:00:00.1+02:00": ("2026-01-31 10:00:00.100000", 0),
    "2026-01-31t12:00:00z": ("2026-01-31 12:00:00.000000", 0),
    "2026-01-31 12:00:00.25": ("2026-01-31 12:00:00.250000", 0),
    "2026-12-31T23:59:60.5Z": ("2027-01-01 00:00:00.500000", 0),
    "0001-01-01T00:00:00Z": ("0001-01-01 00:00:00.000000", 0),
    "0999-01-01T00:00:00.000000001Z": ("0999-01-01 00:00:00.000000", 1),
    "9999-12-31T23:59:59.999999999Z": ("9999-12-31 23:59:59.999999", 999),
    "1969-12-31T23:59:59.999999999Z": ("1969-12-31 23:59:59.999999", 999),
}


@pytest.mark.parametrize(("text", "expected"), TIMES.items())
def test_a_time_is_stored_as_utc_cut_and_never_rounded(text: str, expected: tuple[str, int]) -> None:
    assert database_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "yesterday", "2026-01-31", "2026-02-30T00:00:00.5Z", "2026-01-31T25:00:00.5Z", "0000-01-01T00:00:00.5Z",
        "2026-01-31T12:00:00.Z", "2026-01-31T12:00:00.٣Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.5-01:00",
        "10000-01-01T00:00:00Z", "2026-01-31T12:00:00.5Z ",
    ],
)  # fmt: skip
def test_what_is_no_time_of_the_years_1_to_9999_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        database_time(text)


@given(st.integers(parse_time("0001-01-01T00:00:00Z"), parse_time("9999-12-31T23:59:59.999999999Z")))
def test_every_time_comes_back_as_it_went_in(moment: int) -> None:
    stored = split_time(moment)
    assert database_time(format_time(moment)) == stored
    assert rfc3339(*stored) == format_time(moment)
    assert len(stored[0]) == 26
