"""Feeds a parser the way a tail does: in pieces of any size, the unused rest again with more behind it."""

from collections.abc import Iterable

from collector.source import Parser
from trialtap.points import MetricPoint


def feed_all(parser: Parser, data: bytes, sizes: Iterable[int] = ()) -> list[MetricPoint]:
    """Read `data` to its end in pieces of the given sizes, what is left at once, then final."""
    points: list[MetricPoint] = []
    held = b""
    position = 0
    for size in (*sizes, len(data)):
        held += data[position : position + size]
        position += size
        used, found = parser.feed(held, False)
        assert 0 <= used <= len(held)
        points += found
        held = held[used:]
    _, found = parser.feed(held, True)
    return points + found
