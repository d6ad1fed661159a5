"""(epsilon, delta)-DP, and every other pair that it implies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tightrope.guarantee import approx
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.loss.abstract import Components
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order, check_probability, check_real

_ULPS = 4e-15  # a handful of roundings, each below 2^-52
_LARGEST_LEVEL = 700.0  # of a pair of outcomes: e^700 is still a double


@final
@dataclass(frozen=True)
class ApproxGuarantee(Guarantee):
    """(epsilon, delta)-DP as one point. The worst such pair has four outcomes (KOV 2015)."""

    level: float
    failure: float = 0.0
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", check_real(self.level, "epsilon", low=0.0, finite=False))
        object.__setattr__(self, "failure", check_delta(self.failure))

    def _one_delta(self, epsilon: float) -> Interval:
        """delta0 + (1 - delta0) (e^eps0 - e^eps)_+ / (1 + e^eps0), the profile of that pair."""
        eps = check_real(epsilon, "epsilon", low=0.0)
        if eps >= self.level:
            return Interval.exact(self.failure)
        return _around(float(approx.implied_delta(eps, self.level, self.failure))).clamp(0.0, 1.0)

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if d < self.failure:
            return Interval.exact(math.inf)
        if d == self.failure or self.level == math.inf:
            return Interval.exact(self.level if d < 1.0 else 0.0)
        if d == 1.0:
            return Interval.exact(0.0)
        share, rest = ((x / (1.0 - self.failure)) for x in (d - self.failure, 1.0 - d))
        # 1 - share is small where delta is next to 1, and `rest` keeps its digits
        inside = rest - share * math.exp(-self.level)
        slack = _ULPS * (1.0 + self.level)
        value = self.level + math.log(inside) if inside > 0.0 else -math.inf
        if value < -slack:
            return Interval.exact(0.0)
        return Interval(max(value - slack, 0.0), min(value + slack, self.level))

    def _one_renyi(self, order: float) -> Interval:
        order = check_order(order)
        if self.failure > 0 or self.level == math.inf:
            return Interval.exact(math.inf)
        from tightrope.guarantee.renyi.optimal import renyi_of_pure

        return _around(float(renyi_of_pure(order, self.level)))

    def _one_tradeoff(self, type_i: float) -> Interval:
        """f(a) = max{0, 1 - delta - e^eps a, e^-eps (1 - delta - a)}."""
        return approx.tradeoff_interval(
            check_probability(type_i, "type_i"), self.level, self.failure
        )

    def directions(self) -> tuple[Components, ...] | None:
        from tightrope.guarantee.loss.pairs import approx_pair

        if self.level > _LARGEST_LEVEL:
            return None
        return (((approx_pair(self.level, self.failure), 1),),)


def _around(value: float) -> Interval:
    return Interval(value * (1 - _ULPS), value * (1 + _ULPS))
