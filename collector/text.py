r"""Text: finds `name=value` or what the user's patterns say, in lines that end in LF or CR.

Katib's default pattern is `([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)`. Matching it at every place of
every line is what makes it slow; here each asked-for name is looked for as plain bytes in a whole chunk, and
only at a hit the rest of the pattern is tried.

| | Katib | here |
|---|---|---|
| names | `[\w\|-]+`, compared with those asked for | those asked for, literally: blanks, signs and any script too |
| `nan`, `inf` | an empty value | values |
| `1,234.5`, `5.` | 1, 5 | 1234.5, 5 |
| a line without a time | year 1 | the time of observation |
| CR | part of the line | ends a line |
| colours | part of the line | taken out first |
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from collector import timestamps
from collector.source import Findings, Stamp, State
from trialtap.points import MetricPoint

CHUNK: Final = 1 << 16
LONGEST_LINE: Final = 8 << 20
"""Bytes of a line at most; what is longer is cut there, as if the line ended."""
SPARSE: Final = 2048
"""Bytes for each `=` and asked-for name from which on the `=` are looked for instead of the names."""
SAMPLE: Final = 1 << 17
"""Bytes in which other names are looked for, for the message that says what was there instead."""

_COLOUR: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_ESCAPES: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BLANK: Final = rb"[ \t\f]*"
_NUMBER: Final = rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[Ee][+-]?\d+)?"
_WORD: Final = rb"[+-]?(?:nan|inf(?:inity)?)(?![\w|-])"
# Group 1: a number; 2: one that what follows makes doubtful; 3: nan or inf. Atomic, so that no part of a
# number is ever taken for a number.
_VALUE: Final = re.compile(
    _BLANK
    + rb"="
    + _BLANK
    + rb"(?:((?>"
    + _NUMBER
    + rb"))(?![,_xX])|("
    + _NUMBER
    + rb")|((?i:"
    + _WORD
    + rb")))?"
)
_GROUPED: Final = re.compile(rb"([+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[Ee][+-]?\d+)?)(?![\d,.])")
"""A number with thousands set off by commas, whole."""
_STEP: Final = re.compile(
    rb"(?<![\w|-])(?:global_)?step" + _BLANK + rb"=" + _BLANK + rb"(\d{1,18})(?:\.0*)?(?![\w.])"
)
_EPOCH: Final = re.compile(rb"(?<![\w|-])epoch" + _BLANK + rb"=" + _BLANK + rb"(\d{1,18})(?:\.0*)?(?![\w.])")
_BLANKS: Final = frozenset(b" \t\f")
_NOT_BEFORE: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_|-")

_EMPTY = "name= without a number"
_COMMA = "number with a comma that does not set off thousands"
_LONG = "line longer than 8 MiB, cut"


def compile_filters(filters: Sequence[str]) -> tuple["Pattern", ...]:
    """Compile `-f` values: each is one pattern, or several joined by `;` as Katib writes them.

    One is split at `;` only if every piece is a pattern with two groups of its own.

    Raises:
        ValueError: one is no RE2 pattern, or has fewer than two groups.
    """
    patterns: list[Pattern] = []
    for text in filters:
        pieces = text.split(";")
        if len(pieces) > 1:
            try:
                patterns += [_compile(piece) for piece in pieces]
                continue
            except ValueError:
                pass
        patterns.append(_compile(text))
    return tuple(patterns)


class Pattern(NamedTuple):
    """A compiled RE2 pattern over bytes, and how it was written."""

    text: str
    compiled: "re.Pattern[bytes]"


def _compile(text: str) -> Pattern:
    import re2  # noqa: PLC0415 - 3 MiB that only custom patterns need

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(text.encode(), options)
    except re2.error as error:
        detail = error.args[0] if error.args else "?"
        reason = detail.decode(errors="replace") if isinstance(detail, bytes) else detail
        raise ValueError(f"-f {text!r} is no RE2 pattern: {reason}") from None
    if compiled.groups < 2:
        raise ValueError(f"-f {text!r}: a pattern needs two groups, the metric's name and its value")
    return Pattern(text, compiled)


class _Lines:
    """What both parsers share: where lines end, colours, and what a line says of time and step."""

    __slots__ = ("_encoded", "_findings", "_missing", "_names", "_sample", "_stamp")

    def __init__(self, names: Sequence[str], stamp: Stamp, findings: Findings) -> None:
        self._names = tuple(sorted(names, key=len, reverse=True))
        self._encoded = tuple((name.encode(), name) for name in self._names)
        self._missing = set(names)
        self._stamp = stamp
        self._findings = findings
        self._sample = SAMPLE

    def state(self) -> State:
        """See `Parser`: a line needs nothing of the one before it."""
        return {}

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricPoint]]:
        """See `Parser`."""
        used = len(data)
        if not final:
            used = data.rfind(b"\n") + 1
            used = data.rfind(b"\r", used) + 1 or used
            if not used:
                if len(data) < LONGEST_LINE:
                    return 0, []
                used = len(data)
                self._findings.skip(_LONG)
        text = data if used == len(data) else data[:used]
        if b"\x1b" in text:
            text = _plain(text)
        points = self._points(text)
        if self._missing and self._sample > 0:
            self._look(text, points)
        return used, points

    def _points(self, text: bytes) -> list[MetricPoint]:
        raise NotImplementedError

    def _look(self, text: bytes, points: list[MetricPoint]) -> None:
        """While an asked-for name has not appeared, note which others do."""
        self._missing.difference_update(point.name for point in points)
        if not self._missing:
            return
        from collector.seen import look  # noqa: PLC0415

        piece = text[: self._sample]
        self._sample -= len(piece)
        for line in piece.decode("utf-8", "replace").replace("\r", "\n").split("\n"):
            if line:
                look(line, self._names, self._findings)


def _plain(text: bytes) -> bytes:
    """Take colours and other escape sequences out.

    A program uses few different ones, and taking one out everywhere at once is ten times as fast as
    matching each.
    """
    for _ in range(8):
        match = _COLOUR.search(text)
        if match is None:
            break
        text = text.replace(match[0], b"")
        if b"\x1b" not in text:
            return text
    return _ESCAPES.sub(b"", text)


def _step(text: bytes, begin: int, end: int) -> int | None:
    if text.find(b"step", begin, end) >= 0 and (match := _STEP.search(text, begin, end)):
        return int(match[1])
    if text.find(b"epoch", begin, end) >= 0 and (match := _EPOCH.search(text, begin, end)):
        return int(match[1])
    return None


class NameParser(_Lines):
    """The default pattern, for the names asked for."""

    __slots__ = ("_nested",)

    def __init__(self, names: Sequence[str], stamp: Stamp, findings: Findings) -> None:
        super().__init__(names, stamp, findings)
        self._nested = any(a is not b and a in b for a in self._names for b in self._names)

    def _points(self, text: bytes) -> list[MetricPoint]:
        hits: list[tuple[int, str, str]] = []
        taken: list[tuple[int, int]] = []  # what longer names have matched, where names hold one another
        ends = _name_ends(text, len(text) * len(self._encoded) // SPARSE)
        for encoded, name in self._encoded:
            places: Iterable[int] = (
                _places(text, encoded)
                if ends is None
                else [end - len(encoded) for end in ends if text.endswith(encoded, 0, end)]
            )
            self._hits(text, places, (encoded, name), hits, taken)
        if not hits:
            return []
        if len(self._encoded) > 1:
            hits.sort()
        return self._lines(text, hits)

    def _hits(
        self,
        text: bytes,
        places: Iterable[int],
        wanted: tuple[bytes, str],
        hits: list[tuple[int, str, str]],
        taken: list[tuple[int, int]],
    ) -> None:
        encoded, name = wanted
        match, add, length, nested = _VALUE.match, hits.append, len(encoded), self._nested
        covered = sorted(taken)
        for here in places:
            found = match(text, here + length)
            if found is None:
                continue
            if here:
                before = text[here - 1]
                if before in _NOT_BEFORE or (before >= 0x80 and _letter_before(text, here)):
                    continue
            if covered and _inside(covered, here):
                continue
            if found.lastindex == 1:
                value = found[1].decode()
                if value[-1] == ".":
                    value = value[:-1]
            else:
                other = self._other(text, found)
                if other is None:
                    continue
                value = other
            add((here, name, value))
            if nested:
                taken.append((here, found.end()))

    def _other(self, text: bytes, found: "re.Match[bytes]") -> str | None:
        """Read a value that is no plain number; count it where it cannot be read."""
        _, number, word = found.groups()
        if word is not None:
            return _special(word)
        if number is None:
            self._findings.skip(_EMPTY)
            return None
        end = found.end()
        if number.lstrip(b"+-").isdigit():
            follow = text[end : end + 2]
            if follow[:1] in b",_" and follow[1:].isdigit():
                grouped = _GROUPED.match(text, found.start(2))
                if grouped is None:
                    self._findings.skip(_COMMA)
                    return None
                number = grouped[1].replace(b",", b"")
            elif follow[:1] in b"xX" and number.lstrip(b"+-") == b"0":
                self._findings.skip("hexadecimal number")
                return None
        return number.decode().removesuffix(".")

    def _lines(self, text: bytes, hits: list[tuple[int, str, str]]) -> list[MetricPoint]:
        """Give each hit the time and the step of its line."""
        points: list[MetricPoint] = []
        stamp, find, rfind = self._stamp, text.find, text.rfind
        new, add = tuple.__new__, points.append
        returns = b"\r" in text
        end = -1
        step: int | None = None
        read: int | None = None
        time = lines = 0
        first = ""
        here: set[str] | None = None
        for at, name, value in hits:
            if at > end:
                begin = rfind(b"\n", end + 1, at) + 1 or end + 1
                end = find(b"\n", at)
                if end < 0:
                    end = len(text)
                if returns:
                    begin = rfind(b"\r", begin, at) + 1 or begin
                    back = find(b"\r", at, end)
                    end = end if back < 0 else back
                step = _step(text, begin, end)
                read = timestamps.at_start(text, begin, end)
                time = stamp.next() if read is None else read
                lines += 1
                first, here = name, None
            else:
                here = here or {first}
                if name in here and read is None:
                    stamp.last = time = stamp.last + 1000
                here.add(name)
            add(new(MetricPoint, (name, value, time, step)))
        self._findings.lines += lines
        return points


def _name_ends(text: bytes, most: int) -> list[int] | None:
    """Find where names before `=` end; None where there are more than `most`.

    One byte is found ten times as fast as a name, so this is the way where `=` is rare.
    """
    if text.count(b"=") > most:
        return None
    ends: list[int] = []
    at = text.find(b"=")
    while at >= 0:
        end = at
        while end and text[end - 1] in _BLANKS:
            end -= 1
        ends.append(end)
        at = text.find(b"=", at + 1)
    return ends


def _places(text: bytes, encoded: bytes) -> Iterator[int]:
    """Find where a name stands, overlaps too."""
    at = text.find(encoded)
    while at >= 0:
        yield at
        at = text.find(encoded, at + 1)


def _letter_before(text: bytes, at: int) -> bool:
    """Say whether the character that ends at `at` is a letter, of any script, or a mark on one."""
    begin = at - 1
    while begin > at - 4 and begin and text[begin] & 0xC0 == 0x80:
        begin -= 1
    before = text[begin:at].decode("utf-8", "replace")
    return before.isalpha() or "\u0300" <= before <= "\u036f"


def _inside(spans: list[tuple[int, int]], at: int) -> bool:
    """Say whether a place lies in one of the sorted spans."""
    from bisect import bisect_right  # noqa: PLC0415

    index = bisect_right(spans, (at, 1 << 62)) - 1
    # Spans of names of several lengths may hold one another, so the nearest few are looked at.
    return any(begin <= at < end for begin, end in spans[max(0, index - 3) : index + 1])


def _special(word: bytes) -> str:
    """Write `nan`, `inf` or `-inf` the one way that all readers know."""
    text = word.decode("ascii").lower()
    if "nan" in text:
        return "nan"
    return "-inf" if text.startswith("-") else "inf"


class PatternParser(_Lines):
    """The user's RE2 patterns, tried on the lines that hold an asked-for name: no other can match."""

    __slots__ = ("_patterns", "_wanted")

    def __init__(
        self, names: Sequence[str], patterns: Sequence[Pattern], stamp: Stamp, findings: Findings
    ) -> None:
        super().__init__(names, stamp, findings)
        self._wanted = dict(self._encoded)
        self._patterns = tuple(pattern.compiled for pattern in patterns)

    def _points(self, text: bytes) -> list[MetricPoint]:
        points: list[MetricPoint] = []
        for begin, end in self._candidates(text):
            found = self._matches(text[begin:end])
            if not found:
                continue
            self._findings.lines += 1
            step = _step(text, begin, end)
            read = timestamps.at_start(text, begin, end)
            time = self._stamp.next() if read is None else read
            here: set[str] = set()
            for name, value in found:
                if name in here and read is None:
                    self._stamp.last = time = self._stamp.last + 1000
                here.add(name)
                points.append(MetricPoint(name, value, time, step))
        return points

    def _candidates(self, text: bytes) -> list[tuple[int, int]]:
        """Find the lines that hold one of the names."""
        returns = b"\r" in text
        lines: dict[int, int] = {}
        for encoded, _ in self._encoded:
            end = -1
            while (at := text.find(encoded, end + 1)) >= 0:
                begin = text.rfind(b"\n", end + 1, at) + 1 or end + 1
                if returns:
                    begin = text.rfind(b"\r", begin, at) + 1 or begin
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                if returns:
                    back = text.find(b"\r", at, end)
                    end = end if back < 0 else back
                lines[begin] = end
        return sorted(lines.items())

    def _matches(self, line: bytes) -> list[tuple[str, str]]:
        if not line.isascii():
            line = line.decode("utf-8", "replace").encode()  # RE2 matches no byte that is not UTF-8
        found: list[tuple[str, str]] = []
        taken: set[tuple[int, int]] = set()
        for pattern in self._patterns:
            at, last = 0, max(line.rfind(encoded) for encoded in self._wanted)
            # Behind the last place where a name stands nothing can match: a failing search costs the most.
            while at <= last and (match := pattern.search(line, at)):
                at = match.end() if match.end() > at else at + 1
                begin, end = match.span(1)
                name = self._wanted.get(line[begin:end].strip()) if begin >= 0 else None
                value_at = match.span(2)
                if name is None or value_at[0] < 0 or (begin, value_at[0]) in taken:
                    continue
                taken.add((begin, value_at[0]))
                value = self._value(line, *value_at)
                if value is not None:
                    found.append((name, value))
        return found

    def _value(self, line: bytes, begin: int, end: int) -> str | None:
        value = line[begin:end].strip()
        if not value:
            self._findings.skip("empty value")
            return None
        if (
            line[end : end + 1] == b","
            and line[end + 1 : end + 2].isdigit()
            and value.lstrip(b"+-").isdigit()
        ):
            grouped = _GROUPED.match(line, begin)
            if grouped is None:
                self._findings.skip(_COMMA)
                return None
            return grouped[1].replace(b",", b"").decode("ascii")
        if value[-1:] == b"%" and re.fullmatch(_NUMBER, value[:-1].rstrip()):
            value = value[:-1].rstrip()
        if b"," in value and _GROUPED.fullmatch(value):
            value = value.replace(b",", b"")
        return value.decode("utf-8", "replace")
