"""The seams of the collector: what a source is, what a parser is, and which kind has which.

```
files     Files + Parser     -> tail -> points -> stop rules -> reporter     (StdOut, File, TensorFlowEvent)
producer  Producer -> spool  -> tail -> points -> stop rules -> reporter     (PrometheusMetric, Custom)
```
Everything is read from files, so that it can be read again after a restart: what cannot be read again
is written to a spool file first. A kind is a row of `KINDS`; nothing else in the collector knows it.

A sidecar is paid for once per pod and may take 12 MiB before its first report, of which bare Python takes 9:
so neither this module nor a source imports dataclasses, inspect, argparse, importlib or json's like unless
it must (dataclasses alone is 2 MiB), and what is needed late is imported late.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from threading import Event

from trialtap.argv import CollectorArgs
from trialtap.points import MetricPoint

Clock = Callable[[], int]
"""Nanoseconds since 1970."""

State = dict[str, Any]
"""What survives a restart: holds only what JSON can hold."""


class Stamp:
    """Times for lines that carry none: now, but always later than the line before."""

    __slots__ = ("clock", "last")

    def __init__(self, last: int = 0, clock: Clock = time.time_ns) -> None:
        self.last = last
        self.clock = clock

    def next(self) -> int:
        """Give max(now, last + 1 µs) in nanoseconds and remember it."""
        now = self.clock()
        self.last = now if now > self.last + 1000 else self.last + 1000
        return self.last


class Findings:
    """What a source's parsers came across, for the log and for `trialtap collect`; one for all files.

    It is for people only: nothing is decided by it, and it is not kept over restarts.

    Attributes:
        lines: lines or records that held an asked-for name.
        skipped: reason, a short phrase -> how many lines or records were skipped for it.
        names: names seen, asked for or not -> how often (of a sample, where looking at all would be dear).
        shapes: name -> how it stood where it was first seen, `accuracy : 0.9` say, where that tells more.
        notes: sentences to be logged once; the run loop takes them out and logs them.
    """

    __slots__ = ("lines", "names", "notes", "shapes", "skipped")

    def __init__(self) -> None:
        self.lines = 0
        self.skipped: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.shapes: dict[str, str] = {}
        self.notes: list[str] = []

    def skip(self, reason: str, count: int = 1) -> None:
        """Count something that could not be read."""
        self.skipped[reason] = self.skipped.get(reason, 0) + count

    def saw(self, name: str, shape: str = "", limit: int = 200) -> None:
        """Count a name; past `limit` different ones new names are not kept."""
        if name in self.names:
            self.names[name] += 1
        elif len(self.names) < limit:
            self.names[name] = 1
            if shape:
                self.shapes[name] = shape


class Parser(Protocol):
    """Turns one file's bytes into points. It never raises on input: what it cannot read it counts and skips.

    It is deterministic: the same bytes from the same offset and `state` give the same points, times of
    `Stamp` apart.
    """

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricPoint]]:
        """Read whole records from the start of `data`.

        Args:
            data: bytes of the file from where the last call ended.
            final: nothing will follow, so a last record without its end counts as whole.

        Returns:
            How many bytes were used up (the rest comes again with more behind it: a parser that uses
            none gets twice as many next time, so it must use some of 16 MiB), and the points in them,
            in order.
        """
        ...

    def state(self) -> State:
        """What this parser must know to go on behind the bytes that it used up; `{}` if nothing."""
        ...


class Files(Protocol):
    """A source that is read from one file, or from all files below a directory."""

    directory: bool
    """False: the path names one file. True: it names a directory, looked through to any depth."""
    chunk: int
    """Bytes to read at a time, such as 65536; `feed` gets about that much."""
    findings: Findings

    def accepts(self, path: str) -> bool:
        """Say whether a file of the directory is to be read; `path` is relative to it."""
        ...

    def parser(self, path: str, stamp: Stamp, state: State) -> Parser:
        """Make the parser of one file.

        Args:
            path: relative to the directory; the file's name where one file is read.
            stamp: times for records without one; belongs to this file's stream, kept over restarts.
            state: what `Parser.state` gave, `{}` at the beginning of the stream.
        """
        ...


class Producer(Protocol):
    """A source whose points cannot be read a second time: it writes them to the spool as it gets them."""

    findings: Findings

    def run(self, write: "Write", stopped: "Event", cursor: Any) -> None:
        """Produce points until `stopped` is set; runs in a thread of its own, and may block for 1 s.

        What it raises is logged, and it is run again after a pause. When it returns before
        `stopped` is set, the source has ended by itself: nothing more comes.

        Args:
            write: stores points durably, in order; blocks for as long as the spool is full.
            stopped: set when training has ended.
            cursor: the cursor last written, by this process or one before it; None at the beginning.
        """
        ...


class Write(Protocol):
    """Stores points in the spool."""

    def __call__(self, points: Sequence[MetricPoint], cursor: Any = None) -> None:
        """Write points; a `cursor` that is not None (JSON) is stored in the same write as they are."""
        ...


Source = Files | Producer

KINDS: Final[dict[str, str]] = {
    "StdOut": "collector.textfiles:TextFiles",
    "File": "collector.textfiles:TextFiles",
    "File/JSON": "collector.jsonfiles:JsonFiles",
    "TensorFlowEvent": "collector.eventfiles:EventFiles",
    "PrometheusMetric": "collector.prometheus:Scraper",
}
"""Kind (with `/JSON` where the format is JSON) -> `module:name` of what makes its source of CollectorArgs.

Modules are imported when asked for, so that a sidecar holds one parser in memory, not all.
Custom is not here: an operator's program hands its own Producer to `collector.sdk.run`.
"""


def kind_of(args: CollectorArgs) -> str:
    """Name the row of `KINDS`: the kind, or what Katib's argv means where it names none.

    Katib gives `-format` for StdOut and File, and none for TensorFlowEvent.
    """
    kind = args.kind or ("File" if args.format else "TensorFlowEvent")
    return f"{kind}/JSON" if args.format == "JSON" and kind == "File" else kind


def make(args: CollectorArgs) -> Source:
    """Make the source that `args` ask for.

    Raises:
        ValueError: the kind has no source here, or its settings are wrong (a bad pattern, say).
    """
    kind = kind_of(args)
    if kind not in KINDS:
        raise ValueError(f"--kind {kind}: no source of this image reads it; one of {', '.join(KINDS)} does")
    module, _, name = KINDS[kind].partition(":")
    __import__(module)
    source: Source = getattr(sys.modules[module], name)(args)
    return source


class Rules(Protocol):
    """The early-stopping rules of a trial: `collector.stopping.Rules(args)`, pure.

    The run loop hands it each point exactly once, in order, over restarts too, and keeps the state
    in the checkpoint. It is made only when there are rules.
    """

    def begin(self) -> State:
        """Give the state before the first point."""
        ...

    def step(self, state: State, points: Sequence[MetricPoint]) -> State:
        """Give the state after `points`; never raises, whatever their values are."""
        ...

    def met(self, state: State) -> bool:
        """Say whether every rule has been met."""
        ...
