"""What waits to be reported, in order, and what to send next; pure, and bounded by who fills it.

docs/delivery.md: a refused batch is halved; a single row is skipped only when another row is accepted at
the same time, since Katib's DB manager answers UNKNOWN for a dead database and for a bad row alike.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from collector.checkpoint import Position, Stream
from trialtap.points import MetricPoint

MOST_ROWS: Final = 10_000
"""Rows of one request: Katib's DB manager takes 16,000 (its SQL has 65,535 parameters)."""
MOST_BYTES: Final = 1 << 20
"""Bytes of one request, roughly: gRPC takes 4 MiB."""
ROOM: Final = 20_000
"""Rows that may wait; past it nothing is read, and what waits stays in the file."""
ROOM_BYTES: Final = 4 << 20


class Request(NamedTuple):
    """Rows of one stream that are to be reported together; no rows: only `end` is to be told.

    Attributes:
        skipped: how many rows at the front of the outbox were refused one by one, and are given up if
            this one is accepted.
        loser: the stream of those rows.
    """

    stream: Stream
    first: int
    rows: list[MetricPoint]
    end: bool
    gap: bool
    skipped: int = 0
    loser: Stream | None = None


class Acknowledged(NamedTuple):
    """All of a stream before `position` is in the database."""

    stream: Stream
    position: Position


class Barrier(NamedTuple):
    """All that was added before the barrier is in the database."""


class Rewind(NamedTuple):
    """The database lacks rows that it had acknowledged: read the stream again from this ordinal."""

    stream: Stream
    ordinal: int


Event = Acknowledged | Barrier | Rewind


class _Batch:
    __slots__ = ("after", "end", "first", "gap", "rows", "size", "stream")

    def __init__(self, stream: Stream | None, first: int, rows: list[MetricPoint]) -> None:
        self.stream = stream  # None: a barrier
        self.first = first
        self.rows = rows
        self.after: Position | None = None
        self.end = False
        self.gap = False
        self.size = sum(len(row.name) + len(row.value) for row in rows) + 40 * len(rows)

    def without(self, count: int) -> "_Batch":
        """Give the batch less its first rows."""
        left = _Batch(self.stream, self.first + count, self.rows[count:])
        left.after = self.after
        return left


