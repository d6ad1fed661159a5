"""Renyi DP for a range of orders: the moments accountant's view."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi_curve import (
    LinearTerm,
    PairsTerm,
    PureTerm,
    RenyiCurve,
    ViewTerm,
)
from tightrope.guarantee.renyi import region_of_curve
from tightrope.guarantee.renyi.best import best_delta, best_epsilon
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order, check_probability, check_real

__all__ = ["RenyiGuarantee", "renyi_guarantee_of"]


@final
@dataclass(frozen=True)
class RenyiGuarantee(Guarantee):
    """(order, curve(order))-Renyi DP for every order of the curve, in both directions.

    `route` names the conversion to (epsilon, delta)-DP: "optimal" (the two-sided optimum), or an
    older one for comparison (the table is guarantee.renyi.ROUTES).
    """

    curve: RenyiCurve
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND
    route: str = "optimal"
    records: int = 1

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if d == 0.0 or d == 1.0:
            return Interval.exact(math.inf if d == 0.0 else 0.0)
        return Interval.exact(_best_epsilon(self.curve, d, self.route))

    def _one_delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon", low=0.0)
        return Interval.exact(min(1.0, best_delta(self.curve, eps, route=self.route)))

    def _one_tradeoff(self, type_i: float) -> Interval:
        """Corollary 1 of Three Variants: the binary divergences of all orders."""
        a = check_probability(type_i, "type_i")
        return Interval.exact(float(region_of_curve.type_ii(self.curve, a)))

    def _one_renyi(self, order: float) -> Interval:
        return Interval.exact(float(self.curve(check_order(order))))


@lru_cache(maxsize=512)
def _best_epsilon(curve: RenyiCurve, delta: float, route: str) -> float:
    """An account asks for the same number several times: as answer, in tables, for errors."""
    return float(best_epsilon(curve, delta, route=route))


def renyi_guarantee_of(part: Guarantee) -> RenyiGuarantee:
    """The Renyi view of any guarantee that has one at every order."""
    if isinstance(part, RenyiGuarantee):
        return part
    if isinstance(part, GaussianGuarantee):
        curve = RenyiCurve.of(LinearTerm(0.5 * part.mu * part.mu))
    elif isinstance(part, ApproxGuarantee) and part.failure == 0.0:
        curve = RenyiCurve.of(PureTerm(part.level))
    else:
        directions = part.directions()
        if not math.isfinite(part.renyi(2.0).upper):
            raise DoesNotApply(
                f"{type(part).__name__} has no finite Renyi divergence (a failure probability "
                "delta > 0 makes it infinite), so it cannot be composed with a Renyi guarantee. "
                "Compose the (epsilon, delta) statements instead."
            )
        curve = RenyiCurve.of(ViewTerm(part) if directions is None else PairsTerm(directions))
    return RenyiGuarantee(curve, part.adjacency, part.validity, records=part.records)
