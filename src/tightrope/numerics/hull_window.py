"""The cheapest way to absorb pushes when the distance is known to be bounded all the time.

The problem of `hull`, with one more choice: forget everything before the last k steps and start
there at distance `diameter`. Any k gives a valid cost; the best one is wanted.

Error: sums of positive numbers, relative error at most 8 T 2^-53. Windows whose weight
c_{t+1} ... c_T leaves [1e-140, 1e140] are not tried; each window alone gives a valid cost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Window", "least_window_cost"]

FloatArray = NDArray[np.float64]

_LARGEST_WEIGHT = 1e140


@final
@dataclass(frozen=True)
class Window:
    """The least cost found, and how many of the last steps it uses."""

    cost: float
    length: int


def least_window_cost(
    pushes: Sequence[float] | FloatArray,
    factors: Sequence[float] | FloatArray,
    scales: Sequence[float] | FloatArray,
    diameter: float,
) -> Window:
    """Least cost over all starts "distance `diameter`, k steps before the end", k >= 1.

    From the end, with w_t = c_{t+1} ... c_T, point t is X_t = sum_{i>t} (sigma_i w_i)^2,
    Y_t = sum_{i>t} s_i w_i, and what is still to be absorbed is the least concave majorant of the
    points 0..k together with (X_k, Y_k + diameter w_k).
    """
    hull = _Majorant()
    best = Window(math.inf, 0)
    weight, x, y = 1.0, 0.0, 0.0
    columns = (_as_list(values)[::-1] for values in (pushes, factors, scales))
    for length, (s, c, sigma) in enumerate(zip(*columns, strict=True), start=1):
        x += (sigma * weight) ** 2
        y += s * weight
        weight *= c
        cost = hull.cost_to(x, y + diameter * weight)
        if cost < best.cost:
            best = Window(cost, length)
        hull.add(x, y)
        # every longer window costs at least as much as its points alone
        in_range = 1.0 / _LARGEST_WEIGHT < weight < _LARGEST_WEIGHT
        if hull.cost >= best.cost or not in_range:
            break
    return best


def _as_list(values: Sequence[float] | FloatArray) -> list[float]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


class _Majorant:
    """Least concave majorant of points that arrive from left to right."""

    def __init__(self) -> None:
        self.xs, self.ys, self.costs = [0.0], [0.0], [0.0]
        self.slopes: list[float] = []  # of the segments, decreasing

    @property
    def cost(self) -> float:
        return self.costs[-1]

    def cost_to(self, x: float, y: float) -> float:
        """Cost of the majorant with (x, y) as its last point."""
        return self.costs[k := self._tangent(x, y)] + _cost(x - self.xs[k], y - self.ys[k])

    def add(self, x: float, y: float) -> None:
        keep = self._tangent(x, y)
        cost = self.costs[keep] + _cost(x - self.xs[keep], y - self.ys[keep])
        slope = _slope(x - self.xs[keep], y - self.ys[keep])
        for values, value in ((self.xs, x), (self.ys, y), (self.costs, cost)):
            values[keep + 1 :] = [value]
        self.slopes[keep:] = [slope]

    def _tangent(self, x: float, y: float) -> int:
        """The last vertex that the majorant keeps when (x, y) is added on the right."""
        top = len(self.xs) - 1
        if not self._hides(top - 1, x, y):
            return top
        return bisect_left(range(top), True, key=lambda k: self._hides(k, x, y))

    def _hides(self, k: int, x: float, y: float) -> bool:
        """Does the line from vertex k to (x, y) pass above segment k?"""
        return k >= 0 and self.slopes[k] <= _slope(x - self.xs[k], y - self.ys[k])


def _slope(dx: float, dy: float) -> float:
    return dy / dx if dx > 0.0 else (math.inf if dy > 0.0 else 0.0)


def _cost(dx: float, dy: float) -> float:
    return dy * dy / dx if dx > 0.0 else (math.inf if dy > 0.0 else 0.0)
