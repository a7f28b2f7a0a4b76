"""Times at the start of a log line: RFC 3339 and what logging libraries make of it. Pure."""

import re
from typing import Final

from trialtap.points import NANOSECONDS, parse_time

_AT_START: Final = re.compile(
    rb"[ \t]*[\[(<]?"
    rb"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)"  # the day, the time of day
    rb"(?:[.,](\d+))?"  # a fraction of the second
    rb"( ?(?:[Zz]|[+-]\d\d:?\d\d))?"  # a zone; without, it is UTC
    rb"(?![\w.+-])"
)
_FIRST: Final = frozenset(b"0123456789[(< \t")

_cache: dict[bytes, int] = {}
"""Second and zone, as they are written -> nanoseconds: many lines share a second, and parsing is dear."""


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
    day, clock, fraction, zone = match.groups()
    key = day + b"T" + clock + (zone.strip() if zone else b"")
    whole = _cache.get(key)
    if whole is None:
        try:
            whole = parse_time(key.decode("ascii"))
        except ValueError:
            return None
        if len(_cache) >= 64:
            _cache.clear()
        _cache[key] = whole
    return whole + int(fraction[:9].ljust(9, b"0")) if fraction else whole


def seconds(nanoseconds: int) -> float:
    """Give seconds since 1970."""
    return nanoseconds / NANOSECONDS
