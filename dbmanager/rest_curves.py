"""A metric's rows as the few points that draw the same curve: pure, on arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_BUCKETS: Final = 4000
"""More buckets than any screen has columns."""


@dataclass(frozen=True, slots=True)
class Extreme:
    """The first of the least (or greatest) finite values of a curve, and where it stands on the x axis."""

    value: float
    x: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn of one series. All arrays are in the order of x; `y` and `means` are finite.

    Attributes:
        x: positions of the drawn points.
        y: their values: of every bucket its least and its greatest, and the very first and last.
        means_x: middle of every bucket; empty when nothing was left out, so that `x`, `y` are the whole.
        means: mean of every bucket's values.
        weights: how many values each bucket holds.
        count: rows of the series, whatever their value.
        nonfinite: rows whose value is `nan`, infinite or no number.
        nonfinite_x: where the first of those stands, None without one.
        least: see Extreme; None without a finite value.
        greatest: see Extreme.
        latest: the last finite value by x.
    """

    x: Floats
    y: Floats
    means_x: Floats
    means: Floats
    weights: NDArray[np.int64]
    count: int
    nonfinite: int
    nonfinite_x: float | None
    least: Extreme | None
    greatest: Extreme | None
    latest: Extreme | None


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


def curve(x: Floats, values: Floats, buckets: int) -> Curve:
    """Thin a series to at most 2 x `buckets` + 2 points that keep every visible peak.

    The x axis is cut into `buckets` equal parts; each part keeps its least and its greatest value where
    they stand. A series of at most 2 x `buckets` finite values is kept whole.

    Args:
        x: positions, finite, in any order.
        values: as many values; the non-finite ones are counted and left out.
        buckets: 1 to MAX_BUCKETS.
    """
    order = np.argsort(x, kind="stable") if np.any(x[1:] < x[:-1]) else slice(None)
    x, values = x[order], values[order]
    finite = np.isfinite(values)
    missing = np.flatnonzero(~finite)
    xs, ys = (x, values) if missing.size == 0 else (x[finite], values[finite])
    keep: Any = slice(None)
    means_x = means = np.empty(0)
    weights = np.empty(0, dtype=np.int64)
    if ys.size > 2 * buckets:
        keep, means_x, means, weights = _bucketed(xs, ys, buckets)
    return Curve(
        x=xs[keep],
        y=ys[keep],
        means_x=means_x,
        means=means,
        weights=weights,
        count=int(values.size),
        nonfinite=int(missing.size),
        nonfinite_x=float(x[missing[0]]) if missing.size else None,
        least=_at(xs, ys, int(np.argmin(ys))) if ys.size else None,
        greatest=_at(xs, ys, int(np.argmax(ys))) if ys.size else None,
        latest=_at(xs, ys, -1) if ys.size else None,
    )


def _at(x: Floats, y: Floats, index: int) -> Extreme:
    return Extreme(float(y[index]), float(x[index]))


def _bucketed(
    x: Floats, y: Floats, buckets: int
) -> tuple[NDArray[np.intp], Floats, Floats, NDArray[np.int64]]:
    """Indices to keep, and every bucket's mean x, mean y and size. `x` ascends."""
    span = x[-1] - x[0]
    position = (x - x[0]) / span if span > 0 else np.arange(x.size) / x.size
    bucket = np.minimum((position * buckets).astype(np.int64), buckets - 1)
    starts = np.concatenate(([0], np.flatnonzero(bucket[1:] != bucket[:-1]) + 1))
    sizes = np.diff(np.append(starts, x.size))
    lowest = _first_of_each(y == np.repeat(np.minimum.reduceat(y, starts), sizes), sizes)
    highest = _first_of_each(y == np.repeat(np.maximum.reduceat(y, starts), sizes), sizes)
    keep = np.unique(np.concatenate((lowest, highest, [0, x.size - 1])))
    # Halved before they are summed: the sum of values near the greatest float would be infinite.
    means = np.add.reduceat(y / 2 / np.repeat(sizes, sizes), starts) * 2
    means_x = x[0] + np.add.reduceat(x - x[0], starts) / sizes
    return keep, means_x, means, sizes


def _first_of_each(hit: NDArray[np.bool_], sizes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Index of the first hit in every bucket; each bucket has one."""
    indices = np.flatnonzero(hit)
    owner = np.repeat(np.arange(sizes.size), sizes)[indices]
    return indices[np.concatenate(([True], owner[1:] != owner[:-1]))]
