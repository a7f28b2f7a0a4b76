"""Rows, streams and reports as data, and the conversion of times between the wire and the tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from trialtap.points import MetricPoint, format_time, parse_time

NAME_CHARACTERS: Final = 255
"""Longest trial, metric, namespace and pod name: Katib's columns are varchar(255)."""
VALUE_BYTES: Final = 65_535
"""Longest value in bytes of UTF-8: what a TEXT column of MySQL holds; the same on all databases."""


class NewRow(NamedTuple):
    """A row to store, in the form in which every driver takes it.

    Attributes:
        time: naive UTC, `YYYY-MM-DD HH:MM:SS.ffffff`, years 1-9999; cut to microseconds, never rounded.
        ns: the part of the time below a microsecond, 0-999.
        name: the metric's name.
        value: text, usually a number.
        step: training step, where the source told one.
    """

    time: str
    ns: int
    name: str
    value: str
    step: int | None = None


class Row(NamedTuple):
    """A row as it was stored; `id` grows with every row stored, whatever its trial.

    Attributes:
        id: the table's key.
        time: naive UTC, `YYYY-MM-DD HH:MM:SS.ffffff`.
        ns: the part of the time below a microsecond, 0-999.
        name: the metric's name.
        value: text, usually a number; also `nan`, `inf`, `unavailable` or any string.
        step: training step or None.
        namespace: None when the writer did not say (Katib's own programs, a Push client).
        stream: the stream's id, or None likewise; `Store.streams` tells its pod and attempt.
    """

    id: int
    time: str
    ns: int
    name: str
    value: str
    step: int | None
    namespace: str | None
    stream: str | None

    @property
    def rfc3339(self) -> str:
        """The time as RFC 3339 in UTC with as many fraction digits as are needed (0-9)."""
        return rfc3339(self.time, self.ns)

    @property
    def nanoseconds(self) -> int:
        """The time in nanoseconds since 1970-01-01T00:00:00Z."""
        return parse_time(self.time) + self.ns

    @property
    def point(self) -> MetricPoint:
        """The row as the point that its writer saw."""
        return MetricPoint(self.name, self.value, self.nanoseconds, self.step)


class Origin(NamedTuple):
    """Which stream the rows of a report belong to, and where in it they stand."""

    namespace: str
    pod: str
    stream: str
    first: int = 0
    end: bool = False
    attempt: int = 0
    gap: bool = False


class Report(NamedTuple):
    """Rows of one trial, to be stored in one transaction.

    Attributes:
        trial_name: whose rows.
        rows: in the order of their ordinals; None takes an ordinal and stores nothing (it had no time).
        origin: None for writers that know no streams: their rows are appended as they come.
        namespace: for a writer without origin, where its token says it is; else None.
        skipped: how many of the rows are None.
    """

    trial_name: str
    rows: Sequence[NewRow | None]
    origin: Origin | None = None
    namespace: str | None = None
    skipped: int = 0


class Outcome(NamedTuple):
    """What became of a report: how many rows were stored now, and the ordinal expected next (0: no stream)."""

    stored: int
    next: int
    tombstone: bool = False
    lost: int = 0
    """Rows that the writer declared lost by `gap`."""


class Stream(NamedTuple):
    """One source of one pod. Times are milliseconds since 1970, None where it has not happened."""

    id: str
    namespace: str
    trial_name: str
    pod: str
    attempt: int
    next: int
    ended_at: int | None
    seen_at: int
    deleted_at: int | None


class TrialKey(NamedTuple):
    """A trial that has rows or live streams; namespace None when nobody said."""

    namespace: str | None
    name: str


