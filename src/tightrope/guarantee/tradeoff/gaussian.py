"""Trade-off functions of the Gaussian mechanism, with and without Poisson sampling.

Statement: G_mu(a) = Phi(Phi^-1(1 - a) - mu). Poisson sampling at rate p of an add-or-remove f-DP
    mechanism: f_p = p f + (1 - p) Id = T(without the record, with it), f_p^-1 in the other order.
    Profiles: 1 + f_p*(-e^eps) = p d(ln((e^eps - 1 + p)/p)) above eps = ln(1 - p), else 1 - e^eps;
    1 + (f_p^-1)*(-e^eps) = k d(eps + ln(p/k)), k = 1 - (1 - p) e^eps (0 where k <= 0), d = profile
    of G_mu. The smallest G_nu below any of them has nu = mu: sampling does not lower the Gaussian
    parameter.
Conditions: 0 <= p <= 1; sampling stays secret.
Validity: exact for the Gaussian mechanism.
Source: Dong, Roth and Su 2019 (arXiv:1905.02383); Bu et al. 2019 (arXiv:1911.11607), (3),
    Proposition A.1; theory A28.
Error: relative 2e-12 on type II errors, 1e-12 plus the rounding of the moved epsilon on deltas. The
    inverse of f_p is bisected to the last digit; its bounds come from the bounds of f_p.
Vectors: tradeoff_gaussian and subsample_tradeoff in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr

from tightrope.guarantee.gaussian import profile
from tightrope.guarantee.tradeoff.abstract import AbstractTradeoff
from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray, check_probability, check_real

__all__ = ["GaussianTradeoff", "SampledGaussianTradeoff"]

_ULP = 2.0**-52
_SLACK = 2e-12


@final
@dataclass(frozen=True)
class GaussianTradeoff(AbstractTradeoff):
    """G_mu."""

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_real(self.mu, "mu", low=0.0, high=1e6))

    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        return np.asarray(profile.tradeoff(type_i, self.mu))

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        lower, upper = profile.tradeoff_bounds(type_i, self.mu)
        return np.asarray(lower), np.asarray(upper)

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        return np.asarray(profile.delta(epsilon, self.mu))

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        lower, upper = profile.delta_bounds(epsilon, self.mu)
        return np.asarray(lower), np.asarray(upper)

    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        if self.mu == 0.0:
            ends = np.where(epsilon > 0.0, 0.0, 0.5)
            return ends, ends
        centre = epsilon / self.mu
        return ndtr(-centre - 0.5 * self.mu), ndtr(-centre + 0.5 * self.mu)

    def inverse(self) -> GaussianTradeoff:
        return self

    def integral(self) -> float:
        return float(ndtr(-self.mu / math.sqrt(2.0)))

    def gaussian_mu(self) -> Interval:
        return Interval.exact(self.mu)


@final
@dataclass(frozen=True)
class SampledGaussianTradeoff(AbstractTradeoff):
    """f_p = p G_mu + (1 - p) Id = T(without the record, with it), or its inverse."""

    rate: float
    mu: float
    inverted: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_probability(self.rate, "rate"))
        object.__setattr__(self, "mu", check_real(self.mu, "mu", low=0.0, high=1e6))

    @property
    def gaussian(self) -> GaussianTradeoff:
        return GaussianTradeoff(self.mu)

    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        if self.inverted:
            return _inverse(lambda x: self.inverse()._type_ii(x), type_i)
        return np.asarray(
            self.rate * self.gaussian._type_ii(type_i) + (1.0 - self.rate) * (1.0 - type_i)
        )

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        if self.inverted:
            forward = self.inverse()
            lower = _inverse(lambda x: forward._bounds(x)[0], type_i) * (1.0 - 4.0 * _ULP)
            upper = _inverse(lambda x: forward._bounds(x)[1], type_i) * (1.0 + 4.0 * _ULP)
            return lower, np.minimum(upper, np.nextafter(1.0 - type_i, 1.0))
        lower, upper = self.gaussian._bounds(type_i)
        rest = (1.0 - self.rate) * (1.0 - type_i)
        slack = 4.0 * _ULP
        return (self.rate * lower + rest) * (1.0 - slack), (self.rate * upper + rest) * (
            1.0 + slack
        )

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        scale, moved, _ = self._moved(epsilon)
        value = scale * np.asarray(profile.delta(moved, self.mu))
        return np.asarray(np.maximum(value, -np.expm1(np.minimum(epsilon, 0.0))))

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        scale, moved, error = self._moved(epsilon)
        lower = scale * np.asarray(profile.delta(moved + error, self.mu)) * (1.0 - _SLACK)
        upper = scale * np.asarray(profile.delta(moved - error, self.mu)) * (1.0 + _SLACK)
        trivial = -np.expm1(np.minimum(epsilon, 0.0))
        least = np.maximum(trivial * (1.0 + 4.0 * _ULP), upper)
        return np.maximum(trivial * (1.0 - 4.0 * _ULP), lower), np.minimum(least, 1.0)

    def _moved(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(scale, moved epsilon, its error): delta = scale * d(moved)."""
        p = self.rate
        if p in (0.0, 1.0):
            return np.full_like(epsilon, p), epsilon, np.zeros_like(epsilon)
        if self.inverted:
            # k = 1 - (1 - p) e^eps, moved = eps + ln(p/k)
            k = -np.expm1(epsilon + math.log1p(-p))
            live = k > 0.0
            safe = np.where(live, k, 1.0)
            moved = np.where(live, epsilon + math.log(p) - np.log(safe), 0.0)
            error = 8.0 * _ULP * (np.abs(epsilon) - math.log(p) + 1.0 / safe + 1.0)
            return np.where(live, k, 0.0), moved, error
        ratio = np.expm1(epsilon) / p
        live = ratio > -1.0
        safe = np.where(live, ratio, 0.0)
        moved = np.log1p(safe)
        error = 8.0 * _ULP * (np.abs(safe) / (1.0 + safe) + np.abs(moved))
        return np.where(live, p, 0.0), moved, error

    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        p = self.rate
        if p in (0.0, 1.0):
            return GaussianTradeoff(self.mu * p).tangent(epsilon)
        scale, moved, _ = self._moved(epsilon)
        centre = moved / self.mu
        low, high = ndtr(-centre - 0.5 * self.mu), ndtr(-centre + 0.5 * self.mu)
        if self.inverted:  # reject where the sampled law is small: the roles of P and Q change
            never = scale <= 0.0
            return np.where(never, 0.0, p * low + (1.0 - p) * high), np.where(never, 0.0, high)
        return low, p * high + (1.0 - p) * low

    def inverse(self) -> SampledGaussianTradeoff:
        return SampledGaussianTradeoff(self.rate, self.mu, not self.inverted)

    def integral(self) -> float:
        return self.rate * self.gaussian.integral() + 0.5 * (1.0 - self.rate)

    def gaussian_mu(self) -> Interval:
        # Phi^-1(1 - a) - Phi^-1(f_p(a)) -> mu as a -> 0, and f_p >= G_mu
        return Interval.exact(self.mu if self.rate > 0.0 else 0.0)


def _inverse(function: Callable[[FloatArray], FloatArray], type_i: FloatArray) -> FloatArray:
    """The point where a decreasing function on [0, 1] falls to `type_i`, to the last digit."""
    flat = np.atleast_1d(type_i).astype(np.float64)
    # bisect in the normal quantile: all of (0, 1) with relative accuracy at 0
    low, high = np.full_like(flat, -39.0), np.full_like(flat, 39.0)
    for _ in range(70):
        middle = 0.5 * (low + high)
        above = function(ndtr(middle)) > flat
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    result = ndtr(0.5 * (low + high))
    result = np.where(flat <= 0.0, 1.0, np.where(flat >= 1.0, 0.0, result))
    return result.reshape(np.shape(type_i))
