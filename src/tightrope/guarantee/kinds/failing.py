"""A guarantee that holds except with some probability, when anything may be released."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order, check_real

__all__ = ["FailingGuarantee"]


@final
@dataclass(frozen=True)
class FailingGuarantee(Guarantee):
    """Renyi DP unless one of some (epsilon, delta) releases fails.

    Statement: the worst (e0, d0)-DP pair gives everything away with probability d0 and is the worst
    e0-DP pair otherwise (Kairouz, Oh, Viswanath 2015). So a composition with such releases has
    delta(eps) <= f + (1 - f) delta'(eps), where 1 - f = prod (1 - d0) and delta' belongs to the
    composition in which their d0 are 0.
    """

    inner: RenyiGuarantee
    failure: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "failure", check_delta(self.failure, "failure"))

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        return self.inner.adjacency

    @property
    def records(self) -> int:
        return self.inner.records

    @property
    def validity(self) -> Validity:  # type: ignore[override]
        return Validity.BOUND

    def delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon", low=0.0)
        kept = (1.0 - self.failure) * self.inner.delta(eps).upper
        return Interval.exact(min(1.0, (self.failure + kept) * (1 + 1e-15)))

    def epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if d == 1.0:
            return Interval.exact(0.0)
        left = (d - self.failure) * (1 - 1e-15)
        return Interval.exact(math.inf) if left <= 0.0 else self.inner.epsilon(left)

    def renyi(self, order: float) -> Interval:
        """A failure is an infinite loss."""
        check_order(order)
        return Interval.exact(math.inf if self.failure > 0.0 else self.inner.renyi(order).upper)
