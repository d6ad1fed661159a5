"""Views computed from the privacy profile delta(epsilon) alone, safe on both sides.

Both rest on one fact: with x = e^epsilon, a profile is a convex function of x.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.gaussian import profile as gaussian
from tightrope.numerics.interval import Interval
from tightrope.numerics.roots import crossing
from tightrope.validate import check_delta, check_probability

__all__ = ["tradeoff", "gaussian_mu", "invert"]

Profile = Callable[[float], Interval]
_LARGEST_EPSILON = 700.0  # e^700 is still a double


def tradeoff(guarantee: Guarantee, type_i: float) -> Interval:
    """f(a) = sup over eps >= 0 of max{1 - delta - e^eps a, e^-eps (1 - delta - a)} (theory A20).

    Error: every epsilon gives a valid lower end. The two functions of epsilon are concave, the
    first in e^eps and the second in e^-eps, so the chords next to the best point found bound
    their suprema from above. Once delta is negligible (`rest`) both only fall, by less than it.
    """
    a, delta = check_probability(type_i, "type_i"), guarantee.delta
    if a in (0.0, 1.0):
        return Interval(0.0, 1.0 - delta(_LARGEST_EPSILON).lower) if a == 0 else Interval.exact(0.0)
    rest = 1e-10 * min(a, 1.0 - a)
    end = min(guarantee.epsilon(rest).upper, _LARGEST_EPSILON)
    high = min(1.0 / a, math.exp(end) * (1.0 + 1e-9))
    steep = _Supremum(lambda x: _minus(1.0 - x * a, delta(math.log(x))), 1.0, high).interval()
    if steep.lower >= a:  # f(a) > a: left of the diagonal a symmetric curve has slope <= -1
        return Interval(steep.lower, steep.upper + rest).clamp(0.0, 1.0 - a)
    # e^-eps (1 - a) bounds the second function, so beyond this epsilon it cannot win
    reach = math.log((1.0 - a) / steep.lower) if steep.lower > 0.0 else _LARGEST_EPSILON
    lowest = math.exp(-min(max(reach, 1e-3), end + 1e-9))
    flat = _Supremum(lambda y: _scale(y, _minus(1.0 - a, delta(-math.log(y)))), lowest, 1.0)
    best = Interval.worst([steep, flat.interval()])
    return Interval(best.lower, best.upper + rest).clamp(0.0, 1.0 - a)


def _minus(value: float, part: Interval) -> Interval:
    return Interval(value - part.upper, value - part.lower)


def _scale(factor: float, part: Interval) -> Interval:
    return Interval(factor * part.lower, factor * part.upper)


class _Supremum:
    """The supremum of a concave function known at any point up to an interval."""

    def __init__(self, function: Callable[[float], Interval], low: float, high: float) -> None:
        self.points: dict[float, Interval] = {}
        self.function, self.low, self.high = function, low, high

    def _at(self, log_x: float) -> float:
        x = min(max(math.exp(log_x), self.low), self.high)
        if x not in self.points:
            self.points[x] = self.function(x)
        return -self.points[x].lower

    def interval(self) -> Interval:
        from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

        low, high = math.log(self.low), math.log(self.high)
        found = minimize_scalar(
            self._at, bounds=(low, high), method="bounded", options={"xatol": 5e-4}
        )
        for shift in (-1e-3, -5e-4, 0.0, 5e-4, 1e-3):  # neighbours for the chords
            self._at(float(found.x) + shift)
        self._at(low)
        self._at(high)
        xs = sorted(self.points)
        ends = [self.points[x] for x in xs]
        upper = max(self._cell(xs, ends, i) for i in range(len(xs) - 1))
        lower = max(end.lower for end in ends)
        return Interval(lower, max(lower, upper))

    @staticmethod
    def _cell(xs: list[float], ends: list[Interval], i: int) -> float:
        """Upper bound on cell i: below the chords of both neighbouring cells, extended."""
        width, bounds = xs[i + 1] - xs[i], []
        if i > 0:
            slope = (ends[i].upper - ends[i - 1].lower) / (xs[i] - xs[i - 1])
            bounds.append(ends[i].upper + max(slope, 0.0) * width)
        if i + 2 < len(xs):
            slope = (ends[i + 1].upper - ends[i + 2].lower) / (xs[i + 2] - xs[i + 1])
            bounds.append(ends[i + 1].upper + max(slope, 0.0) * width)
        return min(bounds) if bounds else max(ends[i].upper, ends[i + 1].upper)


def gaussian_mu(guarantee: Guarantee, smallest_delta: float) -> Interval:
    """The smallest mu with delta_mu(eps) >= delta(eps) wherever delta(eps) >= smallest_delta.

    Error: the lower end is the largest mu needed at a point looked at. For the upper end, on a
    cell the profile lies below its chord and the Gaussian profile above its two tangents; cells
    are halved until mu * (1 + 1e-4) passes on each.
    """
    smallest_delta = check_delta(smallest_delta, "smallest_delta")
    end = guarantee.epsilon(smallest_delta).upper
    if not math.isfinite(end):
        return Interval(0.0, math.inf)
    grid = list(np.linspace(0.0, end, 33)) if end > 0 else [0.0, 1e-9]
    known = {eps: guarantee.delta(eps) for eps in grid}
    for _ in range(12):
        eps = sorted(known)
        lower = max(_mu_needed(e, known[e].lower) for e in eps)
        mu = max(_mu_needed(e, known[e].upper) for e in eps) * (1 + 1e-4)
        bad = [(a, b) for a, b in itertools.pairwise(eps) if not _covered(mu, a, b, known)]
        if not bad:
            return Interval(lower, mu)
        for a, b in bad:
            known[0.5 * (a + b)] = guarantee.delta(0.5 * (a + b))
    return Interval(lower, max(_mu_needed(b, known[a].upper) for a, b in itertools.pairwise(eps)))


def _mu_needed(epsilon: float, delta: float) -> float:
    return float(gaussian.mu(epsilon, delta)) if delta > 0 else 0.0


def _covered(mu: float, a: float, b: float, known: dict[float, Interval]) -> bool:
    """Does the Gaussian profile lie above the chord of the profile on [a, b]?"""
    xa, xb = math.exp(a), math.exp(b)
    top_a, top_b = known[a].upper, known[b].upper
    chord = (top_b - top_a) / (xb - xa)
    da, db = float(gaussian.delta(a, mu)), float(gaussian.delta(b, mu))
    # d delta_mu / dx = -Phi(-eps/mu - mu/2)
    sa, sb = (-float(gaussian.upper_tail(eps / mu + mu / 2)) for eps in (a, b))
    if da < top_a or db < top_b:
        return False
    meet = (db - da + sa * xa - sb * xb) / (sa - sb) if sa != sb else xb
    meet = min(max(meet, xa), xb)
    return da + sa * (meet - xa) >= top_a + chord * (meet - xa)


def invert(delta: Profile, target: float, *, tolerance: float = 1e-10) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= target; both ends were evaluated.

    Secant steps on ln delta find where the upper end falls to the target; the lower end of the
    answer is the last point where even the lower end is above it.
    """
    seen: dict[float, Interval] = {}

    def excess(epsilon: float) -> float:
        value = seen.setdefault(epsilon, delta(epsilon))
        return (
            math.log(value.upper / target) if value.upper > 0.0 < target else _sign(value, target)
        )

    if excess(0.0) <= 0.0:
        return Interval.exact(0.0)
    try:
        found = crossing(excess, 1.0, smallest=1e-12, largest=_LARGEST_EPSILON, tolerance=tolerance)
    except NotCertified:
        return Interval(max(e for e, d in seen.items() if d.lower > target or e == 0.0), math.inf)
    lower = max((e for e, d in seen.items() if d.lower > target), default=0.0)
    return Interval(min(lower, found.below), found.below)


def _sign(value: Interval, target: float) -> float:
    """The excess where no logarithm exists."""
    return -1.0 if value.upper <= target else 1.0
