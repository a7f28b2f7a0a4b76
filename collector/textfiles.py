"""The source of StdOut and File: text. The parsers are imported when there is something to parse."""

from typing import TYPE_CHECKING

from collector.source import Findings, Parser, Stamp, State
from trialtap.argv import CollectorArgs

if TYPE_CHECKING:
    from collector.text import Pattern


class TextFiles:
    """The source of StdOut and File: text."""

    directory = False
    chunk = 1 << 16

    def __init__(self, args: CollectorArgs) -> None:
        """Compile the patterns.

        Raises:
            ValueError: a pattern is no RE2 pattern with two groups; the message names it.
        """
        self.findings = Findings()
        self._names = tuple(dict.fromkeys(name for name in args.metrics if name))
        self._patterns: tuple[Pattern, ...] = ()
        if args.filters:
            from collector.text import compile_filters  # noqa: PLC0415

            self._patterns = compile_filters(args.filters)

    def accepts(self, path: str) -> bool:
        """See `Files`: one file is read, whatever its name."""
        return bool(path)

    def parser(self, path: str, stamp: Stamp, state: State) -> Parser:
        """See `Files`: lines stand each for itself."""
        del path, state
        from collector.text import NameParser, PatternParser  # noqa: PLC0415

        if self._patterns:
            return PatternParser(self._names, self._patterns, stamp, self.findings)
        return NameParser(self._names, stamp, self.findings)
