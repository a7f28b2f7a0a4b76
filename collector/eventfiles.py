"""The source of TensorFlowEvent: event files, and which of two forms a name has. The parser is imported when needed."""
# pathlib is 1 MiB of memory that a sidecar does without:
# ruff: noqa: PTH100, PTH113, PTH118, PTH119, PTH120, PTH123

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from collector.source import Findings, Parser, Stamp, State
from trialtap.argv import CollectorArgs

if TYPE_CHECKING:
    from collector.tags import Target

CHUNK: Final = 1 << 18
"""Bytes that are read at a time; more only where a record needs it."""
SAMPLE: Final = 200
"""Records of a file whose tags are noted for messages."""


class EventFiles:
    """The source: all event files below a directory, one run a directory.

    A name matches a tag that is the same, or `dir/tag` where `dir` is whole components at the end of the
    file's directory. Where both exist, the tag that is the same wins; once points of one form were given
    out, the other is left alone.
    """

    def __init__(self, args: CollectorArgs) -> None:
        self.directory = not os.path.isfile(args.path)
        self.chunk = CHUNK
        self.findings = Findings()
        self.check_all = False
        """True: also the checksums of records without a wanted tag are checked."""
        self.sample = SAMPLE
        self._root = args.path
        self._names = args.metrics
        self._forms: dict[str, bool] = {}
        self._runs: dict[str, str] = {}

    def accepts(self, path: str) -> bool:
        """Take what TensorBoard takes: files with `tfevents` in their name."""
        return "tfevents" in os.path.basename(path)

    def parser(self, path: str, stamp: Stamp, state: State) -> Parser:
        """Make the parser of one file; `state` is `EventParser.state`'s."""
        from collector.tfevents import EventParser  # noqa: PLC0415

        return EventParser(self, path, stamp, state)

    def targets(self, path: str) -> "list[Target]":
        """List the tags to look for in a file, each with the names that it answers."""
        from collector.tags import targets_in  # noqa: PLC0415

        root = os.path.abspath(self._root)
        file = os.path.join(root, path) if self.directory else root
        return targets_in(os.path.dirname(file), self._names)

    def literal(self, name: str, found: bool) -> bool:
        """Say whether `name` is read as a tag of that name, for good: it is if any file now holds one.

        Args:
            name: a metric.
            found: a tag of that name was just found.
        """
        if name not in self._forms:
            self._forms[name] = found or any(_holds(path, name) for path in self._files())
        return self._forms[name]

    def decided(self, forms: dict[str, bool]) -> None:
        """Take over what an earlier process decided."""
        for name, literal in forms.items():
            self._forms.setdefault(name, literal)

    def hit(self, name: str, run: str, tag: str) -> None:
        """Note the run that a name was found in; the second run is worth a warning."""
        first = self._runs.setdefault(name, run)
        if first in (run, ""):
            return
        self._runs[name] = ""  # said once
        one, other = (f"{place}/{tag}".removeprefix("./") for place in (first, run))
        self.findings.notes.append(
            f"metric {name!r} is in several runs, which are reported together: "
            f"ask for {one!r} or {other!r} to have one of them"
        )

    def _files(self) -> Iterator[str]:
        if not self.directory:
            yield self._root
            return
        for folder, _, files in os.walk(self._root):
            for file in files:
                path = os.path.join(folder, file)
                if self.accepts(path) and os.path.isfile(path):
                    yield path


def _holds(path: str, tag: str) -> bool:
    """Say whether an event file holds a record of just this tag."""
    args = CollectorArgs(trial="", metrics=(tag,), path=path)
    source = EventFiles(args)
    source.decided({tag: True})
    source.sample = 0
    parser = source.parser(os.path.basename(path), Stamp(), {})
    held = b""
    try:
        with open(path, "rb") as file:
            while data := file.read(CHUNK):
                used, points = parser.feed(held + data, False)
                if points:
                    return True
                held = (held + data)[used:]
    except OSError:
        return False  # unreadable, or gone: the tail says so
    return False
