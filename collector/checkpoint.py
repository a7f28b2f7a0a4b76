"""Where reading stands, in one small file of the private volume that is replaced as a whole.

```
id       32 hex digits, born with the checkpoint
numbers  how many streams have been numbered so far
streams  key (a path, or the segments' prefix) -> what `Stream.save` gives
rules    state of the early-stopping rules
flags    what has happened: `objective` was seen, `stop` was begun, …
```
"""

import os
from typing import Any, NamedTuple

from collector.source import Stamp, State

VERSION = 1


class Position(NamedTuple):
    """A place in a stream at which reading can begin.

    Attributes:
        segment: number of the segment; 0 where the stream is one file.
        offset: bytes from the file's or segment's start.
        ordinal: how many points stand before it since the stream began.
        state: the parser's state there.
    """

    segment: int
    offset: int
    ordinal: int
    state: State


class Stream:
    """One generation of one source file, as this pod's collector reads it.

    Attributes:
        id: unique over all pods: the checkpoint's id and this stream's number.
        key: the file's path below the source's directory, or the segments' prefix.
        inode: device and inode; (0, 0) for segments.
        head: the file's first bytes in hexadecimal, by which a file written anew is told.
        read: where reading goes on.
        acked: all before it is in the database.
        marks: earlier places from which it can be read again, oldest first.
        counted: points below this ordinal have gone through the stop rules.
        stamp: times for lines without one.
        ended: the database has been, or is to be, told that no more is expected.
    """

    __slots__ = ("acked", "counted", "ended", "head", "id", "inode", "key", "marks", "read", "stamp")

    def __init__(self, id_: str, key: str, begin: Position, inode: tuple[int, int] = (0, 0)) -> None:
        self.id = id_
        self.key = key
        self.inode = inode
        self.head = ""
        self.read = begin
        self.acked = begin
        self.marks = [begin]
        self.counted = begin.ordinal
        self.stamp = Stamp()
        self.ended = False

    def save(self) -> dict[str, Any]:
        """Give what `load` needs."""
        return {
            "id": self.id,
            "inode": self.inode,
            "head": self.head,
            "acked": self.acked,
            "marks": self.marks,
            "counted": self.counted,
            "last": self.stamp.last,
            "ended": self.ended,
        }

    @classmethod
    def load(cls, key: str, saved: dict[str, Any]) -> "Stream":
        """Make the stream anew; reading goes on from what was acknowledged.

        Raises:
            KeyError, TypeError, ValueError: it was not written by `save`.
        """
        stream = cls(str(saved["id"]), key, Position(*saved["acked"]))
        device, inode = saved["inode"]
        stream.inode, stream.head = (int(device), int(inode)), str(saved["head"])
        stream.marks = [Position(*mark) for mark in saved["marks"]]
        stream.counted = int(saved["counted"])
        stream.stamp.last = int(saved["last"])
        stream.ended = bool(saved["ended"])
        return stream


class Checkpoint:
    """What survives a restart of the collector, in memory; `save` writes it, `load` reads it."""

    __slots__ = ("_path", "flags", "fresh", "id", "numbers", "rules", "streams")

    def __init__(self, path: str) -> None:
        self._path = path
        self.id = os.urandom(16).hex()
        self.numbers = 0
        self.streams: dict[str, Stream] = {}
        self.rules: State | None = None
        self.flags: dict[str, Any] = {}
        self.fresh = True
        """There was no checkpoint: training has not begun, or what was there is lost."""

    def begin(self, key: str, at: Position, inode: tuple[int, int] = (0, 0)) -> Stream:
        """Begin a new stream under this key; the one before it is forgotten."""
        self.numbers += 1
        stream = Stream(f"{self.id}-{self.numbers}", key, at, inode)
        self.streams[key] = stream
        return stream

    def text(self) -> str:
        """Write down what is in memory now."""
        import json  # noqa: PLC0415 - 0.4 MiB that a sidecar whose training says nothing can do without

        return json.dumps(
            {
                "version": VERSION,
                "id": self.id,
                "numbers": self.numbers,
                "streams": {key: stream.save() for key, stream in self.streams.items()},
                "rules": self.rules,
                "flags": self.flags,
            },
            separators=(",", ":"),
        )

    def write(self, text: str) -> None:
        """Replace the file by what `text` gave, durably.

        Raises:
            OSError: the volume is full, read-only or gone; the file before stays whole.
        """
        new = f"{self._path}.new"
        with open(new, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, self._path)  # noqa: PTH104

    def save(self) -> None:
        """Replace the file by what is in memory; raises what `write` does."""
        self.write(self.text())

    @classmethod
    def load(cls, path: str) -> tuple["Checkpoint", str]:
        """Read the checkpoint; where there is none, or none that can be read, begin a new one.

        Returns:
            The checkpoint, and what was wrong with the file: empty when nothing was.
        """
        checkpoint = cls(path)
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                text = file.read()
            import json  # noqa: PLC0415

            saved = json.loads(text)
            if saved["version"] != VERSION:
                return checkpoint, f"checkpoint {path} is of version {saved['version']}: begun anew"
            loaded = cls(path)
            loaded.id, loaded.numbers = str(saved["id"]), int(saved["numbers"])
            loaded.streams = {key: Stream.load(key, stream) for key, stream in saved["streams"].items()}
            loaded.rules, loaded.flags = saved["rules"], dict(saved["flags"])
            loaded.fresh = False
        except FileNotFoundError:
            return checkpoint, ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return checkpoint, f"checkpoint {path} cannot be read ({error!r}): begun anew"
        return loaded, ""
