"""A guarantee known through dominating pairs of distributions: the exact accountant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.cumulant import renyi
from tightrope.guarantee.loss.curve import LossCurve
from tightrope.guarantee.tradeoff import of_profile
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order, check_real

__all__ = ["LossGuarantee"]


@final
@dataclass(frozen=True)
class LossGuarantee(Guarantee):
    """Composed dominating pairs, one multiset for each order of the neighbours.

    The answer is the worse of the two orders: symmetrise after composing.
    """

    orders: tuple[Components, ...]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.EXACT

    def epsilon(self, delta: float) -> Interval:
        return profile.worst_epsilon(self.orders, check_delta(delta))

    def delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon")
        found = profile.worst_delta(self.orders, eps)
        most = max(_most(order, eps) for order in self.orders)
        return Interval(min(found.lower, most), min(found.upper, most))

    def renyi(self, order: float) -> Interval:
        """Renyi divergences of independent parts add up."""
        order = check_order(order)
        return Interval.worst([_renyi_of(components, order) for components in self.orders])

    def tradeoff(self, type_i: float) -> Interval:
        """By lattice laws kept from one question to the next, sharpened where they do not do."""
        if type_i == 0.0:  # without false alarms, only what rules a neighbour out is a hit
            worst = max(map(_ruled_out, self.orders))
            return (
                Interval(1.0 - worst, 1.0 - worst * (1.0 - 1e-12)) if worst else Interval.exact(1.0)
            )
        return of_profile.tradeoff(_curve(self), type_i)

    def supporting_epsilon(self, type_i: float) -> float:
        """The epsilon whose line decides `tradeoff(type_i)`; negative right of the diagonal."""
        return of_profile.supporting_line(_curve(self), type_i)[1]

    def directions(self) -> tuple[Components, ...]:
        return self.orders


@lru_cache(maxsize=2)
def _curve(guarantee: LossGuarantee) -> LossCurve:
    return LossCurve(guarantee.orders, guarantee.delta)


def _ruled_out(components: Components) -> float:
    """P(L = inf) of the whole, rounded up."""
    if any(pair.infinite_mass == 1.0 for pair, _ in components):
        return 1.0
    finite = math.fsum(count * math.log1p(-pair.infinite_mass) for pair, count in components)
    return min(1.0, -math.expm1(finite) * (1.0 + 4e-13))


def _most(components: Components, epsilon: float) -> float:
    """delta(eps) <= P(L = inf) + 1 - e^(eps - largest finite loss): decides next to that loss."""
    largest = math.fsum(count * pair.support[1] for pair, count in components)
    if math.isinf(largest) or any(pair.infinite_mass == 1.0 for pair, _ in components):
        return 1.0
    gap = max(largest + 4e-15 * abs(largest) - epsilon, 0.0)
    finite = math.fsum(count * math.log1p(-pair.infinite_mass) for pair, count in components)
    return min(1.0, max(0.0, -(math.expm1(finite) + math.expm1(-gap)) * (1 + 1e-14)))


def _renyi_of(components: Components, order: float) -> Interval:
    lower = upper = 0.0
    for pair, count in components:
        low, high = renyi(pair, order)
        lower, upper = lower + count * float(low), upper + count * float(high)
    return Interval(lower * (1 - 1e-14), upper * (1 + 1e-14))
