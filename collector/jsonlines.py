"""JSON lines -> points: one object a line, or one pretty-printed object; whatever else stands there is skipped."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from collector.source import Findings, Stamp, State
from trialtap.points import NANOSECONDS, MetricPoint, parse_time

TIME_KEY: Final = "timestamp"
STEP_KEYS: Final = ("step", "global_step", "epoch")
LIMIT: Final = 1 << 20
"""Bytes that one record may have; a longer one is skipped, so that memory stays bounded."""

_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[Ee][+-]?\d+)?", re.ASCII)
_NON_FINITE: Final = {
    "nan": "nan",
    "inf": "inf",
    "+inf": "inf",
    "-inf": "-inf",
    "infinity": "inf",
    "+infinity": "inf",
    "-infinity": "-inf",
}
_BOM: Final = b"\xef\xbb\xbf"
# Epoch times by their digits before the point: seconds have 10 of them until the year 2286.
_EPOCH_UNITS: Final = ((11, 1), (14, 1_000), (17, 1_000_000), (20, 1_000_000_000))
_YEAR_10000: Final = 253_402_300_800 * NANOSECONDS


class _Number(str):
    """A JSON number, kept as it was written: nothing is rounded."""

    __slots__ = ()


class JsonLines:
    """Parser of a file of JSON objects.

    A value is a number, a numeric string, or `NaN`, `Infinity`, `-Infinity` (with or without quotes).
    A name is looked for as a key, then as a dotted path into nested objects, the longest literal key
    first. `timestamp` is RFC 3339 or seconds (or milli-, micro-, nanoseconds) since 1970; without a
    readable one the time of observation counts. The step is `step` or `global_step`, else `epoch`,
    where it is a whole number.

    What is no JSON object, or is longer than `LIMIT`, is skipped and counted.
    """

    def __init__(self, names: Sequence[str], stamp: Stamp, findings: Findings, sample: int = 2_000) -> None:
        """Begin.

        Args:
            names: metrics to look for.
            stamp: times for records without one.
            findings: where what went by is noted.
            sample: how many records' names are noted.
        """
        self._names = tuple(names)
        self._stamp = stamp
        self._findings = findings
        self._sample = sample
        # What a number is written as is what is reported: no float is ever made of it.
        self._decode = json.JSONDecoder(
            parse_float=_Number, parse_int=_Number, parse_constant=_Number
        ).raw_decode
        self._examined = 0

    def state(self) -> State:
        """Nothing: a record depends on no other."""
        return {}

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricPoint]]:
        """Read whole records from the start of `data`; see `collector.source.Parser`."""
        points: list[MetricPoint] = []
        position = 0
        while position < len(data):
            end = data.find(b"\n", position)
            if end < 0:
                if not final and len(data) - position < LIMIT:
                    break
                end = len(data)
            line = data[position:end].removeprefix(_BOM).strip(b" \t\r")
            if line == b"{":
                used = self._spread(data, position, final, points)
                if used == 0:
                    break
                position += used
                continue
            if line:
                self._line(line, points)
            position = end + 1
        return min(position, len(data)), points

    def _line(self, line: bytes, points: list[MetricPoint]) -> None:
        if not line.startswith(b"{"):
            self._findings.skip("no JSON object")
            return
        if len(line) > LIMIT:
            self._findings.skip("longer than 1 MiB")
            return
        text = line.decode("utf-8", "surrogateescape")
        try:
            record, end = self._decode(text)
        except (ValueError, RecursionError):
            self._findings.skip("no whole JSON object")
            return
        if end < len(text):
            self._findings.skip("more than one JSON object on a line")  # two writers at once, as a rule
            return
        self._record(record, points)

    def _spread(self, data: bytes, start: int, final: bool, points: list[MetricPoint]) -> int:
        """Read an object whose `{` has a line of its own; 0: more of it must come first.

        What turns out to be no object is skipped up to the line with the fault, never further: reading
        stays linear in the input, and a good record behind a torn one is found.
        """
        end = len(data) if final else data.rfind(b"\n", start) + 1
        end = min(end, start + LIMIT)
        # Parsing anew with every line that arrives would be quadratic: wait for the closing brace, or
        # for half as much again.
        if not final and end - start < LIMIT:
            closed = data.find(b"\n}", max(start, start + self._examined - 2), end) >= 0
            if not closed and end - start < self._examined * 3 // 2:
                return 0
        piece = data[start:end]
        text = piece.decode("utf-8", "surrogateescape")
        begin = text.index("{")
        try:
            record, stop = self._decode(text, begin)
        except json.JSONDecodeError as error:
            if error.pos >= len(text.rstrip()) and not final and len(piece) < LIMIT:
                self._examined = len(piece)  # a good beginning so far
                return 0
            fault = len(text[: error.pos].encode("utf-8", "surrogateescape"))
        except RecursionError:
            fault = len(piece)
        else:
            self._examined = 0
            self._record(record, points)
            rest = data.find(b"\n", start + len(text[:stop].encode("utf-8", "surrogateescape")))
            return (len(data) if rest < 0 else rest + 1) - start
        self._examined = 0
        self._findings.skip("no whole JSON object")
        first = data.index(b"\n", start) + 1 - start if b"\n" in piece else len(piece)
        return max(first, data.rfind(b"\n", start, start + fault) + 1 - start)

    def _record(self, record: dict[str, Any], points: list[MetricPoint]) -> None:
        if self._sample:
            self._sample -= 1
            for name in _flat(record):
                self._findings.saw(name)
        found = []
        for name in self._names:
            value = _value(_find(record, name))
            if value is not None:
                found.append((name, value))
        if not found:
            return
        self._findings.lines += 1
        time = _time(record.get(TIME_KEY))
        if time is None:
            time = self._stamp.next()
        step = _step(record)
        points += [MetricPoint(name, value, time, step) for name, value in found]


def _find(record: dict[str, Any], name: str) -> object:
    """Look a dotted name up: as a key, then below the longest part of it that is a key; None: not there."""
    if name in record:
        return record[name]
    cut = name.rfind(".")
    while cut > 0:
        inner = record.get(name[:cut])
        if isinstance(inner, dict):
            found = _find(inner, name[cut + 1 :])
            if found is not None:
                return found
        cut = name.rfind(".", 0, cut)
    return None


def _value(found: object) -> str | None:
    """Read a metric's value; None for what is no number."""
    if not isinstance(found, str):
        return None  # null, a boolean, an object, an array
    text = found.strip()
    if _NUMBER.fullmatch(text):
        return text
    return _NON_FINITE.get(text.casefold())


