"""One measured value, and the reading and writing of its time. Standard library only.

Without datetime: each sidecar would pay 0.6 MiB for it, and writing a time would cost twice as much.
"""

import re
from typing import Final, NamedTuple

NANOSECONDS: Final = 1_000_000_000
YEAR_ONE: Final = -62_135_596_800 * NANOSECONDS
"""0001-01-01T00:00:00Z, the time of the row that says `unavailable`."""

_DAY: Final = 86_400
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
    day, second = divmod(seconds, _DAY)
    text = f"{_date(day)}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


_dates: dict[int, str] = {}


def _date(day: int) -> str:
    """Write a day, counted since 1970-01-01: rows come by the thousand, of few different days."""
    text = _dates.get(day)
    if text is None:
        if len(_dates) >= 64:
            _dates.clear()
        text = _dates[day] = "{:04d}-{:02d}-{:02d}".format(*_civil(day))
    return text


def _civil(day: int) -> tuple[int, int, int]:
    """Give year, month and day of a day counted since 1970-01-01 (proleptic Gregorian).

    Years are counted from March on, so that the leap day is a year's last.
    """
    era, day = divmod(day + 719_468, 146_097)  # eras of 400 years, from 0000-03-01
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year + (month <= 2), month, day + 1


def _days(year: int, month: int, day: int) -> int:
    """Count days from 1970-01-01; the inverse of `_civil`."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


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
    days = _days(int(year), int(month), int(day))
    clock = int(hour), int(minute), int(second)
    exists = 1 <= int(month) <= 12 and int(year) and _civil(days) == (int(year), int(month), int(day))
    if not exists or clock[0] > 23 or clock[1] > 59 or clock[2] > 60:  # RFC 3339 allows a leap second
        raise ValueError(f"{text!r} is no time that exists")
    seconds = days * _DAY + clock[0] * 3600 + clock[1] * 60 + clock[2]
    if sign:
        offset = int(zone_hour) * 3600 + int(zone_minute) * 60
        seconds += -offset if sign == "+" else offset
    nanoseconds = seconds * NANOSECONDS + int((fraction or "0")[:9].ljust(9, "0"))
    if not YEAR_ONE <= nanoseconds < 253_402_300_800 * NANOSECONDS:
        raise ValueError(f"{text!r} is not within the years 1-9999")
    return nanoseconds
