"""What holds whenever a run is stopped: one length's guarantee, for its share of delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order

__all__ = ["StoppedGuarantee"]


@final
@dataclass(frozen=True)
class StoppedGuarantee(Guarantee):
    """(epsilon(share * delta), delta) of `inner`; see `theorems.stopping_times` for what it says.

    It speaks about the runs that stop in one range of lengths: their Renyi divergence is not
    bounded by it, so that it cannot be composed.
    """

    inner: Guarantee
    share: float

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        return self.inner.adjacency

    @property
    def records(self) -> int:
        return self.inner.records

    @property
    def validity(self) -> Validity:  # type: ignore[override]
        return Validity.BOUND

    def epsilon(self, delta: float) -> Interval:
        return self.inner.epsilon(self.share * check_delta(delta) * (1 - 1e-15))

    def delta(self, epsilon: float) -> Interval:
        found = self.inner.delta(epsilon)
        upper = min(1.0, found.upper / self.share * (1 + 1e-15))
        return Interval(min(found.lower / self.share, upper), upper)

    def renyi(self, order: float) -> Interval:
        check_order(order)
        return Interval.exact(float("inf"))
