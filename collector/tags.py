"""The tags that are wanted from one event file: where their bytes stand, and what their records are made of."""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from collector import summaries


class Answer(NamedTuple):
    """A name that a tag answers: itself (`literal`), or with the directory before it."""

    name: str
    literal: bool


class Target:
    """One tag that is looked for in one file.

    Records of one tag differ in step, time and value alone, as a rule. What one record was found to be made
    of is kept, and the next that is the same but for those is read without decoding it.

    Attributes:
        tag: the tag's bytes.
        needle: the field `tag` as it stands in a Summary.Value.
        answers: the names that the tag may answer.
        live: the names to report, once it is known which form each of them takes.
        before: what stands from the step's end to the number, in the learnt record; None: none is learnt.
        behind: what stands from the number's end to the record's.
        offset: bytes from the needle's beginning to the number.
        width: the number's bytes.
        read: reads the number at a place of a buffer.
        write: gives its text.
    """

    __slots__ = ("answers", "before", "behind", "live", "needle", "offset", "read", "tag", "width", "write")

    def __init__(self, tag: str, answers: Sequence[Answer]) -> None:
        self.tag = tag.encode("utf-8", "surrogateescape")
        self.needle = b"\x0a" + _varint(len(self.tag)) + self.tag
        self.answers = tuple(answers)
        self.live: tuple[str, ...] | None = None
        self.before: bytes | None = None
        self.behind = b""
        self.offset = self.width = 0
        self.read: Callable[[bytes, int], tuple[float, ...]] = struct.Struct("<f").unpack_from
        self.write: Callable[[float], str] = str

    def learn(self, data: bytes, between: tuple[int, int], end: int, found: summaries.Scalar) -> None:
        """Keep what a record is made of.

        Args:
            data: what holds the record.
            between: where its step ends (-1: it does not begin as all do) and where the needle stands.
            end: where it ends.
            found: the number in it.
        """
        step_end, hit = between
        if step_end < 0 or found.position < hit or not data.startswith(self.needle, hit):
            return
        self.width = struct.calcsize(found.code)
        self.offset = found.position - hit
        self.before = data[step_end : found.position]
        self.behind = data[found.position + self.width : end]
        self.read = struct.Struct(found.code).unpack_from
        self.write = found.write


class Search:
    """Finds the next place in a buffer where the bytes of any wanted tag stand.

    Attributes:
        target: whose bytes were found last; without meaning when none were.
    """

    __slots__ = ("_data", "_places", "_targets", "target")

    def __init__(self, data: bytes, targets: Sequence[Target]) -> None:
        self._data = data
        self._targets = targets
        self._places = [-1] * len(targets)
        self.target = targets[0] if targets else Target("", ())

    def next(self, position: int) -> int:
        """Give the first place at or behind `position`; the buffer's end if there is none."""
        data, places = self._data, self._places
        if len(places) == 1:
            place = data.find(self.target.needle, position)
            return place if place >= 0 else len(data)
        first = len(data)
        for index, target in enumerate(self._targets):
            place = places[index]
            if place < position:
                place = data.find(target.needle, position)
                places[index] = place = place if place >= 0 else len(data)
            if place < first:
                first = place
                self.target = target
        return first


def targets_in(directory: str, names: Sequence[str]) -> list[Target]:
    """List the tags that are wanted from a file in `directory` (an absolute path).

    A name is wanted as a tag of its own, and as `dir/tag` where `dir` is whole components at the end of
    `directory`.
    """
    found: dict[str, list[Answer]] = {}
    place = f"/{directory.strip('/')}"
    for name in names:
        found.setdefault(name, []).append(Answer(name, True))
        for folder, tag in _splits(name):
            if place.endswith(f"/{folder}"):
                found.setdefault(tag, []).append(Answer(name, False))
    return [Target(tag, answers) for tag, answers in found.items()]


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """List the ways to read `a/b/c` as directory and tag: `a` and `b/c`, `a/b` and `c`."""
    cut = name.find("/", 1)
    while 0 < cut < len(name) - 1:
        yield name[:cut].strip("/"), name[cut + 1 :]
        cut = name.find("/", cut + 1)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append((value & 0x7F) | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