def _time(found: object) -> int | None:
    """Read a timestamp in nanoseconds since 1970; None for what is none."""
    if not isinstance(found, str):
        return None
    text = found.strip()
    if _NUMBER.fullmatch(text) is None:
        try:
            return parse_time(text)
        except ValueError:
            return None
    if "e" in text or "E" in text:
        text = f"{float(text):.9f}"  # too large a number is `inf`, which the next lines refuse
    whole, _, fraction = text.removeprefix("+").partition(".")
    parts = next((parts for digits, parts in _EPOCH_UNITS if len(whole) <= digits), 0)
    if not parts or not whole.isdigit():
        return None
    time = int(whole) * (NANOSECONDS // parts) + int(fraction[:9].ljust(9, "0")) // parts
    return time if time < _YEAR_10000 else None


def _step(record: dict[str, Any]) -> int | None:
    for key in STEP_KEYS:
        found = record.get(key)
        if isinstance(found, str) and len(found) < 32 and _NUMBER.fullmatch(found):
            number = float(found)
            if number.is_integer() and abs(number) < 2**63:
                return int(found) if found.lstrip("+-").isdigit() else int(number)
    return None


def _flat(record: dict[str, Any], prefix: str = "", depth: int = 3) -> Iterator[str]:
    """List the names under which a record holds numbers, nested ones by their dotted path."""
    for key, value in record.items():
        if _value(value) is not None:
            yield prefix + key
        elif isinstance(value, dict) and depth:
            yield from _flat(value, f"{prefix}{key}.", depth - 1)
