"""The cheapest way to absorb pushes when the distance is known to be bounded all the time.

The problem of `hull`, with one more choice: forget everything before the last k steps and start
there at distance `diameter`. Any k gives a valid cost; the best one is wanted.

Error: sums of positive numbers, relative error at most 8 T 2^-53. Windows whose weight
c_{t+1} ... c_T leaves [1e-140, 1e140] are not tried, nor starts before the last 2^18 pushes unless
every step has one; each window alone gives a valid cost.
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
_MOST_EVENTS = 2**18


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
    s, c, sigma = (np.asarray(v, dtype=np.float64)[::-1] for v in (pushes, factors, scales))
    with np.errstate(over="ignore", under="ignore"):
        weight = np.append(1.0, np.cumprod(c))  # before the first step from the end, after it, ...
    outside = np.flatnonzero((weight < 1.0 / _LARGEST_WEIGHT) | (weight > _LARGEST_WEIGHT))
    steps = min(len(s), int(outside[0])) if len(outside) else len(s)
    dx, dy = (sigma[:steps] * weight[:steps]) ** 2, s[:steps] * weight[:steps]
    x, y = np.cumsum(dx), np.cumsum(dy)
    goal = y + diameter * weight[1 : steps + 1]
    if np.all(s[:steps] > 0.0) and _convex(dx, dy):
        # every majorant is the chord from the origin; 1e-12 covers the tolerance of _convex
        best = int(np.argmin(costs := goal * (goal / x)))
        return Window(float(costs[best]) * (1.0 + 1e-12), best + 1)
    # one more step without a push that does not expand is never a worse start
    start = np.ones(steps, bool)
    start[:-1] = (s[1:steps] > 0.0) | (c[1:steps] > 1.0)
    return _search(x, y, goal, start, s[:steps] > 0.0)


def _convex(dx: FloatArray, dy: FloatArray) -> bool:
    """Do the slopes dy/dx never fall, up to rounding?"""
    if not dx.all():
        return False
    slopes = dy / dx
    return bool(np.all(np.diff(slopes) >= -1e-13 * slopes[1:]))


def _search(
    x: FloatArray,
    y: FloatArray,
    goal: FloatArray,
    start: NDArray[np.bool_],
    point: NDArray[np.bool_],
) -> Window:
    """The best start; only steps with a push can be vertices of the majorant."""
    hull, best = _Majorant(), Window(math.inf, 0)
    events = np.flatnonzero(start | point)[:_MOST_EVENTS]
    rows = (values[events].tolist() for values in (x, y, goal, start, point))
    for step, at, height, target, starts, pushed in zip(events.tolist(), *rows, strict=True):
        if starts and (cost := hull.cost_to(at, target)) < best.cost:
            best = Window(cost, step + 1)
        if pushed:
            hull.add(at, height)
            if hull.cost >= best.cost:  # every longer window costs at least its points alone
                break
    return best


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
        for k in range(top, max(top - 8, 0), -1):  # usually within the last few
            if not self._hides(k - 1, x, y):
                return k
        return bisect_left(range(max(top - 8, 0)), True, key=lambda k: self._hides(k, x, y))

    def _hides(self, k: int, x: float, y: float) -> bool:
        """Does the line from vertex k to (x, y) pass above segment k?"""
        return self.slopes[k] <= _slope(x - self.xs[k], y - self.ys[k])


def _slope(dx: float, dy: float) -> float:
    return dy / dx if dx > 0.0 else (math.inf if dy > 0.0 else 0.0)


def _cost(dx: float, dy: float) -> float:
    return dy * dy / dx if dx > 0.0 else (math.inf if dy > 0.0 else 0.0)
