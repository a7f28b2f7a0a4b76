"""Sends what waits in the outbox, in a thread of its own, for as long as it takes; one call at a time.

While a call is under way new rows gather, so batches grow with the load and no time is spent waiting for
a window to close.
"""

import _thread
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from collector.checkpoint import Position, Stream
from collector.outbox import Barrier, Event, Outbox, Request
from collector.say import Once, say
from collector.watch import give_back
from trialtap.points import MetricPoint

DEADLINE: Final = 10.0
"""Seconds for one call."""
QUIET: Final = 3.0
"""Seconds without a call after which connections are closed: an open one keeps grpc's threads turning."""
HEARTBEAT: Final = 20.0
"""Seconds after which an open stream without news is mentioned to the database."""
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts, at most."""


class Refused(Exception):  # noqa: N818 - it is an answer, named for what it says
    """A call did not succeed.

    Attributes:
        kind: `again` (nothing is wrong with the rows), `bad` (something may be), `rewind` (the server
            expects the ordinal `next`).
        next: the ordinal expected, for `rewind`.
    """

    def __init__(self, kind: str, message: str, next_: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.next = next_


class Origin(NamedTuple):
    """Which stream rows belong to, and the ordinal of the first (docs/delivery.md)."""

    stream: str
    first: int
    end: bool = False
    gap: bool = False


class Server(NamedTuple):
    """The DB manager has answered: it is trialtap's, or it is Katib's own."""

    ours: bool


class Stopped(NamedTuple):
    """The trial is marked as stopped early."""


Result = Event | Server | Stopped


class Calls(Protocol):
    """What the reporter needs of a client."""

    def ours(self, timeout: float = DEADLINE) -> bool:
        """See `client.Client`."""
        ...

    def report(self, rows: list[MetricPoint], origin: Origin | None, timeout: float = DEADLINE) -> int:
        """See `client.Client`."""
        ...

    def stop_trial(self, timeout: float = DEADLINE) -> None:
        """See `client.Client`."""
        ...

    def close(self) -> None:
        """See `client.Client`."""
        ...


class Pause:
    """Backoff with jitter: 0.1 s, doubled up to a limit; full speed again after a success."""

    __slots__ = ("_next", "limit", "until")

    def __init__(self) -> None:
        self.limit = LONGEST_PAUSE
        self.until = 0.0
        self._next = 0.1

    def begin(self) -> None:
        """Wait from now on, longer than the last time."""
        pause = min(self._next, self.limit)
        self._next = min(self._next * 2, LONGEST_PAUSE)
        self.until = time.monotonic() + pause * (0.5 + os.urandom(1)[0] / 510)

    def over(self) -> None:
        """Begin anew: something went well."""
        self.until = 0.0
        self._next = 0.1

    def left(self) -> float:
        """Give the seconds that are left of it."""
        return self.until - time.monotonic()


class Reporter:
    """The outbox, shared by the run loop, which fills it, and the thread, which empties it."""

    def __init__(self, connect: Callable[[], Calls], wake: int) -> None:
        """Start nothing yet: the thread, and with it grpc, comes with the first row.

        Args:
            connect: makes the client, in the thread.
            wake: file descriptor that gets a byte whenever there is a result.
        """
        self._connect = connect
        self._client: Calls | None = None
        self._wake = wake
        self._outbox = Outbox()
        self._results: deque[Result] = deque()
        # _thread, not threading: the sidecar pays for the rest of it only when grpc comes.
        self._lock = _thread.allocate_lock()
        self._bell = (
            _thread.allocate_lock()
        )  # locked: silent; the thread waits to lock it, whoever rings unlocks
        self._bell.acquire()
        self._started = False
        self._known = False
        self._held = False
        self._stop_wanted = False
        self._closed = False
        self._pause = Pause()
        self._stop_pause = Pause()
        self._once = Once()
        self._heard = 0.0
        self._called = 0.0
        self._quiet = False
        self._used = False
        self._open: dict[str, tuple[Stream, int]] = {}
        self._until = float("inf")

    # --- the run loop's side

    def add(self, stream: Stream, first: int, rows: list[MetricPoint], after: Position, gap: bool) -> None:
        """Let rows wait to be reported."""
        with self._lock:
            self._results += self._outbox.add(stream, first, rows, after, gap)
            if rows:
                self._start()

    def known(self, stream: Stream) -> None:
        """Take up a stream that the database knows from before a restart: it wants to be heard of."""
        with self._lock:
            self._open[stream.id] = (stream, stream.acked.ordinal)
            self._known = self._outbox.origins  # a stream with ordinals is known to trialtap's server only
            self._start()

    def end(self, stream: Stream) -> None:
        """Tell the database, behind all that waits, that no more is expected of the stream."""
        with self._lock:
            self._outbox.end(stream)
            self._start()

    def barrier(self) -> None:
        """Give a `Barrier` among the results once all that waits now is acknowledged."""
        with self._lock:
            self._outbox.barrier()
            self._start()

    def stop_trial(self) -> None:
        """Have the trial marked as stopped early; `Stopped` among the results says that it is."""
        with self._lock:
            self._stop_wanted = True
            self._start()

    def cancel_stop(self) -> bool:
        """Stop trying to have the trial marked; say whether it was still being tried."""
        with self._lock:
            wanted, self._stop_wanted = self._stop_wanted, False
            return wanted

    def clear(self) -> None:
        """Forget all that waits."""
        with self._lock:
            self._outbox.clear()

    def go_on(self) -> None:
        """Report again: after `Server`, nothing is until it is known what is to be."""
        with self._lock:
            self._held = False
            self._ring()

    def room(self) -> bool:
        """Say whether more may be read."""
        return self._outbox.room()

    def idle(self) -> bool:
        """Say whether nothing waits and no result is left to be looked at."""
        with self._lock:
            return not self._outbox and not self._results

    def results(self) -> list[Result]:
        """Take out what has happened, in order."""
        with self._lock:
            results = list(self._results)
            self._results.clear()
            return results

    def waiting(self) -> list[tuple[Stream, int, MetricPoint]]:
        """Give all rows that are not acknowledged: stream, ordinal, row."""
        with self._lock:
            return list(self._outbox.waiting())

    def skipped(self) -> int:
        """Say how many rows were given up because the database refuses them."""
        return self._outbox.skipped

    def hurry(self, until: float) -> None:
        """Try more often, and not beyond a time (of `time.monotonic`)."""
        with self._lock:
            self._until = until
            for pause in (self._pause, self._stop_pause):
                pause.limit = 0.5
                pause.over()
            self._ring()

    def close(self) -> None:
        """End the thread after the call that is under way; do not wait for it."""
        with self._lock:
            self._closed = True
            self._ring()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            _thread.start_new_thread(self._run, ())
        self._ring()

    def _ring(self) -> None:
        """Wake the thread up; the lock is held, so that nobody else rings at the same time."""
        if self._bell.locked():
            self._bell.release()

    # --- the thread's side

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                work = self._work()
                pause = self._idle_time()
            if work is None:
                self._bell.acquire(timeout=-1 if pause is None else pause)
            else:
                self._do(work)

    def _work(self) -> Request | Barrier | str | None:
        if self._stop_wanted and self._stop_pause.left() <= 0:
            return "stop"
        if self._held or self._pause.left() > 0:
            return None
        request = self._outbox.next()
        if request is not None:
            return request if self._known or isinstance(request, Barrier) else "ask"
        if self._open and time.monotonic() >= self._heard + HEARTBEAT:
            return "heartbeat"
        if self._client is not None and not self._quiet and time.monotonic() >= self._called + QUIET:
            return "quiet"
        return None

    def _idle_time(self) -> float | None:
        if self._held:
            return 1.0
        times = [self._pause.left()] if self._outbox else []
        if self._stop_wanted:
            times.append(self._stop_pause.left())
        if self._open:
            times.append(max(self._heard + HEARTBEAT - time.monotonic(), self._pause.left()))
        if self._client is not None and not self._quiet:
            times.append(self._called + QUIET - time.monotonic())
        return max(0.001, min(times)) if times else None

    def _do(self, work: Request | Barrier | str | None) -> None:
        timeout = min(DEADLINE, max(0.1, self._until - time.monotonic()))
        try:
            if work == "quiet":
                self._rest()
                return
            client = self._client = self._client or self._connect()
            self._called, self._quiet = time.monotonic(), False
            if isinstance(work, Barrier):
                self._tell([work])
            elif work == "ask":
                ours = client.ours(timeout)
                with self._lock:
                    self._known, self._held, self._outbox.origins = True, True, ours
                self._pause.over()
                self._tell([Server(ours)])
            elif work == "stop":
                client.stop_trial(timeout)
                with self._lock:
                    wanted, self._stop_wanted = self._stop_wanted, False
                if wanted:
                    self._tell([Stopped()])
            elif work == "heartbeat":
                self._beat(client, timeout)
            elif isinstance(work, Request):
                self._report(client, work, timeout)
        except Refused as refused:
            self._refused(work, refused)
        except Exception as error:  # whatever a library raises, rows are kept and tried again
            self._refused(work, Refused("again", f"{type(error).__name__}: {error}"))

    def _rest(self) -> None:
        """Close connections; the next call opens them again."""
        self._quiet = True
        if self._client is not None:
            self._client.close()
        if self._used:  # heartbeats alone leave nothing worth the search
            self._used = False
            give_back()

    def _report(self, client: Calls, request: Request, timeout: float) -> None:
        origin = None
        if self._outbox.origins:
            origin = Origin(request.stream.id, request.first, request.end, request.gap)
        self._used = True
        next_ = client.report(request.rows, origin, timeout)
        with self._lock:
            events = self._outbox.accepted(request, next_)
            if request.loser is not None:
                say(
                    f"{request.skipped} rows of stream {request.loser.id} were given up: "
                    "the database refuses them and takes others"
                )
            if origin is not None:
                self._open[request.stream.id] = (request.stream, request.first + len(request.rows))
                if request.stream.ended:
                    self._open.pop(request.stream.id)
        self._well()
        self._tell(events)

    def _beat(self, client: Calls, timeout: float) -> None:
        stream, first = next(iter(self._open.values()))
        if stream.ended:
            self._open.pop(stream.id)
            return
        self._heard = time.monotonic()
        try:
            client.report([], Origin(stream.id, first), timeout)
        except Refused as refused:
            if refused.kind != "rewind":
                raise
            self._refused(Request(stream, first, [], False, False), refused)
            return
        self._well()

    def _well(self) -> None:
        self._heard = time.monotonic()
        self._pause.over()
        self._once.over("report", "the database answers again")

    def _refused(self, work: Request | Barrier | str | None, refused: Refused) -> None:
        if work == "stop":
            self._stop_pause.begin()
            self._once.trouble(
                "stop", f"the trial cannot be marked as stopped early yet: {refused}; trying again"
            )
            return
        if not isinstance(work, Request):
            self._pause.begin()
            self._once.trouble("report", f"the database cannot be reached: {refused}; trying again")
            return
        with self._lock:
            events, wait = self._outbox.refused(work, refused.kind, refused.next)
        if refused.kind == "rewind":
            say(f"the database lacks rows that it had: {refused}; reading stream {work.stream.id} again")
        else:
            self._once.trouble("report", f"rows were not stored: {refused}; trying again")
        if wait:
            self._pause.begin()
        self._tell(events)

    def _tell(self, results: Sequence[Result]) -> None:
        if not results:
            return
        with self._lock:
            self._results += results
        try:
            os.write(self._wake, b"r")
        except (BlockingIOError, OSError):
            return  # the pipe is full: the run loop will look anyway
