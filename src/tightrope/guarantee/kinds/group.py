"""Several records that change together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from tightrope.guarantee.approx import group as approx_group
from tightrope.guarantee.base import DerivedGuarantee, Guarantee
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.tradeoff import invert
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP, log_down, over_down, rest_down, rest_up
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order, check_probability, check_real

_STEPS, _SMALLEST_DELTA = 40, 1e-300
_BEYOND = 1e-7  # of where two lines meet


@final
@dataclass(frozen=True)
class GroupGuarantee(DerivedGuarantee):
    """`inner` for a group of `size` records, through the chain of one-record neighbours."""

    inner: Guarantee
    size: int
    relation: Adjacency | None = None
    # do two data sets at one link differ as this relation allows? Then what is attained there is
    replaces_by_nothing: bool = False

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        return self.relation or self.inner.adjacency

    @property
    def records(self) -> int:
        """Replacing one record is one unit, though the chain has two links."""
        return self.inner.records * (1 if self.relation else self.size)

    @property
    def two_sided(self) -> bool:
        """One record of a group may change alone."""
        return (self.relation is None or self.replaces_by_nothing) and self.inner.two_sided

    def as_bound(self) -> GroupGuarantee:
        return replace(self, inner=self.inner.as_bound())

    def _one_delta(self, epsilon: float) -> Interval:
        """delta(eps/k) (e^eps - 1)/(e^(eps/k) - 1): the chain rule of (eps, delta)-DP."""
        eps = check_real(epsilon, "epsilon", low=0.0)
        upper = self._most_delta(eps)
        return Interval(min(self.inner.delta(eps).lower, upper), upper)

    def proves(self, epsilon: float, delta: float) -> bool:
        """Without the lower end of `delta`, which is another question to `inner`."""
        return self._most_delta(epsilon) <= delta

    def _most_delta(self, epsilon: float) -> float:
        most, inner = self._chain_delta(epsilon), self.inner
        if isinstance(inner, ApproxGuarantee) and inner.level < math.inf:  # at its own level
            whole = ApproxGuarantee(*approx_group(inner.level, inner.failure, self.size))
            most = min(most, whole.delta(epsilon).upper)
        return most

    def _chain_delta(self, epsilon: float) -> float:
        each = over_down(epsilon, self.size)
        one = self.inner.delta(each).upper
        if one == 0.0:
            return 0.0
        log_one = math.log(one)
        rounding = 4.0 * ULP * (1.0 - log_one)
        return math.exp(min(log_one + self._log_growth(each) + rounding, 0.0))

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        lower = self.inner.epsilon(d).lower
        upper = self._epsilon_by_steps(d)
        if upper is None:
            upper = invert(self.delta, d, tolerance=1e-6).upper
        return Interval(lower, max(upper, lower))

    def _log_growth(self, each: float) -> float:
        """ln((e^(k x) - 1)/(e^x - 1)) at x = `each` epsilon a record, rounded up."""
        if isinstance(self.inner, ApproxGuarantee):  # flat from its level on: less growth does
            each = min(each, self.inner.level)
        if each == 0.0:
            return math.log(self.size) + 1e-15
        tails = math.log(-math.expm1(-each * self.size)) - math.log(-math.expm1(-each))
        return ((self.size - 1) * each + tails) * (1 + 1e-15) + 1e-14

    def _epsilon_by_steps(self, delta: float) -> float | None:
        """size * x, where one record's epsilon g(x) at delta/growth(x) is at most x; None if not.

        g rises, so g(g(x)) <= g(x) <= x: then g(x) does as well. Secants of g find such an x.
        """
        before, each, best = (0.0, 0.0), 0.0, math.inf
        for _ in range(_STEPS if delta > 0.0 else 0):
            share = math.exp(log_down(delta) - self._log_growth(each))
            found = self.inner.epsilon(share).upper if share >= _SMALLEST_DELTA else math.inf
            if math.isinf(found) or found >= best * (1 - _BEYOND):
                break
            if found <= each:  # it holds, and may be too much
                each = best = found
            else:
                before, each = (each, found), _meeting(before, (each, found)) * (1 + _BEYOND)
        return self.size * best * (1 + 1e-15) if best < math.inf else None

    def _one_tradeoff(self, type_i: float) -> Interval:
        """1 - (1 - f)^(o k): Dong-Roth-Su 2019, Theorem 2.14."""
        reached = check_probability(type_i, "type_i")
        for _ in range(self.size):
            reached = rest_up(self.inner.tradeoff(reached).lower)
        upper = self.inner.tradeoff(type_i).upper
        return Interval(min(rest_down(reached), upper), upper)

    def _one_renyi(self, order: float) -> Interval:
        """Weak triangle inequality (Mironov 2017, Proposition 11), halving the group."""
        order = check_order(order)
        lower = self.inner.renyi(order).lower
        return Interval(lower, max(lower, _chained(self.inner, self.size, order)))


def _meeting(before: tuple[float, float], now: tuple[float, float]) -> float:
    """The point where the line through two (x, g(x)), g(x) > x, meets g = x; not far beyond."""
    (x0, g0), (x1, g1) = before, now
    slope = (g1 - g0) / (x1 - x0) if x1 > x0 > 0.0 or g0 > 0.0 else 0.0
    return min((g1 - slope * x1) / (1.0 - slope), 8.0 * g1) if 0.0 <= slope < 1.0 else 8.0 * g1


def _chained(inner: Guarantee, size: int, order: float) -> float:
    if size == 1:
        return inner.renyi(order).upper
    half = size // 2
    first = _chained(inner, half, 2 * order)
    second = _chained(inner, size - half, 2 * order - 1)
    return ((order - 0.5) / (order - 1.0) * first + second) * (1 + 1e-14)


def group(guarantee: Guarantee, size: int) -> Guarantee:
    """Mixtures of Gaussians where records join independently, the chain of neighbours elsewhere."""
    if not isinstance(guarantee, LossGuarantee):
        return GroupGuarantee(guarantee, size)
    chain = GroupGuarantee(guarantee.of_each_link(), size)
    return guarantee.mixed(size, chain) or chain


def replaced(guarantee: Guarantee) -> Guarantee:
    """For replace-one neighbours: exactly where records join independently, else two in a chain."""
    if isinstance(guarantee, GaussianGuarantee):
        return replace(guarantee.group(2), adjacency=Adjacency.REPLACE_ONE, records=1)
    chain = GroupGuarantee(guarantee, 2, Adjacency.REPLACE_ONE)
    exact = guarantee.replaced(chain) if isinstance(guarantee, LossGuarantee) else None
    return exact or chain
