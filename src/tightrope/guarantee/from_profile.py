"""Views computed from the privacy profile delta(epsilon) alone, safe on both sides.

They rest on one fact: with x = e^epsilon, a profile is a convex function of x.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.gaussian import profile as gaussian
from tightrope.guarantee.tradeoff import of_profile, whole_curve
from tightrope.numerics.interval import Interval, IntervalArray
from tightrope.numerics.roots import crossing
from tightrope.validate import FloatArray, check_delta, one_number

__all__ = ["tradeoff", "tradeoff_curve", "supporting_epsilon", "gaussian_mu", "invert"]

Profile = Callable[[float], Interval]
_LARGEST_EPSILON = 700.0  # e^700 is still a double
_MOST_POINTS = 1000  # of a profile, for one Gaussian parameter
_FAR_EPSILONS = (_LARGEST_EPSILON, 1e5, 1e8, 1e12)


def tradeoff(guarantee: Guarantee, type_i: float) -> Interval:
    """The trade-off function of any guarantee, by its own delta(epsilon)."""
    if type_i == 0.0:  # f(0) >= 1 - delta(eps) for every eps, however large
        least = min(guarantee.delta(epsilon).upper for epsilon in _FAR_EPSILONS)
        return Interval(max(1.0 - least - 1e-15, 0.0), 1.0)
    return _supporting_line(guarantee, type_i)[0]


def tradeoff_curve(guarantee: Guarantee, type_i: FloatArray) -> IntervalArray:
    """The trade-off function at many points, by one set of values of the profile.

    Wider than one point at a time: about a thousandth of the hit rate.
    """
    return whole_curve.tradeoff_curve(_kept_profile(guarantee), type_i)


def supporting_epsilon(guarantee: Guarantee, type_i: float) -> float:
    """The epsilon whose line touches the trade-off curve at type_i; negative on the flat side."""
    return _supporting_line(guarantee, type_i)[1]


@lru_cache(maxsize=64)
def _supporting_line(guarantee: Guarantee, type_i: float) -> tuple[Interval, float]:
    return of_profile.supporting_line(_kept_profile(guarantee), type_i)


@lru_cache(maxsize=2)
def _kept_profile(guarantee: Guarantee) -> of_profile.Profile:
    """What one question found out serves the next."""
    return guarantee.profile() or _Asked(guarantee)


class _Asked:
    """A profile whose every answer is as good as it gets."""

    def __init__(self, guarantee: Guarantee) -> None:
        self.guarantee = guarantee
        self.known: dict[float, Interval] = {}

    def near(self, epsilon: float, room: float) -> Interval:
        if epsilon not in self.known:
            self.known[epsilon] = self.guarantee.delta(epsilon)
        return self.known[epsilon]

    sharp = near


def gaussian_mu(guarantee: Guarantee, smallest_delta: float) -> Interval:
    """The smallest mu with delta_mu(eps) >= delta(eps) wherever delta(eps) >= smallest_delta.

    Error: the lower end is the largest mu needed at a point looked at. For the upper end, on a
    cell the profile lies below its chord and the Gaussian profile above its two tangents; cells
    are halved until mu * (1 + 1e-4) passes on each.
    """
    smallest_delta = one_number(check_delta(smallest_delta, "smallest_delta"), "smallest_delta")
    end = guarantee.epsilon(smallest_delta).upper
    if not math.isfinite(end):
        return Interval(0.0, math.inf)
    grid = list(np.linspace(0.0, end, 33)) if end > 0 else [0.0, 1e-9]
    known = {eps: guarantee.delta(eps) for eps in grid}
    for _ in range(12):
        eps = sorted(known)
        lower = max(_mu_needed(e, known[e].lower) for e in eps)
        mu = max(_mu_needed(e, known[e].upper) for e in eps) * (1 + 1e-4)
        if mu == 0.0:
            return Interval.exact(0.0)
        bad = [(a, b) for a, b in itertools.pairwise(eps) if not _covered(mu, a, b, known)]
        if not bad:
            return Interval(lower, mu)
        if len(eps) + len(bad) > _MOST_POINTS:
            break
        for a, b in bad:
            known[0.5 * (a + b)] = guarantee.delta(0.5 * (a + b))
    return Interval(lower, max(_mu_needed(b, known[a].upper) for a, b in itertools.pairwise(eps)))


def _mu_needed(epsilon: float, delta: float) -> float:
    return float(gaussian.mu(epsilon, delta)) if delta > 0 else 0.0


def _covered(mu: float, a: float, b: float, known: dict[float, Interval]) -> bool:
    """Does the Gaussian profile lie above the chord of the profile on [a, b]?

    Both are functions of x = e^(eps - a), which is a double however large a is.
    """
    if b - a > _LARGEST_EPSILON:
        return False
    end = math.expm1(b - a)  # of x - 1, which starts at 0
    top_a, top_b = known[a].upper, known[b].upper
    da, db = float(gaussian.delta(a, mu)), float(gaussian.delta(b, mu))
    # d delta_mu / dx = -e^a Phi(-eps/mu - mu/2)
    sa, sb = (-math.exp(a + float(log_ndtr(-eps / mu - mu / 2))) for eps in (a, b))
    if da < top_a or db < top_b:
        return False
    meet = (db - da - sb * end) / (sa - sb) if sa != sb else end
    meet = min(max(meet, 0.0), end)
    return da + sa * meet >= top_a + (top_b - top_a) / end * meet


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
