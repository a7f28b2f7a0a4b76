"""What a reader over gRPC gets to see of a trial's rows; the one place of Katib's peculiarities; pure.

Katib's controller, algorithms and median stop read *with* `metric_name`; its UI and SDK without.

| | with metric_name | without |
|---|---|---|
| a stream is open and was heard of within 60 s | nothing: Katib's controller asks again each second, and would take what is there for the whole | everything, live |
| rows of an attempt that was retried | left out | kept |
| `nan`, `inf` | left out: a first `nan` would freeze Katib's min and max | kept |
| `unavailable` | hidden once the metric has a number | left out: Katib's UI answers it with an error page |
| an answer past the clients' 4 MB | thinned | thinned |
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from math import isfinite
from typing import Final

from dbmanager.rows import Row, Stream
from trialtap.names import UNAVAILABLE

HEARD_MS: Final = 60_000
"""An open stream unheard of for longer holds nothing back: its collector is dead."""
ANSWER_BYTES: Final = 4 * 1024 * 1024 - 1024
"""gRPC clients refuse messages past 4 MiB by default; a little stays for the reply's other fields."""
FIRST_ROWS: Final = 1_000


def is_open(streams: Iterable[Stream], now_ms: int) -> bool:
    """Whether rows of the trial are still to be expected."""
    return any(stream.ended_at is None and now_ms - stream.seen_at <= HEARD_MS for stream in streams)


def superseded(streams: Collection[Stream]) -> frozenset[str]:
    """The streams of every attempt but the newest."""
    newest = max((stream.attempt for stream in streams), default=0)
    return frozenset(stream.id for stream in streams if stream.attempt < newest)


def of_metric(rows: Iterable[Row], left_out: frozenset[str]) -> Iterator[Row]:
    """What a reader with `metric_name` gets, in order; `left_out` = superseded streams.

    An `unavailable` row comes out last when the metric has no number; its time says it was the first.
    """
    unavailable: Row | None = None
    seen_number = False
    for row in rows:
        if row.stream in left_out:
            continue
        if row.value == UNAVAILABLE:
            unavailable = unavailable or row
            continue
        try:
            if not isfinite(float(row.value)):
                continue
            seen_number = True
        except ValueError:
            pass  # a string such as DARTS' Genotype(...) is a value like any other
        yield row
    if unavailable is not None and not seen_number:
        yield unavailable


def of_all(rows: Iterable[Row]) -> Iterator[Row]:
    """What a reader without `metric_name` gets."""
    return (row for row in rows if row.value != UNAVAILABLE)


class Thinner:
    """Keeps the first rows, each metric's least and greatest, and the last ones, within a size.

    Memory is bounded by the size, whatever is fed. Rows come out in the order in which they were fed.
    """

    def __init__(self, limit: int = ANSWER_BYTES) -> None:
        self._limit = limit
        self._first: list[Row] = []
        self._first_bytes = 0
        self._last: deque[tuple[int, int, Row]] = deque()
        self._last_bytes = 0
        self._extremes: dict[str, list[tuple[float, int, int, Row]]] = {}
        self.fed = 0
        self.dropped = 0

    def add(self, row: Row) -> None:
        """Take one row in."""
        size = _size(row)
        index, self.fed = self.fed, self.fed + 1
        if len(self._first) == index < FIRST_ROWS and self._first_bytes + size <= self._limit // 4:
            self._first.append(row)
            self._first_bytes += size
        else:
            self._last.append((index, size, row))
            self._last_bytes += size
            while self._first_bytes + self._last_bytes > self._limit:
                self._drop()

    def _drop(self) -> None:
        index, size, row = self._last.popleft()
        self._last_bytes -= size
        self.dropped += 1
        try:
            value = float(row.value)
        except ValueError:
            return
        if not isfinite(value):
            return
        known = self._extremes.get(row.name)
        entry = (value, index, size, row)
        if known is None:
            self._extremes[row.name] = [entry, entry]
        elif value < known[0][0]:
            known[0] = entry
        elif value > known[1][0]:
            known[1] = entry

    def rows(self) -> list[Row]:
        """What stays; call once, at the end."""
        if not self.dropped:
            return self._first + [row for _, _, row in self._last]
        # The extremes take room from the last rows, at most a quarter of it.
        while self._last and self._first_bytes + self._last_bytes > self._limit * 3 // 4:
            self._drop()
        kept: dict[int, Row] = {}
        room = self._limit - self._first_bytes - self._last_bytes
        in_reach = self._reachable()
        for _, index, size, row in (entry for pair in self._extremes.values() for entry in pair):
            if index not in kept and size <= room and not in_reach(row.name, row.value):
                kept[index] = row
                room -= size
        self.dropped -= len(kept)
        return self._first + [kept[index] for index in sorted(kept)] + [row for _, _, row in self._last]

    def _reachable(self) -> "_Reach":
        reach = _Reach()
        for row in self._first:
            reach.add(row)
        for _, _, row in self._last:
            reach.add(row)
        return reach


class _Reach:
    """Whether a value lies within what its metric's kept rows already span."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}

    def add(self, row: Row) -> None:
        try:
            value = float(row.value)
        except ValueError:
            return
        if isfinite(value):
            low, high = self._spans.get(row.name, (value, value))
            self._spans[row.name] = (min(low, value), max(high, value))

    def __call__(self, name: str, value: str) -> bool:
        span = self._spans.get(name)
        return span is not None and span[0] <= float(value) <= span[1]


def _size(row: Row) -> int:
    """Upper bound of the row's bytes as a MetricLog inside the reply."""
    name, value = row.name, row.value
    texts = (len(name) if name.isascii() else len(name.encode())) + (
        len(value) if value.isascii() else len(value.encode())
    )
    # Five texts and messages have a tag and a length: 10 bytes, and up to 3 more each when they are long.
    frame = 10 if texts < 64 else 25
    step = 0 if row.step is None else 12
    time = 20 if not row.ns and row.time.endswith("000000") else 30
    return frame + step + time + texts
