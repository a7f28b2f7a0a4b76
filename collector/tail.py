"""Follows files as they grow and hands out points chunk by chunk: one file, a row of segments, a directory.

No buffer is kept between two reads: what a parser did not use is read again, from the file.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from collector.checkpoint import Checkpoint, Position, Stream
from collector.say import Once, say
from collector.source import Files, Parser
from trialtap.points import MetricPoint

LONGEST: Final = 16 << 20
"""Bytes that a parser is given at most; it must use some of them."""
HEAD: Final = 128
"""Bytes at a file's start by which a file that was written anew under its name is told."""
SETTLE: Final = 1.0
"""Seconds that a file which was renamed away is still read: its writer may hold it open."""

_SEGMENT = re.compile(r"\.(\d{6,})")
_MARK = re.compile(rb"[^\r\n]*\x1etrialtap missing (\d+)(?=[\r\n]|$)")


class Chunk(NamedTuple):
    """Points that were read at one go; there may be none.

    Attributes:
        stream: where they were read.
        first: the ordinal of the first.
        points: in order.
        after: where reading goes on behind them.
    """

    stream: Stream
    first: int
    points: list[MetricPoint]
    after: Position


class Tail(Protocol):
    """Something that is followed."""

    finished: list[Stream]
    """Streams that get no more points; the run loop takes them out and tells the database."""
    depends_on_start: bool
    """What is read depends on what was there when the collector first started: that must be kept."""

    def read(self, final: bool) -> Chunk | None:
        """Give the next points, None when there is nothing more for now.

        Args:
            final: training has ended: a last record without its end counts as whole.
        """
        ...

    def rewind(self, stream: Stream, to: Position) -> None:
        """Read this stream again from a place it was at before."""
        ...

    def acknowledged(self, stream: Stream) -> None:
        """Clear away what lies before `stream.acked`."""
        ...

    def directories(self) -> list[str]:
        """Name the directories in which a change may mean new points."""
        ...


Echoing = Callable[[str, int, int, bytes], None]
"""Is told of all bytes that are used: stream's id, segment, offset, bytes."""


class _Reader:
    """One stream's parser over one open file: what the tails have in common."""

    __slots__ = ("echo", "files", "parser", "path", "size", "stream")

    def __init__(self, files: Files, path: str, stream: Stream, echo: Echoing | None = None) -> None:
        self.echo = echo
        self.files = files
        self.path = path
        self.stream = stream
        self.parser: Parser = files.parser(path, stream.stamp, stream.read.state)
        self.size = files.chunk

    def rewind(self, to: Position) -> None:
        """Go back: the parser is made anew from the state it had there."""
        self.stream.read = to
        self.parser = self.files.parser(self.path, self.stream.stamp, to.state)
        self.size = self.files.chunk

    def step(
        self, fd: int, end: int, whole: bool, clean: Callable[[bytes], bytes] | None = None
    ) -> Chunk | None:
        """Read on; None when no record is whole yet.

        Args:
            fd: the file.
            end: its size.
            whole: nothing will be appended to it.
            clean: changes bytes without changing their number.
        """
        at = self.stream.read
        while at.offset < end:
            data = os.pread(fd, self.size, at.offset)
            if clean is not None:
                data = clean(data)
            used, points = self.parser.feed(data, whole and at.offset + len(data) >= end)
            if used:
                if self.echo is not None:
                    self.echo(self.stream.id, at.segment, at.offset, data[:used])
                self.size = self.files.chunk
                return self._advance(at, used, points)
            if len(data) < self.size:
                return None
            if self.size >= LONGEST:
                self.files.findings.skip("record longer than 16 MiB")
                return self._advance(at, len(data), [])
            self.size *= 2
        return None

    def _advance(self, at: Position, used: int, points: list[MetricPoint]) -> Chunk:
        after = Position(at.segment, at.offset + used, at.ordinal + len(points), self.parser.state())
        self.stream.read = after
        return Chunk(self.stream, at.ordinal, points, after)


