"""The spool: points of a source that cannot be read twice, in segments that are then followed like any file.

A line is a JSON array `[[name, value, time, step], …]`, with the producer's cursor as `{"cursor": …}` at its
end where there is one: points and cursor are in the same write, so they survive together or not at all.
"""

import json
import os
from collections.abc import Sequence
from threading import Event
from typing import Any, Final

from collector.say import Once, say
from collector.source import Findings, Parser, Producer, Stamp, State
from trialtap.points import MetricPoint

SEGMENT: Final = 4 << 20
"""Bytes of a segment, about."""
LINE: Final = 1 << 20
"""Bytes of a line, about: more points are written as several lines."""
PAUSE: Final = 5.0
"""Seconds before a producer that failed is run again."""


class SpoolFiles:
    """The spool as a source of files."""

    directory = False
    chunk = 1 << 16

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    def accepts(self, path: str) -> bool:
        """See `Files`: segments are found by their prefix."""
        return bool(path)

    def parser(self, path: str, stamp: Stamp, state: State) -> Parser:
        """See `Files`: times and ordinals stand in the spool, so nothing of these is needed."""
        del path, stamp, state
        return SpoolParser(self.findings)


class SpoolParser:
    """Reads what `Spool.write` wrote."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricPoint]]:
        """See `Parser`; a last line that a crash cut is skipped: its points were never promised."""
        used = data.rfind(b"\n") + 1
        points: list[MetricPoint] = []
        for line in data[:used].splitlines():
            try:
                points += [MetricPoint._make(item) for item in json.loads(line) if isinstance(item, list)]
            except (ValueError, TypeError):
                self._findings.skip("spool line that cannot be read")
        return len(data) if final else used, points

    def state(self) -> State:
        """See `Parser`."""
        return {}


class Spool:
    """Runs a producer and writes what it gives to numbered segments behind a prefix.

    Attributes:
        findings: the producer's.
    """

    def __init__(self, producer: Producer, prefix: str, keep: int, changed: int) -> None:
        """Go on behind the segments that are there.

        Args:
            producer: what gives points.
            prefix: path of the segments, without their numbers.
            keep: bytes that may wait to be reported; past it the oldest segment is removed.
            changed: file descriptor that gets a byte when points were written.
        """
        self.findings = producer.findings
        self.stopped = Event()
        self.ended = Event()
        self._producer = producer
        self._prefix = prefix
        self._keep = keep
        self._changed = changed
        self._once = Once()
        self._fd = -1
        self._size = 0
        self._number = max(self._numbers(), default=0)
        self._cursor = self._last_cursor()

    def _numbers(self) -> list[int]:
        directory, _, base = self._prefix.rpartition("/")
        try:
            names = os.listdir(directory)  # noqa: PTH208
        except OSError:
            return []
        tails = (name[len(base) + 1 :] for name in names if name.startswith(base + "."))
        return sorted(int(tail) for tail in tails if tail.isdigit())

    def _path(self, number: int) -> str:
        return f"{self._prefix}.{number:06d}"

    def _last_cursor(self) -> Any:
        """Find the newest cursor: it is carried into each new segment, so the last two hold it."""
        for number in reversed(self._numbers()):
            try:
                with open(self._path(number), "rb") as file:  # noqa: PTH123
                    lines = [line for line in file if line.endswith(b"\n")]
            except OSError:
                continue
            for line in reversed(lines):
                try:
                    last = json.loads(line)[-1]
                except (ValueError, TypeError, IndexError):
                    continue
                if isinstance(last, dict) and "cursor" in last:
                    return last["cursor"]
        return None

    def write(self, points: Sequence[MetricPoint], cursor: Any = None) -> None:
        """See `Write`: blocks while the volume is full, so that nothing that was read is lost."""
        if cursor is not None:
            self._cursor = cursor
        rest = list(points)
        while True:
            # The cursor stands behind the last point only.
            some, rest = rest[:1000], rest[1000:]
            line: list[Any] = [list(point) for point in some]
            if not rest and cursor is not None:
                line.append({"cursor": cursor})
            if line:
                self._write_line(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            if not rest:
                break
        try:
            os.write(self._changed, b"p")
        except OSError:
            return  # the pipe is full: it will be looked at anyway

    def _write_line(self, data: bytes) -> None:
        while True:
            try:
                self._append(data)
            except OSError as error:
                self._once.trouble("write", f"{self._prefix}: {error.strerror}; trying again")
                self._close()
                if self.stopped.wait(1.0):
                    raise
            else:
                self._once.over("write", f"{self._prefix} can be written again")
                return

    def _append(self, data: bytes) -> None:
        if self._fd < 0 or self._size > SEGMENT:
            self._next_segment()
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):  # the volume is full: this line is cut, the whole one goes to a new segment
            raise OSError(28, "no space left on device")

    def _next_segment(self) -> None:
        self._close()
        self._number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path(self._number), flags, 0o644)
        self._size = 0
        if self._cursor is not None:
            self._size += os.write(self._fd, json.dumps([{"cursor": self._cursor}]).encode() + b"\n")
        numbers = self._numbers()
        while len(numbers) > 2 and len(numbers) * SEGMENT > self._keep:
            say(f"{self._path(numbers[0])} is removed before it was reported: --keep")
            os.unlink(self._path(numbers.pop(0)))  # noqa: PTH108

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def run(self) -> None:
        """Run the producer, again after it failed, until it ends by itself or is told to."""
        while not self.stopped.is_set():
            try:
                self._producer.run(self.write, self.stopped, self._cursor)
                break
            except Exception as error:
                self._once.trouble(
                    "run", f"the source failed and is begun again: {type(error).__name__}: {error}"
                )
                self.stopped.wait(PAUSE)
        self.ended.set()
        try:
            os.write(self._changed, b"p")
        except OSError:
            return
