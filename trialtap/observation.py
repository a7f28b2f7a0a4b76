"""A trial's rows as its observation: count, min, max and latest of each metric. Standard library only."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trialtap.names import UNAVAILABLE
from trialtap.points import MetricPoint


@dataclass(slots=True)
class Summary:
    """One metric's values.

    Attributes:
        count: rows, those that are no numbers included.
        min: the text of the least finite value; "unavailable" when there is none.
        max: the text of the greatest finite value.
        latest: the value of the newest time, ties to the later row; any text.
    """

    count: int = 0
    min: str = UNAVAILABLE
    max: str = UNAVAILABLE
    latest: str = UNAVAILABLE
    _least: float = math.inf
    _greatest: float = -math.inf
    _newest: int | None = None

    def add(self, point: MetricPoint) -> None:
        """Take one more row; `nan` and infinities are never best."""
        self.count += 1
        if self._newest is None or point.time >= self._newest:
            self._newest, self.latest = point.time, point.value
        try:
            number = float(point.value)
        except ValueError:
            return
        if not math.isfinite(number):
            return
        if number < self._least:
            self._least, self.min = number, point.value
        if number > self._greatest:
            self._greatest, self.max = number, point.value


def summarize(points: Iterable[MetricPoint]) -> dict[str, Summary]:
    """Summaries by metric name, in the order in which the names first came."""
    summaries: dict[str, Summary] = {}
    for point in points:
        summaries.setdefault(point.name, Summary()).add(point)
    return summaries
