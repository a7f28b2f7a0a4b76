"""The seams of the collector: parsers turn bytes into points, sources say where bytes come from."""

import time
from collections.abc import Callable
from typing import Protocol

from trialtap.points import MetricPoint

Clock = Callable[[], int]
"""Nanoseconds since 1970."""


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


class Parser(Protocol):
    """Turns a file's bytes into points. It never raises on input: what it cannot read it counts and skips.

    It is deterministic: the same bytes from the same offset give the same points, times of `Stamp` apart.
    """

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricPoint]]:
        """Read whole records from the start of `data`.

        Args:
            data: bytes of the file from where the last call ended.
            final: nothing will follow, so a last record without its end counts as whole.

        Returns:
            How many bytes were used up (the rest comes again with more behind it), and the points
            in them, in order.
        """
        ...
