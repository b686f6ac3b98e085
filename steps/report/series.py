"""Lines as numbers: what a curve is drawn from, and means along and across lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MEAN_POINTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line; `low` and `high`, where given, are drawn as a band."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    """None leaves a gap."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One recipe, run with several seeds."""

    name: str
    runs: Sequence[Series]
    """One a seed; their x may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A stretch of the x axis with a name, shaded."""

    name: str
    start: float
    end: float


def known_points(series: Series) -> tuple[Floats, Floats]:
    """x and y of the points with a value, in order of x."""
    points = sorted(
        (float(x), float(y))
        for x, y in zip(series.x, series.y, strict=True)
        if y is not None and math.isfinite(y)
    )
    table = np.array(points, dtype=float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def mean_curve(runs: Sequence[Series]) -> tuple[Floats, Floats]:
    """Mean of several lines over the x that all of them cover, linear between their points."""
    points = [each for each in map(known_points, runs) if len(each[0])]
    if not points:
        return np.empty(0), np.empty(0)
    start, stop = max(x[0] for x, _ in points), min(x[-1] for x, _ in points)
    if start > stop:
        return np.empty(0), np.empty(0)
    grid = np.linspace(start, stop, _MEAN_POINTS if stop > start else 1)
    return grid, np.mean([np.interp(grid, x, y) for x, y in points], axis=0)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and the `window - 1` before it, of fewer at the start."""
    return [
        sum(values[max(0, end - window) : end]) / min(window, end)
        for end in range(1, len(values) + 1)
    ]
