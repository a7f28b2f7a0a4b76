"""The tags that are wanted from one event file: where their bytes stand, and what their records are made of."""

import struct
from collections.abc import Iterator, Sequence
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
    """

    __slots__ = (
        "_code",
        "_offset",
        "_post",
        "_pre",
        "_rest",
        "_width",
        "_write",
        "answers",
        "live",
        "needle",
        "tag",
    )

    def __init__(self, tag: str, answers: Sequence[Answer]) -> None:
        self.tag = tag.encode("utf-8", "surrogateescape")
        self.needle = b"\x0a" + _varint(len(self.tag)) + self.tag
        self.answers = tuple(answers)
        self.live: tuple[str, ...] | None = None
        self._rest: bytes | None = None

    def learn(self, data: bytes, between: tuple[int, int], end: int, found: summaries.Scalar) -> None:
        """Keep what a record is made of.

        Args:
            data: what holds the record.
            between: where its step ends and where the needle stands.
            end: where it ends.
            found: the number in it.
        """
        step_end, hit = between
        tail = hit + len(self.needle)
        if step_end < 0 or found.position < tail or not data.startswith(self.needle, hit):
            return
        self._width = struct.calcsize(found.code)
        self._offset = found.position - tail
        self._rest = data[step_end:hit]
        self._pre = data[tail : found.position]
        self._post = data[found.position + self._width : end]
        self._code = struct.Struct(found.code).unpack_from
        self._write = found.write

    def known(self, data: bytes, step_end: int, hit: int, end: int) -> str | None:
        """Give the value of a record that is as the learnt one but for step, time and number; else None."""
        if self._rest is None or data[step_end:hit] != self._rest:
            return None
        number = hit + len(self.needle) + self._offset
        behind = number + self._width
        if end - behind != len(self._post) or not data.startswith(self._post, behind):
            return None
        if not data.startswith(self._pre, number - self._offset):
            return None
        return self._write(*self._code(data, number))


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
