"""A metric's rows as the few points that draw the same curve: pure, on arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAX_BUCKETS: Final = 4000
"""More buckets than any screen has columns."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn of one series, and what it came to.

    `x`, `y`, `means_x`, `means`, `weights` are of the range asked for, finite, in the order of x; the rest
    is of the whole series. Indices are those of the arrays that `curve` was given.

    Attributes:
        x: positions of the drawn points.
        y: their values: of every bucket its least and its greatest, and the very first and last.
        means_x: mean position of every bucket; empty when nothing was left out: `x`, `y` are the whole.
        means: mean of every bucket's values.
        weights: how many values each bucket holds.
        least_before: least finite value left of the range, None without one.
        greatest_before: likewise.
        count: rows of the series, whatever their value.
        nonfinite: rows whose value is `nan`, infinite or no number.
        first_nonfinite: index of the first of those by x, None without one.
        least: index of the first of the least finite values, None without one.
        greatest: index of the first of the greatest.
        latest: index of the last finite value by x.
    """

    x: Floats
    y: Floats
    means_x: Floats
    means: Floats
    weights: Integers
    least_before: float | None
    greatest_before: float | None
    count: int
    nonfinite: int
    first_nonfinite: int | None
    least: int | None
    greatest: int | None
    latest: int | None


def numbers(texts: Sequence[str | None]) -> Floats:
    """Values as floats; what is no number becomes nan."""
    try:
        return np.array(list(map(float, texts)), dtype=np.float64)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return np.array([number(text) for text in texts], dtype=np.float64)


def number(text: str | None) -> float:
    """One value as a float; nan for what is no number."""
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return np.nan


def curve(
    x: Floats, values: Floats, buckets: int, first: float | None = None, last: float | None = None
) -> Curve:
    """Thin a series to at most 2 x `buckets` + 2 points that keep every visible peak.

    The range is cut into `buckets` equal parts; each part keeps its least and its greatest value where they
    stand. A range of at most 2 x `buckets` finite values is kept whole. One point on either side of the
    range is kept too, so that the line runs on to the plot's edges.

    Args:
        x: positions, finite, in any order.
        values: as many values; the non-finite ones are counted and left out.
        buckets: 1 to MAX_BUCKETS.
        first: left end of the range to draw, None = the series' own; `last` likewise.
        last: see first.
    """
    order = np.argsort(x, kind="stable") if np.any(x[1:] < x[:-1]) else np.arange(x.size)
    finite = np.isfinite(values[order])
    missing = order[~finite]
    order = order[finite]
    xs, ys = x[order], values[order]
    begin = 0 if first is None else max(int(np.searchsorted(xs, first, "left")) - 1, 0)
    end = xs.size if last is None else int(np.searchsorted(xs, last, "right")) + 1
    drawn_x, drawn_y = xs[begin:end], ys[begin:end]
    keep: Any = slice(None)
    means_x = means = np.empty(0)
    weights = np.empty(0, dtype=np.int64)
    if drawn_y.size > 2 * buckets:
        keep, means_x, means, weights = _bucketed(drawn_x, drawn_y, buckets)
    return Curve(
        x=drawn_x[keep],
        y=drawn_y[keep],
        means_x=means_x,
        means=means,
        weights=weights,
        least_before=float(ys[:begin].min()) if begin else None,
        greatest_before=float(ys[:begin].max()) if begin else None,
        count=int(values.size),
        nonfinite=int(missing.size),
        first_nonfinite=int(missing[0]) if missing.size else None,
        least=int(order[np.argmin(ys)]) if ys.size else None,
        greatest=int(order[np.argmax(ys)]) if ys.size else None,
        latest=int(order[-1]) if ys.size else None,
    )


def _bucketed(x: Floats, y: Floats, buckets: int) -> tuple[NDArray[np.intp], Floats, Floats, Integers]:
    """Indices to keep, and every bucket's mean x, mean y and size. `x` ascends."""
    with np.errstate(over="ignore", invalid="ignore"):
        position = (x - x[0]) / (x[-1] - x[0])
    if not np.isfinite(position).all():  # one single x, or a span past the greatest float
        position = np.arange(x.size) / x.size
    bucket = np.minimum((position * buckets).astype(np.int64), buckets - 1)
    starts = np.concatenate(([0], np.flatnonzero(bucket[1:] != bucket[:-1]) + 1))
    sizes = np.diff(np.append(starts, x.size))
    lowest = _first_of_each(y == np.repeat(np.minimum.reduceat(y, starts), sizes), sizes)
    highest = _first_of_each(y == np.repeat(np.maximum.reduceat(y, starts), sizes), sizes)
    keep = np.unique(np.concatenate((lowest, highest, [0, x.size - 1])))
    # Divided before they are summed: the sum of values near the greatest float would be infinite.
    shares = np.repeat(sizes, sizes)
    return keep, np.add.reduceat(x / shares, starts), np.add.reduceat(y / shares, starts), sizes


def _first_of_each(hit: NDArray[np.bool_], sizes: Integers) -> NDArray[np.intp]:
    """Index of the first hit in every bucket; each bucket has one."""
    indices = np.flatnonzero(hit)
    owner = np.repeat(np.arange(sizes.size), sizes)[indices]
    return indices[np.concatenate(([True], owner[1:] != owner[:-1]))]
