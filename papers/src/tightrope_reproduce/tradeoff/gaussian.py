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
    Proposition A.1.
Error: relative 2e-12 on type II errors, 1e-12 plus the rounding of the moved epsilon on deltas. The
    inverse of f_p is bisected to the last digit; its bounds move type_i and the answer by 2e-12.
Vectors: tradeoff_gaussian and subsample_tradeoff in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr

from tightrope.guarantee import gaussian as profile
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_probability, check_real
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff

__all__ = ["GaussianTradeoff", "SampledGaussianTradeoff"]

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
            return _inverse(self.rate, self.mu, type_i)
        return np.asarray(
            self.rate * self.gaussian._type_ii(type_i) + (1.0 - self.rate) * (1.0 - type_i)
        )

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        if self.inverted:
            lower = _inverse(self.rate, self.mu, type_i, _SLACK)
            upper = _inverse(self.rate, self.mu, type_i, -_SLACK)
            return lower, upper
        lower, upper = self.gaussian._bounds(type_i)
        rest = (1.0 - self.rate) * (1.0 - type_i)
        lower, upper = self.rate * lower + rest, self.rate * upper + rest
        slack = 4.0 * ULP
        most = np.nextafter(1.0 - type_i, 1.0)
        return lower * (1.0 - slack), np.minimum(upper * (1.0 + slack), most)

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        scale, moved, _ = self._moved(epsilon)
        value = scale * np.asarray(profile.delta(moved, self.mu))
        return np.asarray(np.maximum(value, -np.expm1(np.minimum(epsilon, 0.0))))

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        scale, moved, error = self._moved(epsilon)
        # `error` bounds the relative error of the scale as well; beyond 1/4 nothing is known
        known = np.minimum(error, 0.25)
        lower = scale * (1.0 - known) * np.asarray(profile.delta(moved + known, self.mu))
        upper = scale * (1.0 + known) * np.asarray(profile.delta(moved - known, self.mu))
        upper = np.where(error <= 0.25, upper, scale + 16.0 * ULP * (np.abs(epsilon) + self.rate))
        lower = np.where(error <= 0.25, lower, 0.0)
        trivial = -np.expm1(np.minimum(epsilon, 0.0))
        # outward by one more double: delta may be subnormal, or below every double
        lower = np.nextafter(lower * (1.0 - _SLACK), 0.0)
        upper = np.where(scale > 0.0, np.nextafter(upper * (1.0 + _SLACK), 2.0), upper)
        lower = np.maximum(trivial * (1.0 - 4.0 * ULP), lower)
        return lower, np.minimum(np.maximum(trivial * (1.0 + 4.0 * ULP), upper), 1.0)

    def _moved(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(scale, moved epsilon, error): delta = scale * d(moved); absolute error of `moved`."""
        p = self.rate
        if p in (0.0, 1.0):
            return np.full_like(epsilon, p), epsilon, np.zeros_like(epsilon)
        return self._moved_backward(epsilon) if self.inverted else self._moved_forward(epsilon)

    def _moved_backward(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """k = 1 - (1 - p) e^eps, moved = eps + ln(p/k)."""
        p = self.rate
        k = -np.expm1(epsilon + math.log1p(-p))
        noise = 8.0 * ULP * (np.abs(epsilon) + p)  # of k
        live = k > 0.0
        safe = np.where(live, k, 1.0)
        moved = np.where(live, epsilon + math.log(p) - np.log(safe), 0.0)
        error = 8.0 * ULP * (np.abs(moved) + np.abs(epsilon) - math.log(p) + 1.0)
        # where rounding decides the sign of k, delta is at most that rounding
        uncertain = np.where(k > -noise, 1.0, 0.0)
        return np.maximum(k, 0.0), moved, np.where(live, error + noise / safe, uncertain)

    def _moved_forward(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """moved = ln(1 + (e^eps - 1)/p), for large ratios as a difference of logarithms."""
        p = self.rate
        lift = np.expm1(epsilon)
        live = lift > -p
        with np.errstate(over="ignore"):
            ratio = np.where(live, lift / p, 0.0)
        small = np.minimum(ratio, 1.0)
        far = np.log(np.maximum(lift, p) + p) - math.log(p)
        moved = np.where(ratio <= 1.0, np.log1p(small), far)
        error = 8.0 * ULP * (np.abs(small) / (1.0 + small) + np.abs(moved) - math.log(p))
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


def _inverse(rate: float, mu: float, type_i: FloatArray, slack: float = 0.0) -> FloatArray:
    """f_p^-1, by bisection in the normal quantile w = Phi^-1(answer).

    Solves p Phi(-w - mu) + (1 - p) Phi(-w) = type_i below 1/2, and above it
    p Phi(w + mu) + (1 - p) Phi(w) = 1 - type_i, which is exact there. A `slack` moves the right
    side up by that share for a smaller answer (down for a larger one, if negative).
    """
    flat = np.atleast_1d(type_i).astype(np.float64).ravel()
    upper = flat >= 0.5
    target = np.where(upper, (1.0 - flat) * (1.0 - slack), flat * (1.0 + slack))
    sign = np.where(upper, 1.0, -1.0)
    low, high = np.full_like(flat, -39.0 - mu), np.full_like(flat, 39.0)
    for _ in range(75):
        w = 0.5 * (low + high)
        value = rate * ndtr(sign * (w + mu)) + (1.0 - rate) * ndtr(sign * w)
        beyond = (value > target) == upper
        low, high = np.where(beyond, low, w), np.where(beyond, w, high)
    result = ndtr(0.5 * (low + high)) * (1.0 - slack)
    if slack < 0.0:
        result = np.nextafter(result, 1.0)  # it may be below every double
    most = 1.0 - flat if slack >= 0.0 else np.nextafter(1.0 - flat, 1.0)
    result = np.where(flat <= 0.0, 1.0, np.where(flat >= 1.0, 0.0, np.minimum(result, most)))
    return np.asarray(result).reshape(np.shape(type_i))
