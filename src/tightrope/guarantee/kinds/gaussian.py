"""mu-Gaussian DP: every test between neighbours is as hard as N(0,1) against N(mu,1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.gaussian import profile
from tightrope.guarantee.gaussian.composition import group_mu
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_order, check_real

__all__ = ["GaussianGuarantee"]


@final
@dataclass(frozen=True)
class GaussianGuarantee(Guarantee):
    """mu-GDP; mu = 0 is perfect privacy and mu = inf none."""

    mu: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND
    records: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_real(self.mu, "mu", low=0.0, finite=False))

    def epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if self.mu == 0.0 or profile.delta_interval(0.0, self.mu).upper <= d:
            return Interval.exact(0.0)
        return profile.epsilon_interval(d, self.mu)

    def delta(self, epsilon: float) -> Interval:
        return profile.delta_interval(check_real(epsilon, "epsilon"), self.mu)

    def renyi(self, order: float) -> Interval:
        # D_order = order mu^2 / 2, exactly; the products round by a few ulp
        value = 0.5 * check_order(order) * self.mu * self.mu
        return Interval(value * (1 - 1e-15), value * (1 + 1e-15))

    def tradeoff(self, type_i: float) -> Interval:
        return profile.tradeoff_interval(type_i, self.mu)

    def gaussian_mu(self, smallest_delta: float = 0.0) -> Interval:
        return Interval.exact(self.mu)

    def group(self, size: int) -> GaussianGuarantee:
        """k records: k mu (Dong-Roth-Su 2019, Theorem 2.14), exact for the Gaussian mechanism."""
        mu = group_mu(self.mu, size)
        return GaussianGuarantee(mu, self.adjacency, self.validity, self.records * size)

    def directions(self) -> tuple[Components, ...] | None:
        from tightrope.guarantee.loss.pair import GaussianPair

        if self.mu == float("inf"):
            return None
        return (((GaussianPair(self.mu), 1),) if self.mu > 0 else (),)
