"""mu-Gaussian DP: every test between neighbours is as hard as N(0,1) against N(mu,1)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian import group_mu
from tightrope.guarantee.loss.abstract import Components
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_delta, check_order, check_real

_ULPS = 8.0 * ULP
_LARGEST = sys.float_info.max


@final
@dataclass(frozen=True)
class GaussianGuarantee(Guarantee):
    """mu-GDP; mu = 0 is perfect privacy and mu = inf none.

    least_mu: what two data sets attain, where that is known and is not `mu` to the last digit.
    """

    mu: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND
    records: int = 1
    least_mu: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_real(self.mu, "mu", low=0.0, finite=False))
        if self.least_mu is not None:
            least = check_real(self.least_mu, "least_mu", low=0.0, high=self.mu, finite=False)
            object.__setattr__(self, "least_mu", least)

    @property
    def two_sided(self) -> bool:
        return self.validity is Validity.EXACT or self.least_mu is not None

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if self.mu == 0.0 or self.delta(0.0).upper <= d:
            return Interval.exact(0.0)
        lower, upper = profile.epsilon_bounds(d, self._mus)
        return Interval(lower[0], upper[1])

    def _one_delta(self, epsilon: float) -> Interval:
        lower, upper = profile.delta_bounds(check_real(epsilon, "epsilon"), self._mus)
        return Interval(lower[0], upper[1])

    @property
    def _mus(self) -> FloatArray:
        """mu is a product of a few rounded factors, 1/noise and a root: it lies between these."""
        least = self.mu if self.least_mu is None else self.least_mu
        return np.array([least * (1.0 - _ULPS), self.mu * (1.0 + _ULPS)])

    def _one_renyi(self, order: float) -> Interval:
        """order mu^2 / 2."""
        with np.errstate(over="ignore", under="ignore"):
            low, high = 0.5 * check_order(order) * self._mus * self._mus
        return Interval(min(low, _LARGEST), np.nextafter(high, np.inf) if self.mu else 0.0)

    def _one_tradeoff(self, type_i: float) -> Interval:
        lower, upper = profile.tradeoff_bounds(type_i, self._mus)
        return Interval(lower[1], upper[0])

    def gaussian_mu(self, smallest_delta: float = 0.0) -> Interval:
        return Interval(self.mu if self.least_mu is None else self.least_mu, self.mu)

    def group(self, size: int) -> GaussianGuarantee:
        """k records: k mu (Dong-Roth-Su 2019, Theorem 2.14), exact for the Gaussian mechanism."""
        mu = group_mu(self.mu, size)
        least = None if self.least_mu is None else min(group_mu(self.least_mu, size), mu)
        return GaussianGuarantee(mu, self.adjacency, self.validity, self.records * size, least)

    def directions(self) -> tuple[Components, ...] | None:
        from tightrope.guarantee.loss.pairs import GaussianPair

        if self.mu == float("inf"):
            return None
        return (((GaussianPair(self.mu), 1),) if self.mu > 0 else (),)
