"""For an operator's own collector: yield points, and lifecycle, stop rules, checkpoint, retry and reports come with it.

```python
from collector.sdk import Args, Point, Source, run

class Mine:                                 # a Source
    def __init__(self, args: Args) -> None:
        self.path = args.path

    def points(self, cursor):               # cursor: that of the last point kept, None at the beginning
        while True:
            for ... in what_is_new(cursor):
                yield Point("loss", 0.25, step=3, cursor=...)
            yield None                      # nothing more for now

if __name__ == "__main__":
    run(Mine)
```
docs/custom-collectors.md tells the rest; examples/custom-collector is a whole one.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import index
from threading import Event
from typing import Any, Final, NamedTuple, Protocol, SupportsFloat

from collector.source import Findings, Stamp, Write
from trialtap.argv import CollectorArgs
from trialtap.points import NANOSECONDS, MetricPoint

Args = CollectorArgs
"""The command line: `metrics` (names, the objective first), `path`, `poll` and the rest."""

_BATCH: Final = 500
_HELD: Final = 0.2
"""Seconds that a point may be held to be written together with others."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Point(NamedTuple):
    """One measured value.

    Attributes:
        name: the metric; a name that the trial did not ask for is not reported, but named in messages.
        value: a number of any kind, or text.
        step: training step or epoch.
        time: when it was measured: a datetime (without a zone it is UTC), or seconds since 1970; None: now.
        cursor: where to go on behind this point, anything that JSON holds. It is stored together with the
            point and handed to `points` after a restart. Points without one belong to the next that has one.
    """

    name: str
    value: SupportsFloat | str
    step: int | None = None
    time: datetime | float | None = None
    cursor: Any = None


class Source(Protocol):
    """What an operator writes."""

    def points(self, cursor: Any) -> Iterator[Point | None]:
        """Yield points as they come, and None when there is nothing more for now.

        After a None the next look comes `args.poll` seconds later, or at once when training has ended:
        what is yielded until the None after that is still reported. To return says that nothing more
        will ever come. To raise is logged, and `points` is called again with the last cursor. It may
        wait, but not for more than a second: at the end of training there is little time.
        """
        ...


def run(make: Callable[[Args], Source], argv: Sequence[str] | None = None) -> int:
    """Run the collector until training has ended and all is reported.

    Args:
        make: makes the source of the command line, such as its class; what it raises as ValueError is said
            in the log as a configuration that cannot work.
        argv: the command line; None: this program's.

    Returns:
        The exit status.
    """
    from collector.__main__ import main  # noqa: PLC0415 - it takes signals: not when only a test imports this

    return main(list(sys.argv[1:] if argv is None else argv), lambda args: Adapter(make(args), args))


class Adapter:
    """Makes of a `Source` what the collector runs, a `collector.source.Producer`."""

    def __init__(self, source: Source, args: Args, stamp: Stamp | None = None) -> None:
        self.findings = Findings()
        self._source = source
        self._names = frozenset(args.metrics)
        self._interval = args.poll
        self._stamp = stamp or Stamp()

    def run(self, write: Write, stopped: Event, cursor: Any) -> None:
        """Pull points until the source ends, or training has ended and it has nothing more."""
        points = iter(self._source.points(cursor))
        batch: list[MetricPoint] = []
        cursors: list[Any] = []
        due = 0.0
        try:
            while True:
                ended = stopped.is_set()  # asked before the source looks: then it has seen all there is
                point = next(points, _END)
                if isinstance(point, Point):
                    due = due if batch else time.monotonic() + _HELD
                    self._take(point, batch, cursors)
                    whole = point.cursor is not None or not cursors
                    if whole and (len(batch) >= _BATCH or time.monotonic() >= due):
                        _flush(write, batch, cursors)
                    continue
                _flush(write, batch, cursors)
                if point is _END or ended:
                    return
                stopped.wait(self._interval)
        except BaseException:
            _flush(write, batch, cursors)
            raise

    def _take(self, point: Point, batch: list[MetricPoint], cursors: list[Any]) -> None:
        if point.cursor is not None:
            cursors[:] = [point.cursor]
        self.findings.saw(point.name)
        if point.name in self._names:
            self.findings.lines += 1
            batch.append(MetricPoint(point.name, text_of(point.value), self._time(point.time), point.step))

    def _time(self, given: datetime | float | None) -> int:
        if given is None:
            return self._stamp.next()
        if isinstance(given, datetime):
            aware = given if given.tzinfo else given.replace(tzinfo=UTC)
            return (aware - _EPOCH) // _MICROSECOND * 1000
        if isinstance(given, int):
            return given * NANOSECONDS
        return round(given * 1e6) * 1000


_END: Final = object()


def _flush(write: Write, batch: list[MetricPoint], cursors: list[Any]) -> None:
    """Write what is held; a cursor alone too, since the points before it were not asked for."""
    if batch or cursors:
        write(batch, cursors[0] if cursors else None)
        batch.clear()
        cursors.clear()


def text_of(value: SupportsFloat | str) -> str:
    """Write a value: text as it is, whole numbers whole, floats with as many digits as they need."""
    if isinstance(value, str):
        return value.strip()
    try:
        return str(index(value))  # type: ignore[arg-type] # whole numbers of any library; True is 1
    except TypeError:
        return float.__repr__(float(value))
