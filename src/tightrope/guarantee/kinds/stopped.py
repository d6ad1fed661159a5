"""What holds whenever a run is stopped: one length's guarantee, for its share of delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.tradeoff.of_profile import Profile
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
        return _over(self.share, self.inner.delta(epsilon))

    def profile(self) -> Profile | None:
        inner = self.inner.profile()
        return None if inner is None else _Shared(inner, self.share)

    def renyi(self, order: float) -> Interval:
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