@dataclass(frozen=True)
class Selection:
    """Which rows to read. Everything given must hold; bounds are inclusive; nothing given = the whole trial.

    Attributes:
        trial_name: compared byte by byte.
        namespace: None when the reader does not know it: answered when at most one holds the trial.
        metrics: names; empty = all.
        start: nanoseconds since 1970.
        end: nanoseconds since 1970.
        first_step: rows without a step do not match a bound on steps.
        last_step: see first_step.
        streams: stream ids; rows without stream do not match; empty = all.
        after: only rows with a greater id (for live readers).
        limit: at most so many rows.
        by_id: rows in the order of their id instead of (time, ns, id): for live readers and export.
    """

    trial_name: str
    namespace: str | None = None
    metrics: Sequence[str] = ()
    start: int | None = None
    end: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    streams: Sequence[str] = ()
    after: int | None = None
    limit: int | None = None
    by_id: bool = False


@dataclass(frozen=True)
class MetricSummary:
    """What a metric of a trial came to.

    Attributes:
        name: the metric.
        count: rows of it, `unavailable` and non-finite ones included.
        min: text of the least finite number, None without one; `max` likewise.
        max: see min.
        latest: value of the newest row; of equal times the later row.
        first_time: RFC 3339.
        last_time: RFC 3339.
        first_step: least step, None without steps.
        last_step: greatest step.
    """

    name: str
    count: int
    min: str | None
    max: str | None
    latest: str
    first_time: str
    last_time: str
    first_step: int | None
    last_step: int | None


class StoreError(Exception):
    """Any answer of the store that is not what was asked for; its text is for the caller."""


class RefusedError(StoreError):
    """The request can never be stored: which field, and why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class BehindError(StoreError):
    """The stream's writer is ahead of what was stored: it must go on from `next`, or declare a gap."""

    def __init__(self, stream: str, first: int, expected: int) -> None:
        super().__init__(
            f"origin.first: stream {stream} is stored up to ordinal {expected}, the report begins at {first}; "
            f"send from {expected}, or set origin.gap when the rows between are lost"
        )
        self.next = expected


class AmbiguousError(StoreError):
    """Several namespaces hold a trial of that name and the request names none."""

    def __init__(self, trial_name: str, namespaces: Sequence[str]) -> None:
        super().__init__(
            f"trial {trial_name} is held by the namespaces {', '.join(namespaces)}; name one of them in `namespace`"
        )
        self.namespaces = tuple(namespaces)


class UnavailableError(StoreError):
    """The database did not do it now (down, restarting, disk full); the same request may be sent again."""


@lru_cache(maxsize=4096)
def _database_second(prefix: str) -> str | None:
    """`YYYY-MM-DDTHH:MM:SS` as the tables have it; None for what the whole time must be parsed for.

    That is a leap second, which moves on to the next, and what is no time.
    """
    try:
        return None if prefix[17:] == "60" else _database_text(parse_time(prefix))[:19]
    except ValueError:
        return None


def _database_text(nanoseconds: int) -> str:
    text = format_time(nanoseconds).rstrip("Z")
    return f"{text[:10]} {text[11:19]}.{text[20:26].ljust(6, '0')}"


def database_time(text: str) -> tuple[str, int]:
    """An RFC 3339 time as the tables have it: naive UTC text cut to microseconds, and the rest in ns.

    Rows that follow each other mostly share their second, so the common form (`Z`, fraction) costs a
    look-up and two slices instead of a parse.

    Raises:
        ValueError: no RFC 3339 time, or its year is not 1-9999.
    """
    if text[-1:] == "Z" and text[19:20] == "." and text[10:11] == "T":
        fraction = text[20:-1]
        if fraction.isdecimal() and fraction.isascii():
            second = _database_second(text[:19])
            if second is not None:
                digits = fraction + "000000000"
                return f"{second}.{digits[:6]}", int(digits[6:9])
    return split_time(parse_time(text))


def split_time(nanoseconds: int) -> tuple[str, int]:
    """Nanoseconds since 1970 as the tables have them: naive UTC text, and the part below microseconds."""
    return _database_text(nanoseconds), nanoseconds % 1000


def rfc3339(time: str, ns: int) -> str:
    """The tables' time as RFC 3339 in UTC with as many fraction digits as are needed (0-9)."""
    fraction = f"{time[20:]}{ns:03d}".rstrip("0")
    return f"{time[:10]}T{time[11:19]}.{fraction}Z" if fraction else f"{time[:10]}T{time[11:19]}Z"
