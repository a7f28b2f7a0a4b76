"""A custom collector: reports the columns of a CSV file that a training appends to.

epoch,loss,accuracy
1,0.93,0.31
2,0.71,0.48
"""

import csv
from collections.abc import Iterator
from os import SEEK_END
from pathlib import Path

from collector.sdk import Args, Point, run


class CsvSource:
    """Reads whole rows as they are appended; its cursor is the number of bytes that were read."""

    def __init__(self, args: Args) -> None:
        """Take the file from `-path` and the columns from `-m`.

        Raises:
            ValueError: there is no path; the collector's log says so, and training goes on.
        """
        if not args.path:
            raise ValueError("-path: name the CSV file, in spec.metricsCollector.source.fileSystemPath.path")
        self.path = Path(args.path)
        self.metrics = args.metrics

    def points(self, cursor: int | None) -> Iterator[Point | None]:
        """Yield each cell of each new row; the step is the row's `step` or `epoch`."""
        offset = cursor or 0
        while True:
            for line, header, end in self._rows(offset):
                offset = end
                row = dict(zip(header, line, strict=False))
                step = row.get("step") or row.get("epoch") or ""
                found = [name for name in self.metrics if row.get(name)]
                for name in found:
                    # The row's last point carries the cursor: a row is kept whole, or read again whole.
                    last = offset if name == found[-1] else None
                    yield Point(name, row[name], step=int(step) if step.isdecimal() else None, cursor=last)
            yield None

    def _rows(self, offset: int) -> Iterator[tuple[list[str], list[str], int]]:
        """Give each whole row from `offset` on, the header, and where the row ends."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:  # the training has not begun to write
            return
        with file:
            if file.seek(0, SEEK_END) < offset:
                offset = 0  # the file was written anew
            file.seek(0)
            head = file.readline()
            offset = max(offset, len(head))
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # its rest is not written yet
                offset += len(line)
                yield _cells(line), _cells(head), offset


def _cells(line: bytes) -> list[str]:
    return next(csv.reader([line.decode("utf-8", "replace")]), [])


if __name__ == "__main__":
    run(CsvSource)
