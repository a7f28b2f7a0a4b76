"""The source of File with format JSON. The parser is imported when there is something to parse."""

from typing import Final

from collector.source import Findings, Parser, Stamp, State
from trialtap.argv import CollectorArgs

SAMPLE: Final = 2_000
"""Records of a file whose names are noted for messages."""


class JsonFiles:
    """The source: a file of JSON objects."""

    def __init__(self, args: CollectorArgs) -> None:
        self.directory = False
        self.chunk = 1 << 16
        self.findings = Findings()
        self.sample = SAMPLE
        """Records of a file whose names are noted."""
        self._names = args.metrics

    def accepts(self, path: str) -> bool:
        """Take every file: the directory was named as the place of the metrics."""
        return bool(path)

    def parser(self, path: str, stamp: Stamp, state: State) -> Parser:
        """Make the parser of one file; it needs no state."""
        del path, state
        from collector.jsonlines import JsonLines  # noqa: PLC0415

        return JsonLines(self._names, stamp, self.findings, self.sample)
