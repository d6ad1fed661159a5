"""Guarantees of a run stopped at any time: one length's guarantee, for its share of delta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tightrope.guarantee.base import DerivedGuarantee, Guarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.tradeoff import Profile
from tightrope.numerics.interval import Interval
from tightrope.validate import check_delta, check_order, check_real


@final
@dataclass(frozen=True)
class StoppedGuarantee(DerivedGuarantee):
    """(epsilon(share * delta), delta) of `inner`; see `theorems.stopping_times` for what it says.

    It speaks about the runs that stop in one range of lengths: their Renyi divergence is not
    bounded by it, so that it cannot be composed.
    """

    inner: Guarantee
    share: float

    def _one_epsilon(self, delta: float) -> Interval:
        return self.inner.epsilon(self.share * float(check_delta(delta)) * (1 - 1e-15))

    def _one_delta(self, epsilon: float) -> Interval:
        return _over(self.share, self.inner.delta(epsilon))

    def profile(self) -> Profile | None:
        inner = self.inner.profile()
        return None if inner is None else _Shared(inner, self.share)

    def _one_renyi(self, order: float) -> Interval:
        check_order(order)
        return Interval.exact(float("inf"))


@final
@dataclass(frozen=True)
class _Shared:
    """The profile of one length, over its share of delta."""

    inner: Profile
    share: float

    def near(self, epsilon: float, room: float) -> Interval:
        return _over(self.share, self.inner.near(epsilon, self.share * room))

    def sharp(self, epsilon: float, room: float) -> Interval:
        return _over(self.share, self.inner.sharp(epsilon, self.share * room))


def _over(share: float, delta: Interval) -> Interval:
    upper = min(1.0, delta.upper / share * (1 + 1e-15))
    return Interval(min(delta.lower / share, upper), upper)


# ---- A guarantee that holds except with some probability, when anything may be released ----------


@final
@dataclass(frozen=True)
class FailingGuarantee(DerivedGuarantee):
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

    def _one_delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon", low=0.0)
        kept = (1.0 - self.failure) * self.inner.delta(eps).upper
        return Interval.exact(min(1.0, (self.failure + kept) * (1 + 1e-15)))

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if d == 1.0:
            return Interval.exact(0.0)
        left = (d - self.failure) * (1 - 1e-15)
        return Interval.exact(math.inf) if left <= 0.0 else self.inner.epsilon(left)

    def _one_renyi(self, order: float) -> Interval:
        """A failure is an infinite loss."""
        check_order(order)
        return Interval.exact(math.inf if self.failure > 0.0 else self.inner.renyi(order).upper)
