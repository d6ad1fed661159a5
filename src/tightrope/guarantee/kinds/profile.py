"""A guarantee known only through an upper bound of its privacy profile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import DiscretePair
from tightrope.guarantee.tradeoff import invert
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_delta, check_order, check_real

_SMALLEST_DELTA = 1e-300
_NEGLIGIBLE = 1e-17


@final
@dataclass(frozen=True)
class ProfileGuarantee(Guarantee):
    """(eps, delta_upper(eps))-DP for every eps >= 0, in both orders of the neighbours."""

    delta_upper: Callable[[float], float]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND
    # the same bound stated the other way round, where that is how it is known
    epsilon_upper: Callable[[float], float] | None = None

    @classmethod
    def from_epsilon(
        cls, epsilon_upper: Callable[[float], float], adjacency: Adjacency, validity: Validity
    ) -> ProfileGuarantee:
        """A bound stated as epsilon(delta), non-increasing in delta."""
        profile = partial(delta_from_epsilon, epsilon_upper)  # a closure is not pickled
        return cls(profile, adjacency, validity, epsilon_upper)

    def _one_delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon", low=0.0)
        return Interval.exact(min(1.0, self.delta_upper(eps)))

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if self.epsilon_upper is not None:
            return Interval.exact(0.0 if d == 1.0 else self.epsilon_upper(d))
        return invert(self.delta, d)

    def _one_renyi(self, order: float) -> Interval:
        """Unknown beyond any fixed epsilon, so no finite divergence follows."""
        check_order(order)
        return Interval(0.0, math.inf)

    def directions(self) -> tuple[Components, ...]:
        return self._directions

    @cached_property
    def _directions(self) -> tuple[Components, ...]:
        """Kept: they take thousands of values of the profile, and many compositions ask."""
        top = min(self.epsilon(1e-20).upper, 200.0)
        grid = np.linspace(0.0, max(top, 1e-6), 2001)
        return (((pair_above(self.delta_upper, self.delta_upper, grid), 1),),)


def delta_from_epsilon(epsilon_upper: Callable[[float], float], epsilon: float) -> float:
    """The profile of a bound stated the other way round (non-increasing in delta)."""
    low, high = math.log(_SMALLEST_DELTA), 0.0
    if epsilon_upper(_SMALLEST_DELTA) <= epsilon:
        return _SMALLEST_DELTA
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if epsilon_upper(math.exp(middle)) > epsilon else (low, middle)
    return min(1.0, math.exp(high))


def pair_above(
    forward: Callable[[float], float], backward: Callable[[float], float], grid: FloatArray
) -> DiscretePair:
    """Connect the dots: the tightest pair on the grid whose profile is nowhere below (C.7).

    forward(eps) bounds the profile for eps >= 0 and backward(eps) that of the reversed pair; for
    negative eps, delta(-eps) = 1 - e^-eps + e^-eps backward(eps). A profile is convex in e^eps, so
    it lies below the largest convex function through bounds on the grid; its kinks are the atoms.
    """
    positive = grid[grid > 0]
    losses = np.concatenate([-positive[::-1], [0.0], positive])
    back = _values(backward, positive)
    ahead = back if forward is backward else _values(forward, positive)
    x = np.exp(losses)
    # delta less max(1 - x, 0), which is below every profile: near x = 0 only this has digits
    excess = np.concatenate([(back * np.exp(-positive))[::-1], [forward(0.0)], ahead])
    kept = _convex_below(x, excess * (1.0 + 1e-15))
    losses, x, excess = losses[kept], x[kept], excess[kept] * (1.0 + 1e-15)
    slopes = (np.diff(excess) - np.diff(np.minimum(x, 1.0))) / np.diff(x)
    left = x[1:] <= 1.0
    slopes[left] = np.diff(excess)[left] / np.diff(x)[left] - 1.0
    slopes = np.maximum.accumulate(slopes)  # rounding: less steep only raises the profile
    tails = np.concatenate([[1.0 - back[-1]], np.clip(-slopes, 0.0, 1.0), [0.0]])  # Q(L > loss)
    masses = np.maximum(-np.diff(tails), 0.0) * x
    return _with_infinity(losses, masses, float(ahead[-1]))


def _convex_below(x: FloatArray, excess: FloatArray) -> list[int]:
    """Corners of the largest convex function below the points: any other is nowhere above it."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1 and _is_above(x, excess, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    return kept


def _is_above(x: FloatArray, excess: FloatArray, left: int, middle: int, right: int) -> bool:
    """Is the middle point on or above the chord of the others?"""
    start, at, end = x[left], x[middle], x[right]
    rise, reached = excess[right] - excess[left], excess[middle] - excess[left]
    if end > 1.0:  # beyond 1 the line 1 - x is no part of them
        rise -= min(end, 1.0) - min(start, 1.0)
        reached -= min(at, 1.0) - min(start, 1.0)
    return bool(reached * (end - start) >= rise * (at - start))


def _values(profile: Callable[[float], float], grid: FloatArray) -> FloatArray:
    """The profile on the grid; once negligible, its last value stands for all later ones."""
    values: list[float] = []
    for epsilon in grid:
        small = bool(values) and values[-1] < _NEGLIGIBLE  # a profile falls: still a bound
        values.append(values[-1] if small else profile(float(epsilon)))
    return np.array(values)


def _with_infinity(losses: FloatArray, masses: FloatArray, least: float) -> DiscretePair:
    """The missing mass, and a margin for the rounding of the sum, moved to an infinite loss."""
    infinite = min(1.0, max(least, 1.0 - math.fsum(masses)) + 1e-15)
    excess = math.fsum(masses) + infinite - 1.0
    for i in range(len(masses)):  # taken from the smallest losses: the pair only gets worse
        taken = min(masses[i], max(excess, 0.0))
        masses[i] -= taken
        excess -= taken
    keep = masses > 0
    losses, masses = losses[keep], masses[keep]
    turned = max(0.0, 1.0 - math.fsum(masses * np.exp(-losses))) + 1e-15  # the same under Q
    return DiscretePair(tuple(losses.tolist()), tuple(masses.tolist()), infinite, min(turned, 1.0))
