"""Times at the start of a log line: RFC 3339 and what logging libraries make of it. Pure."""

import re
from typing import Final

from trialtap.points import NANOSECONDS, parse_time

_AT_START: Final = re.compile(
    rb"[ \t]*[\[(<]?"
    rb"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)"  # the day, the time of day
    rb"(?:[.,](\d+))?"  # a fraction of the second
    rb"( ?(?:[Zz]|[+-]\d\d:?\d\d))?"  # a zone; without, it is UTC
    rb"(?![\w.+-])"
)
_FIRST: Final = frozenset(b"0123456789[(< \t")

_SECOND: Final = NANOSECONDS
_days: dict[bytes, int | None] = {}
_zones: dict[bytes | None, int] = {None: 0}
"""Days and zones as they are written -> nanoseconds: lines share them, and reading a date is dear."""


def at_start(data: bytes, begin: int, end: int) -> int | None:
    """Read the time with which the line `data[begin:end]` begins, `[…]` around it or not.

    Returns:
        Nanoseconds since 1970; None where the line does not begin with a time that exists.
    """
    if begin >= end or data[begin] not in _FIRST:
        return None
    match = _AT_START.match(data, begin, end)
    if match is None:
        return None
    day, hours, minutes, seconds, fraction, zone = match.groups()
    midnight = _days.get(day, 0) or _day(day)
    hour, minute, second = int(hours), int(minutes), int(seconds)
    if midnight is None or hour > 23 or minute > 59 or second > 60:  # RFC 3339 knows leap seconds
        return None
    offset = _zones.get(zone)
    if offset is None:
        offset = _zone(zone)
    whole = midnight + (hour * 3600 + minute * 60 + second - offset) * _SECOND
    return whole + int(fraction[:9].ljust(9, b"0")) if fraction else whole


def _day(day: bytes) -> int | None:
    try:
        midnight = parse_time(day.decode("ascii") + "T00:00:00Z")
    except ValueError:
        return None
    if len(_days) >= 64:
        _days.clear()
    _days[day] = midnight
    return midnight


def _zone(zone: bytes) -> int:
    """Give the seconds by which a zone is ahead of UTC."""
    digits = zone.strip().replace(b":", b"")
    sign = {b"+": 1, b"-": -1}.get(digits[:1], 0)
    ahead = sign * (int(digits[1:3]) * 3600 + int(digits[3:5]) * 60) if sign else 0
    if len(_zones) < 64:
        _zones[zone] = ahead
    return ahead
