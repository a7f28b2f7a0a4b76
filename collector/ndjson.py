"""Rows that could not be delivered, one JSON object a line on stdout, as `trialtap db import` reads them."""

import sys
from collections.abc import Iterable
from typing import NamedTuple, TextIO

from trialtap.points import MetricPoint, format_time


class Writer(NamedTuple):
    """What all rows of one pod's collector have in common (docs/delivery.md)."""

    trial: str
    namespace: str
    pod: str
    attempt: int

    def write(self, rows: Iterable[tuple[str, int, MetricPoint]], to: TextIO | None = None) -> int:
        """Print rows, each with its stream's id and its ordinal; return how many.

        Raises:
            OSError: stdout cannot be written.
        """
        import json  # noqa: PLC0415 - only when something is printed

        out = to or sys.stdout
        count = 0
        for stream, ordinal, point in rows:
            row = {
                "trial": self.trial,
                "namespace": self.namespace,
                "name": point.name,
                "value": point.value,
                "time": format_time(point.time),
                "step": point.step,
                "pod": self.pod,
                "stream": stream,
                "ordinal": ordinal,
                "attempt": self.attempt,
            }
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
        out.flush()
        return count
