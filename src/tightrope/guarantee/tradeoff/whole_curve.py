"""The trade-off function at many points from a few values of the profile, from both sides.

Statement: with x = e^eps, delta is convex in x, falls, and falls no faster than x rises (its slope
    is -Q(L > eps)). f(a) is the supremum over x >= 1 of 1 - delta - x a and (1 - delta - a)/x.
    Any point (x, delta) puts both below f. Where delta is at least a polygon, both are largest at
    its corners: they are linear in x, or in 1/x, between them. On a cell between two known points
    the polygon is made of the chords of the neighbouring cells, extended; before the first point
    of slope -1, after the last of slope 0, and beyond the last point delta is at least 0.
Conditions: delta(eps) is the profile of both orders of the neighbours (the worse one).
Validity: exact, both ends.
Source: as for `of_profile`.
Error: rounding is taken outward; the width is that of the cells, which are halved where it is
    largest, until it is small or enough points are known.
Vectors: tests/unit/guarantee/test_arrays.py, against the function one point at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
from scipy.special import ndtri

from tightrope.guarantee.tradeoff.of_profile import Profile
from tightrope.numerics.interval import IntervalArray
from tightrope.validate import FloatArray, check_probability

__all__ = ["tradeoff_curve", "HitRate"]

_FIRST, _MOST, _TOGETHER = 9, 96, 8  # points of the profile; cells halved in one round
_GOAL = 1e-6  # of the width, relative to the hit rate, or to f
_SMALL, _ROUNDING = 1e-13, 2e-15  # of the corners, and of what they are worth
_LARGEST_EPSILON = 700.0


def tradeoff_curve(profile: Profile, type_i: FloatArray) -> IntervalArray:
    """f at all of these points."""
    a = np.asarray(check_probability(type_i, "type_i"), dtype=np.float64)
    known = _Known(profile)
    smallest = float(np.min(a[a > 0.0], initial=1.0))
    known.start(smallest)
    while True:
        lower, upper, cell = known.bounds(a)
        share = (upper - lower) / np.maximum(np.minimum(upper, 1.0 - lower), 1e-300)
        worst = np.argsort(share)[::-1]
        wanted = list(dict.fromkeys(int(cell[i]) for i in worst if share[i] > _GOAL))[:_TOGETHER]
        if not wanted or not known.halve(wanted):
            break
    ends = np.clip(lower, 0.0, 1.0 - a), np.clip(upper, 0.0, 1.0 - a)
    return IntervalArray(*(np.where(a == 1.0, 0.0, end) for end in ends))


@final
class _Known:
    """Values of the profile, and the corners of the polygon below it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.points: dict[float, tuple[float, float]] = {}

    def _ask(self, epsilon: float) -> None:
        if epsilon not in self.points:
            found = self.profile.sharp(epsilon, 0.0)
            self.points[epsilon] = (found.lower, found.upper)

    def start(self, smallest: float) -> None:
        """Up to where x a is beyond every gain; evenly spread."""
        last = 1.0
        self._ask(0.0)
        while last < _LARGEST_EPSILON:
            self._ask(last)
            if self.points[last][1] < 1e-4 * smallest:
                break
            last *= 2.0
        last = min(last, _LARGEST_EPSILON)
        for epsilon in np.linspace(0.0, last, _FIRST):
            self._ask(float(epsilon))

    def halve(self, cells: list[int]) -> bool:
        """Halves some cells; False where nothing is won any more."""
        at = sorted(self.points)
        before = len(at)
        for cell in cells:
            if cell + 1 < len(at) and before < _MOST:
                self._ask(0.5 * (at[cell] + at[cell + 1]))
        return len(self.points) > before

    def bounds(self, a: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Both ends, and the cell that the upper one comes from."""
        at = np.array(sorted(self.points))
        low, high = np.array([self.points[e] for e in at.tolist()]).T
        lower = _gains(np.exp(at), high * (1.0 + _SMALL), a, -_ROUNDING).max(axis=1)
        x, delta = _corners(np.exp(at), low, high)
        upper = _gains(x, delta, a, _ROUNDING)
        best = upper.argmax(axis=1)
        beyond = np.maximum(1.0 - x[-1] * a, (1.0 - a) / x[-1])
        top = np.maximum(upper.max(axis=1), beyond)
        cell = np.minimum(best // 2, len(at) - 2)
        return lower * (1.0 - _ROUNDING), top * (1.0 + _ROUNDING), cell


def _gains(x: FloatArray, delta: FloatArray, a: FloatArray, rounding: float) -> FloatArray:
    """The larger of 1 - delta - x a and (1 - delta - a)/x, (points a, points x)."""
    steep = 1.0 - delta - x * a[:, None] + rounding * (1.0 + x * a[:, None])
    return np.asarray(np.maximum(steep, (1.0 - delta - a[:, None] + rounding) / x))


def _corners(x: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points known and, between them, where the extended chords meet: alternating."""
    cells = len(x) - 1
    left, right = np.full(cells, -1.0), np.zeros(cells)  # slopes of the lines from each side
    gaps = np.diff(x)
    left[1:] = np.maximum(-1.0, (low[1:-1] - high[:-2]) / gaps[:-1])
    right[:-1] = np.minimum(0.0, (high[2:] - low[1:-1]) / gaps[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        along = (low[1:] - low[:-1] - right * gaps) / (left - right)
    apart = left < right  # where rounding has them the other way round, delta falls: that is all
    along = np.where(apart, np.clip(along, 0.0, gaps), 0.0)
    meet = np.maximum(low[:-1] + left * along, low[1:] - right * (gaps - along))
    meet = np.where(apart, meet, low[1:])
    meet = meet - _SMALL * (low[:-1] + np.abs(left) * gaps + np.abs(right) * gaps)
    xs, deltas = np.empty(2 * cells + 1), np.empty(2 * cells + 1)
    xs[0::2], deltas[0::2] = x, low * (1.0 - _SMALL)
    xs[1::2], deltas[1::2] = x[:-1] + along, np.maximum(meet, low[1:] * (1.0 - _SMALL))
    return xs, deltas


# ---- One line under a trade-off curve: a proof that an attack finds few --------------------------
# Statement: an attack with false positive rate a finds at most t of the members if
#     delta(eps) <= t - e^eps a for one eps >= 0, or the same of a' = 1 - t, t' = 1 - a (a trade-off
#     function for both orders of the neighbours is its own mirror image).
# Validity: bound for every eps; exact for the best one.
# Source: Wasserman and Zhou 2010; Dong, Roth and Su 2019 (arXiv:1905.02383), Proposition 2.5.
# Error: none; a search that stops early only asks for more noise than needed.


_NO_ROOM = 1e6


class HitRate(NamedTuple):
    """At most `hits` at this rate of false alarms; 0 < alarms < hits < 1."""

    alarms: float
    hits: float

    def lower_half(self) -> HitRate:
        """The mirror image whose line falls steeply, eps >= 0."""
        mirrored = HitRate(1.0 - self.hits, 1.0 - self.alarms)
        return mirrored if self.alarms > mirrored.alarms else self

    @property
    def mu(self) -> float:
        """The Gaussian curve through it."""
        return float(ndtri(self.hits) - ndtri(self.alarms))

    def excess(self, epsilon: float, delta: float) -> float:
        """ln(delta/(t - e^eps a)): at most 0 where this line proves it."""
        room = self.hits - math.exp(epsilon) * self.alarms if epsilon >= 0.0 else 0.0
        if room <= 0.0:
            return _NO_ROOM + abs(epsilon)
        return math.log(max(delta, 1e-300) / room)

    def best_line(self, delta: Callable[[float], float], tolerance: float = 1e-4) -> float:
        """The epsilon of the least excess, which is quasi-convex in e^eps.

        The search starts where a Gaussian curve has its line; any epsilon is on the safe side.
        """
        from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

        last = math.log(self.hits / self.alarms)

        def excess(epsilon: float) -> float:
            inside = 0.0 <= epsilon < last
            return self.excess(epsilon, delta(epsilon)) if inside else _NO_ROOM + abs(epsilon)

        near = -self.mu * float(ndtri(self.alarms)) - 0.5 * self.mu * self.mu
        guess = min(max(near, 0.01 * last), 0.9 * last)
        found = minimize_scalar(
            excess, bracket=(0.95 * guess, guess), method="brent", tol=tolerance
        )
        best = float(found.x)
        return best if excess(best) <= excess(0.0) else 0.0
