"""Count, min, max and latest of each metric, row by row; pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from dbmanager.rows import MetricSummary, Row, rfc3339


def number(value: str) -> float | None:
    """The value as a finite number; None for `nan`, `inf` and text that is no number."""
    try:
        parsed = float(value)
    except ValueError:
        return None
    return parsed if isfinite(parsed) and "_" not in value else None


@dataclass
class _Running:
    count: int = 0
    least: float | None = None
    most: float | None = None
    min: str | None = None
    max: str | None = None
    latest: str = ""
    first: tuple[str, int] = ("~", 0)
    last: tuple[str, int, int] = ("", 0, 0)
    first_step: int | None = None
    last_step: int | None = None

    def add(self, row: Row) -> None:
        self.count += 1
        value = number(row.value)
        if value is not None:
            if self.least is None or value < self.least:
                self.least, self.min = value, row.value
            if self.most is None or value > self.most:
                self.most, self.max = value, row.value
        at = (row.time, row.ns)
        self.first = min(self.first, at)
        if (newest := (*at, row.id)) >= self.last:
            self.last, self.latest = newest, row.value
        if row.step is not None:
            self.first_step = row.step if self.first_step is None else min(self.first_step, row.step)
            self.last_step = row.step if self.last_step is None else max(self.last_step, row.step)


class Summary:
    """Feeds on rows of one trial, in any order, each once."""

    def __init__(self) -> None:
        self._metrics: dict[str, _Running] = {}
        self.last_id = 0
        """Greatest id fed: a later `Selection(after=...)` goes on from here."""

    def add(self, rows: Iterable[Row]) -> None:
        """Take more rows in."""
        for row in rows:
            running = self._metrics.get(row.name)
            if running is None:
                running = self._metrics[row.name] = _Running()
            running.add(row)
            self.last_id = max(self.last_id, row.id)

    def metrics(self) -> list[MetricSummary]:
        """What was seen so far, by the metric's name."""
        return [
            MetricSummary(
                name=name,
                count=seen.count,
                min=seen.min,
                max=seen.max,
                latest=seen.latest,
                first_time=rfc3339(*seen.first),
                last_time=rfc3339(seen.last[0], seen.last[1]),
                first_step=seen.first_step,
                last_step=seen.last_step,
            )
            for name, seen in sorted(self._metrics.items())
        ]