class Outbox:
    """Batches in the order in which they are reported.

    Attributes:
        origins: the server knows streams and ordinals; without, rows are appended as Katib does.
        rows: how many wait.
        skipped: how many rows were given up since the beginning.
    """

    def __init__(self) -> None:
        self.origins = True
        self.rows = 0
        self.skipped = 0
        self._bytes = 0
        self._batches: deque[_Batch] = deque()
        self._limit = MOST_ROWS
        self._probe = 0
        self._probes = 8
        self._gaps: set[str] = set()  # streams that lost their newest rows: what comes next is behind a gap

    def __len__(self) -> int:
        return len(self._batches)

    def room(self) -> bool:
        """Say whether more may be read."""
        return self.rows < ROOM and self._bytes < ROOM_BYTES

    def add(
        self, stream: Stream, first: int, rows: list[MetricPoint], after: Position, gap: bool
    ) -> list[Event]:
        """Let rows wait; where there are none, only note how far reading has come."""
        if rows:
            batch = _Batch(stream, first, rows)
            batch.after, batch.gap = after, gap
            self._push(batch)
            return []
        for batch in reversed(self._batches):
            if batch.stream is stream:
                batch.after = after
                return []
        return [Acknowledged(stream, after)]

    def end(self, stream: Stream) -> None:
        """Tell the server that no more is expected of the stream; rows that come nevertheless are added."""
        stream.ended = True
        batch = _Batch(stream, stream.read.ordinal, [])
        batch.end = True
        self._push(batch)

    def barrier(self) -> None:
        """Give a `Barrier` once all that waits now is acknowledged."""
        self._push(_Batch(None, 0, []))

    def _push(self, batch: _Batch) -> None:
        self._batches.append(batch)
        self.rows += len(batch.rows)
        self._bytes += batch.size

    def _pop(self) -> None:
        batch = self._batches.popleft()
        self.rows -= len(batch.rows)
        self._bytes -= batch.size

    def clear(self, stream: Stream | None = None) -> None:
        """Forget what waits, of one stream or of all."""
        kept = [b for b in self._batches if stream is not None and b.stream is not stream]
        self._batches.clear()
        self.rows = self._bytes = self._probe = 0
        for batch in kept:
            self._push(batch)

    def waiting(self) -> Iterator[tuple[Stream, int, MetricPoint]]:
        """Give every row that waits: stream, ordinal, row."""
        for batch in list(self._batches):
            if batch.stream is not None:
                for ordinal, row in enumerate(list(batch.rows), batch.first):
                    yield batch.stream, ordinal, row

    def next(self) -> Request | Barrier | None:
        """Give what to send now; the same again until it is answered."""
        while self._batches and not self.origins and self._batches[0].end:
            self._pop()  # Katib's DB manager knows no ends
        if not self._batches:
            return None
        head = self._batches[0]
        if head.stream is None:
            self._pop()
            return Barrier()
        if self._probe and (request := self._probed()) is not None:
            return request
        rows: list[MetricPoint] = []
        size = 0
        gap = head.gap or head.stream.id in self._gaps
        for batch in self._batches:
            if (
                batch.stream is not head.stream
                or batch.first != head.first + len(rows)
                or (rows and batch.gap)
            ):
                break
            if batch.end:
                return Request(head.stream, head.first, rows, True, gap)
            taken = _within(batch.rows[: self._limit - len(rows)], MOST_BYTES - size)
            rows += taken
            size += batch.size
            if len(taken) < len(batch.rows) or len(rows) >= self._limit or size >= MOST_BYTES:
                break
        return Request(head.stream, head.first, rows, False, gap)

    def _probed(self) -> Request | None:
        """Give another row than those that were refused alone: the next of their stream, else another's first."""
        head = self._batches[0].stream
        index = self._probe
        others = None
        for batch in self._batches:
            if batch.stream is None or not batch.rows:
                continue
            if batch.stream is not head:
                others = others or batch
                continue
            if index < len(batch.rows):
                return Request(head, batch.first + index, [batch.rows[index]], False, True, self._probe, head)
            index -= len(batch.rows)
        if others is None or others.stream is None or index:
            return None
        gap = others.gap or others.stream.id in self._gaps
        return Request(others.stream, others.first, others.rows[:1], False, gap, self._probe, head)

    def accepted(self, request: Request, next_: int) -> list[Event]:
        """Take note that a request was answered OK, the server expecting the ordinal `next_` (0: unknown)."""
        self._limit = min(MOST_ROWS, self._limit * 2)
        self._probe = 0
        self._probes = 8
        if request.gap:
            self._gaps.discard(request.stream.id)
        upto = max(request.first + len(request.rows), next_)
        if request.loser is not None:
            return self._give_up(request, upto)
        events: list[Event] = []
        while self._batches and (head := self._batches[0]).stream is request.stream:
            done = min(max(upto - head.first, 0), len(head.rows))
            if (head.end and not request.end) or done < len(head.rows):
                self._cut(done)
                break
            self._pop()
            if head.after is not None:
                events.append(Acknowledged(request.stream, head.after))
        return events

    def _give_up(self, request: Request, upto: int) -> list[Event]:
        """Take out the refused rows at the front, and the row that was accepted, wherever it stands."""
        loser, left = request.loser, request.skipped
        self.skipped += left
        if loser is not None and loser is not request.stream:
            self._gaps.add(loser.id)
        events: list[Event] = []
        batches = list(self._batches)
        self._batches.clear()
        self.rows = self._bytes = 0
        for batch in batches:
            done = 0
            if batch.stream is request.stream:
                done = min(max(upto - batch.first, 0), len(batch.rows))
            elif batch.stream is loser:
                done = min(left, len(batch.rows))
                left -= done
            if done and done == len(batch.rows):
                if batch.after is not None and batch.stream is not None:
                    events.append(Acknowledged(batch.stream, batch.after))
                continue
            self._push(batch.without(done) if done else batch)
        return events

    def _cut(self, done: int) -> None:
        """Take the first rows out of the first batch."""
        head = self._batches[0]
        if not done:
            return
        self._pop()
        left = head.without(done)
        self._batches.appendleft(left)
        self.rows += len(left.rows)
        self._bytes += left.size

    def refused(self, request: Request, kind: str, next_: int) -> tuple[list[Event], bool]:
        """Take note of a refusal.

        Args:
            request: what was refused.
            kind: as in `reporter.Refused`.
            next_: the ordinal that the server expects, for `rewind`.

        Returns:
            Events, and whether to wait before the next attempt.
        """
        if kind == "rewind":
            self.clear(request.stream)
            return [Rewind(request.stream, next_)], False
        if kind == "again":
            return [], True
        if len(request.rows) > 1:
            self._limit = max(1, len(request.rows) // 2)
            return [], False
        self._limit = 1
        if not request.rows:
            return [], True
        self._probe = request.skipped + 1
        if self._probe > self._probes or self._probed() is None:
            self._probe = 0
            self._probes = min(1024, self._probes * 2)
            return [], True
        return [], False


def _within(rows: list[MetricPoint], size: int) -> list[MetricPoint]:
    """Give as many of the first rows as fit into `size` bytes, at least one."""
    total = 0
    for count, row in enumerate(rows):
        total += len(row.name) + len(row.value) + 40
        if total > size and count:
            return rows[:count]
    return rows
