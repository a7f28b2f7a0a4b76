"""One measured value, and the reading and writing of its time. Standard library only."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

NANOSECONDS: Final = 1_000_000_000
YEAR_ONE: Final = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * NANOSECONDS
"""0001-01-01T00:00:00Z, the time of the row that says `unavailable`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s?(?:([Zz])|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)


class MetricPoint(NamedTuple):
    """A value of a metric at a time.

    Attributes:
        name: the metric's name as it was asked for.
        value: text, usually a number; `nan`, `inf` and `-inf` are kept as such.
        time: nanoseconds since 1970-01-01T00:00:00Z; negative before.
        step: training step or epoch, where the source told one.
    """

    name: str
    value: str
    time: int
    step: int | None = None


def format_time(nanoseconds: int) -> str:
    """RFC 3339 in UTC with as many fraction digits as are needed (0-9)."""
    seconds, fraction = divmod(nanoseconds, NANOSECONDS)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


def parse_time(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time; without a zone it is UTC.

    Digits past the ninth are cut off, not rounded. A blank may stand for the `T` and a comma
    for the fraction's point, as programs' logs have it.

    Raises:
        ValueError: the text is no such time, or its year is not 1-9999.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no RFC 3339 time such as 2026-01-31T12:00:00.5Z")
    year, month, day, hour, minute, second, fraction, _, sign, zone_hour, zone_minute = match.groups()
    leap = second == "60"  # RFC 3339 allows a leap second; datetime does not
    moment = datetime(
        int(year), int(month), int(day), int(hour), int(minute), 59 if leap else int(second), tzinfo=UTC
    )
    seconds = (moment - _EPOCH) // timedelta(seconds=1) + leap
    if sign:
        offset = int(zone_hour) * 3600 + int(zone_minute) * 60
        seconds += -offset if sign == "+" else offset
    nanoseconds = seconds * NANOSECONDS + int((fraction or "0")[:9].ljust(9, "0"))
    if not YEAR_ONE <= nanoseconds < 253_402_300_800 * NANOSECONDS:
        raise ValueError(f"{text!r} is not within the years 1-9999")
    return nanoseconds