class SegmentsTail:
    """Follows `PREFIX.000001`, … as one stream, and unlinks what is acknowledged (docs/tap.md)."""

    depends_on_start = False

    def __init__(
        self, prefix: str, files: Files, checkpoint: Checkpoint, echo: Echoing | None = None
    ) -> None:
        self.finished: list[Stream] = []
        self._directory, _, self._base = prefix.rpartition("/")
        self._prefix = prefix
        stream = checkpoint.streams.get(self._base)
        if stream is None:
            stream = checkpoint.begin(self._base, Position(0, 0, 0, {}))
        self.stream = stream
        self._files = files
        self._echo = echo
        self._made: _Reader | None = None
        self._fd = -1
        self._complete = False
        self._unlinked = 0
        self._once = Once()

    @property
    def _reader(self) -> _Reader:
        """Made when there is something to read: parsers are imported late."""
        if self._made is None:
            self._made = _Reader(self._files, self._base, self.stream, self._echo)
        return self._made

    def numbers(self) -> list[int]:
        """List the numbers of the segments that are there, ascending."""
        try:
            names = os.listdir(self._directory)  # noqa: PTH208
        except OSError as error:
            self._once.trouble("list", f"{self._directory} cannot be listed: {error.strerror}; trying again")
            return []
        found = (_SEGMENT.fullmatch(n, len(self._base)) for n in names if n.startswith(self._base))
        return sorted(int(match[1]) for match in found if match)

    def read(self, final: bool) -> Chunk | None:
        """See `Tail`."""
        while True:
            if self._fd < 0 and not self._open(self.stream.read.segment):
                return self._next()
            end = os.fstat(self._fd).st_size
            chunk = self._reader.step(self._fd, end, final or self._complete, self._clean)
            if chunk is not None:
                return chunk
            if self._complete:
                return self._next()
            numbers = self.numbers()
            if not numbers or numbers[-1] <= self.stream.read.segment:
                return None
            self._complete = True  # but bytes may have come before the next segment did: look once more

    def _open(self, number: int) -> bool:
        if number == 0:
            return False
        try:
            self._fd = os.open(f"{self._prefix}.{number:06d}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._once.trouble("open", f"segment {number} of {self._prefix} cannot be read: {error.strerror}")
            return False
        self._once.over("open", f"{self._prefix} can be read again")
        self._complete = False
        return True

    def _next(self) -> Chunk | None:
        """Go to the start of the next segment that is there."""
        here = self.stream.read.segment
        number = next((n for n in self.numbers() if n > here), None)
        if number is None:
            return None
        self._close()
        if not self._open(number):
            return None
        if number > here + 1:
            say(
                f"segments {here + 1} to {number - 1} of {self._prefix} were removed before they were read: --keep"
            )
        at = self.stream.read
        begin = Position(number, 0, at.ordinal, at.state)
        self.stream.read = begin
        self.stream.marks.append(begin)
        return Chunk(self.stream, at.ordinal, [], begin)

    def _clean(self, data: bytes) -> bytes:
        """Blank out tap's marks, with the cut line before each."""
        if b"\x1etrialtap missing " not in data:
            return data

        def blank(match: "re.Match[bytes]") -> bytes:
            missing = f"{int(match[1])} bytes of the training's output are missing: tap could not write them"
            self._once.trouble("missing", missing)
            return b" " * len(match[0])

        return _MARK.sub(blank, data)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def rewind(self, stream: Stream, to: Position) -> None:
        """See `Tail`."""
        self._close()
        self._complete = False
        if stream is self.stream:
            self._reader.rewind(to)

    def acknowledged(self, stream: Stream) -> None:
        """See `Tail`."""
        keep = stream.acked.segment
        if keep <= self._unlinked:
            return
        for number in self.numbers()[:-1]:
            if number < keep:
                try:
                    os.unlink(f"{self._prefix}.{number:06d}")  # noqa: PTH108
                except OSError as error:
                    text = f"segment {number} of {self._prefix} cannot be removed: {error.strerror}"
                    self._once.trouble("unlink", text)
        self._unlinked = keep
        stream.marks = [mark for mark in stream.marks if mark.segment >= keep] or [stream.acked]

    def directories(self) -> list[str]:
        """See `Tail`."""
        return [self._directory]


class FileTail:
    """Follows one file by its name: it may be missing, come late, rotate, be truncated or replaced."""

    depends_on_start = True

    def __init__(  # noqa: PLR0913
        self,
        path: str,
        key: str,
        files: Files,
        checkpoint: Checkpoint,
        *,
        from_end: bool = False,
        keep_open: bool = True,
        once: Once | None = None,
        echo: Echoing | None = None,
    ) -> None:
        self._echo = echo
        self.finished: list[Stream] = []
        self.path = path
        self._key = key
        self._files = files
        self._checkpoint = checkpoint
        self._from_end = from_end
        self._keep_open = keep_open
        self._once = once or Once()
        self._fd = -1
        self._moved = 0.0
        self._reader: _Reader | None = None
        if from_end:
            self._open()
            self._from_end = False

    def read(self, final: bool) -> Chunk | None:
        """See `Tail`."""
        try:
            chunk = self._read(final)
        except OSError as error:
            self._once.trouble(self.path, f"{self.path} cannot be read: {error.strerror}; trying again")
            self._close()
            return None
        if chunk is None and not self._keep_open:
            self._close()
        return chunk

    def _read(self, final: bool) -> Chunk | None:
        for _ in range(3):  # a file, the one it became, and one more change while we looked
            if self._fd < 0 and not self._open():
                return None
            reader = self._reader
            assert reader is not None  # noqa: S101 - an open file has its reader
            info = os.fstat(self._fd)
            if info.st_size < reader.stream.read.offset or not self._same_head(reader.stream, info.st_size):
                say(f"{self.path} was truncated or written anew: reading it from its start")
                self._generation(info, 0)
                continue
            gone = self._replaced(info)
            chunk = reader.step(self._fd, info.st_size, final or gone)
            if chunk is not None or not gone:
                return chunk
            say(f"{self.path} is another file now: reading that one")
            self._close()
        return None

    def _open(self) -> bool:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._once.trouble(self.path, f"waiting for {self.path}")
            return False
        except OSError as error:
            self._once.trouble(self.path, f"{self.path} cannot be opened: {error.strerror}; trying again")
            return False
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            what = "a directory" if stat.S_ISDIR(info.st_mode) else "no regular file"
            self._once.trouble(
                self.path, f"{self.path} is {what}, not a file to read lines from; trying again"
            )
            return False
        self._once.over(self.path, f"reading {self.path}")
        self._fd = fd
        stream = self._reader.stream if self._reader else self._checkpoint.streams.get(self._key)
        if stream is None:
            self._generation(info, info.st_size if self._from_end else 0)
        elif stream.inode != (info.st_dev, info.st_ino):
            self._resume_elsewhere(stream, info)
        elif self._reader is None:
            self._reader = _Reader(self._files, self._key, stream, self._echo)
        return True

    def _resume_elsewhere(self, stream: Stream, info: os.stat_result) -> None:
        """Finish the file that was read before, where it now lies under another name, else begin this one."""
        old = _find(os.path.dirname(self.path), stream.inode) if self._reader is None else None  # noqa: PTH120
        if old is None:
            self._generation(info, 0)
            return
        os.close(self._fd)
        self._fd = old
        self._reader = _Reader(self._files, self._key, stream, self._echo)

    def _generation(self, info: os.stat_result, offset: int) -> None:
        before = self._checkpoint.streams.get(self._key)
        if before is not None:
            self.finished.append(before)
        inode = (info.st_dev, info.st_ino)
        stream = self._checkpoint.begin(self._key, Position(0, offset, 0, {}), inode)
        if before is not None:
            stream.stamp.last = before.stamp.last
        self._reader = _Reader(self._files, self._key, stream, self._echo)

    def _same_head(self, stream: Stream, size: int) -> bool:
        known = bytes.fromhex(stream.head)
        if not known and not size:
            return True
        head = os.pread(self._fd, HEAD, 0)
        same = head.startswith(known)
        if same and len(head) > len(known):
            stream.head = head.hex()
        return same

    def _replaced(self, info: os.stat_result) -> bool:
        """Say whether the name stands for another file, and this one has had time to be finished."""
        try:
            now = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return False  # renamed away, and nothing in its place yet: go on with it
        if (now.st_dev, now.st_ino) == (info.st_dev, info.st_ino):
            self._moved = 0.0
            return False
        self._moved = self._moved or time.monotonic()
        return time.monotonic() >= self._moved + SETTLE

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._moved = 0.0

    def rewind(self, stream: Stream, to: Position) -> None:
        """See `Tail`."""
        if self._reader is not None and stream is self._reader.stream:
            self._reader.rewind(to)

    def acknowledged(self, stream: Stream) -> None:
        """See `Tail`: a user's file stays as it is."""

    def directories(self) -> list[str]:
        """See `Tail`."""
        real = os.path.realpath(self.path)
        return list({os.path.dirname(self.path): 0, os.path.dirname(real): 0})  # noqa: PTH120


class TreeTail:
    """Follows every file of a directory that the source accepts, to any depth, also those that come later."""

    depends_on_start = True

    def __init__(self, root: str, files: Files, checkpoint: Checkpoint, *, from_end: bool = False) -> None:
        self.finished: list[Stream] = []
        self._root = root.rstrip("/") or "/"
        self._files = files
        self._checkpoint = checkpoint
        self._tails: dict[str, FileTail] = {}
        self._directories: list[str] = [self._root]
        self._once = Once()
        self._turn: Iterator[FileTail] | None = None
        self._look(from_end)

    def read(self, final: bool) -> Chunk | None:
        """See `Tail`: the files take turns."""
        if self._turn is None:
            self._look(False)
            self._turn = iter(list(self._tails.values()))
        for tail in self._turn:
            chunk = tail.read(final)
            self.finished += tail.finished
            tail.finished.clear()
            if chunk is not None:
                # It may have more: it comes again at the end of the turn.
                self._turn = iter([*self._turn, tail])
                return chunk
        self._turn = None
        return None

    def _look(self, from_end: bool) -> None:
        directories = [self._root]
        for directory in directories:
            try:
                entries = list(os.scandir(directory))
            except OSError as error:
                if directory == self._root and isinstance(error, FileNotFoundError):
                    self._once.trouble(directory, f"waiting for {directory}")
                else:
                    self._once.trouble(
                        directory, f"{directory} cannot be listed: {error.strerror}; trying again"
                    )
                continue
            self._once.over(directory, f"reading {directory}")
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        directories.append(entry.path)
                    continue
                key = entry.path[len(self._root) :].lstrip("/")
                if key not in self._tails and self._files.accepts(key):
                    self._tails[key] = FileTail(
                        entry.path,
                        key,
                        self._files,
                        self._checkpoint,
                        from_end=from_end,
                        keep_open=False,
                        once=self._once,
                    )
        self._directories = directories

    def rewind(self, stream: Stream, to: Position) -> None:
        """See `Tail`."""
        tail = self._tails.get(stream.key)
        if tail is not None:
            tail.rewind(stream, to)

    def acknowledged(self, stream: Stream) -> None:
        """See `Tail`: users' files stay as they are."""

    def directories(self) -> list[str]:
        """See `Tail`."""
        return self._directories


def _find(directory: str, inode: tuple[int, int]) -> int | None:
    """Open the file of this directory that has this inode."""
    try:
        for entry in os.scandir(directory or "."):
            if entry.inode() == inode[1] and entry.is_file():
                fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                info = os.fstat(fd)
                if (info.st_dev, info.st_ino) == inode:
                    return fd
                os.close(fd)
    except OSError:
        return None
    return None
