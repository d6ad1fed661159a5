"""Pairs of unit-variance normals: plain, Poisson-sampled, fixed-size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from tightrope.errors import InvalidInput
from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses, as_losses
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray, check_positive, check_real

__all__ = [
    "GaussianPair",
    "SampledGaussianPair",
    "FixedSizeGaussianPair",
    "Direction",
    "log_ratio",
    "log_sampled",
    "log_sampled_error",
    "above_infimum",
    "point_of_log_ratio",
    "point_slack",
    "log_mix",
]

Direction = Literal["remove", "add"]
_LARGEST_MU = 20.0  # beyond, e^{mu^2} says nothing that a double can


def _normal_error(point: FloatArray, slack: FloatArray) -> FloatArray:
    """Error of log_ndtr(+-point) (2 ulp of its value) when `point` itself is off by `slack`."""
    x = np.abs(np.where(np.isfinite(point), point, 0.0))
    # |d log_ndtr| <= |x| + 1, and |log_ndtr| <= x^2/2 + ln(x+2) + 1
    return (x + 1.0) * slack + 4.0 * ULP * (0.5 * x * x + np.log(x + 2.0) + 1.0)


def _total_variation(mu: float) -> float:
    """Phi(mu/2) - Phi(-mu/2)."""
    return math.erf(mu / (2.0 * math.sqrt(2.0)))


def _check_rate(rate: ArrayLike) -> float:
    value = check_real(rate, "rate", low=0.0, high=1.0, open_low=True)
    if not isinstance(value, float):
        raise InvalidInput(f"rate must be one number in (0, 1]; got {rate!r}.")
    return value


def _check_mu(mu: ArrayLike) -> float:
    value = check_positive(mu, "mu")
    if not isinstance(value, float):
        raise InvalidInput(f"mu must be one positive number; got {mu!r}.")
    return value


@final
@dataclass(frozen=True)
class GaussianPair(AbstractLossPair):
    """P = N(mu, 1), Q = N(0, 1): L = mu s - mu^2/2."""

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", _check_mu(self.mu))

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        return (-math.inf, math.inf)

    @property
    def total_variation(self) -> float:
        return _total_variation(self.mu)

    @property
    def log_mean_square(self) -> float:
        return self.mu * self.mu

    def reversed(self) -> GaussianPair:
        return self  # mirror s -> mu - s

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        s = point_of_log_ratio(loss, 1.0, self.mu)
        return log_ndtr(self.mu - s), log_ndtr(-s)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        s = point_of_log_ratio(loss, 1.0, self.mu)
        return log_ndtr(s - self.mu), log_ndtr(s)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = as_losses(loss)
        s = x / self.mu + 0.5 * self.mu
        return _normal_error(np.abs(s) + self.mu, 2.0 * ULP * (np.abs(s) + self.mu))


@final
@dataclass(frozen=True)
class SampledGaussianPair(AbstractLossPair):
    """Poisson-sampled Gaussian; mix = (1-rate) N(0,1) + rate N(mu,1), r = dmix/dN(0,1).

    "remove": P = mix, Q = N(0,1), L = ln r.   "add": P = N(0,1), Q = mix, L = -ln r.
    """

    rate: float
    mu: float
    direction: Direction = "remove"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _check_rate(self.rate))
        object.__setattr__(self, "mu", _check_mu(self.mu))
        if self.direction not in ("remove", "add"):
            raise InvalidInput(
                f"direction must be 'remove' or 'add'; got {self.direction!r}. 'remove' puts the "
                "example in the first dataset of the pair, 'add' in the second."
            )

    @property
    def has_jumps(self) -> bool:
        return self.direction == "remove" and self.rate < 1.0

    @property
    def has_rare_losses(self) -> bool:
        return self.has_jumps

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        edge = math.log1p(-self.rate) if self.rate < 1.0 else -math.inf
        return (edge, math.inf) if self.direction == "remove" else (-math.inf, -edge)

    @property
    def total_variation(self) -> float:
        return self.rate * _total_variation(self.mu)

    @property
    def log_mean_square(self) -> float:
        if self.rate == 1.0 or self.mu > _LARGEST_MU:
            return self.mu * self.mu
        return math.log1p(self.rate**2 * math.expm1(self.mu**2))  # of r under N(0,1)

    def reversed(self) -> SampledGaussianPair:
        other: Direction = "add" if self.direction == "remove" else "remove"
        return SampledGaussianPair(self.rate, self.mu, other)

    def _above(self, s: FloatArray) -> LogMasses:
        """ln mix(> s), ln N(0,1)(> s)."""
        base = log_ndtr(-s)
        return log_mix(base, log_ndtr(self.mu - s), self.rate), base

    def _below(self, s: FloatArray) -> LogMasses:
        base = log_ndtr(s)
        return log_mix(base, log_ndtr(s - self.mu), self.rate), base

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        x = as_losses(loss)
        if self.direction == "remove":
            return self._above(point_of_log_ratio(x, self.rate, self.mu))
        mix, base = self._below(point_of_log_ratio(-x, self.rate, self.mu))
        return base, mix

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        x = as_losses(loss)
        if self.direction == "remove":
            return self._below(point_of_log_ratio(x, self.rate, self.mu))
        mix, base = self._above(point_of_log_ratio(-x, self.rate, self.mu))
        return base, mix

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = as_losses(loss)
        x = x if self.direction == "remove" else -x
        s = point_of_log_ratio(x, self.rate, self.mu)
        slack = point_slack(x, s, self.rate, self.mu)
        return _normal_error(np.abs(s) + self.mu, slack)


@final
@dataclass(frozen=True)
class FixedSizeGaussianPair(AbstractLossPair):
    """C_rate(G_mu), for fixed-size batches under replace-one.

    The "remove" pair on s > mu/2 (L > 0), its mirror image (L < 0), and an atom at L = 0.
    """

    rate: float
    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _check_rate(self.rate))
        object.__setattr__(self, "mu", _check_mu(self.mu))

    @property
    def has_jumps(self) -> bool:
        return True

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        return (-math.inf, math.inf)

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        # (1 - rate)(Phi(mu/2) - Phi(-mu/2))
        mass = (1.0 - self.rate) * _total_variation(self.mu)
        return ((0.0, mass),) if mass > 0.0 else ()

    @property
    def total_variation(self) -> float:
        return self.rate * _total_variation(self.mu)

    def reversed(self) -> FixedSizeGaussianPair:
        return self

    def _tail(self, size: FloatArray) -> LogMasses:
        """ln mix(ln r > size), ln N(0,1)(ln r > size) for size >= 0."""
        s = point_of_log_ratio(size, self.rate, self.mu)
        base = log_ndtr(-s)
        return log_mix(base, log_ndtr(self.mu - s), self.rate), base

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        x = as_losses(loss)
        mix, base = self._tail(np.abs(x))
        # for l < 0: P(L > l) = 1 - P(L <= l), and P(L <= -|l|) = N(ln r >= |l|)
        return _where_complement(x >= 0, mix, base), _where_complement(x >= 0, base, mix)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        x = as_losses(loss)
        mix, base = self._tail(np.abs(x))
        return _where_complement(x < 0, base, mix), _where_complement(x < 0, mix, base)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = np.abs(as_losses(loss))
        s = point_of_log_ratio(x, self.rate, self.mu)
        return _normal_error(np.abs(s) + self.mu, point_slack(x, s, self.rate, self.mu))


def _where_complement(direct: ArrayLike, log_mass: FloatArray, log_other: FloatArray) -> FloatArray:
    """log_mass where `direct`, otherwise ln(1 - e^log_other)."""
    with np.errstate(divide="ignore"):
        complement = np.log1p(-np.exp(np.minimum(log_other, 0.0)))
    return np.where(direct, log_mass, complement)


# ---- The loss of a record that is there by chance, and the point where it passes a given value----
# With the record, densities differ by e^u; drawn with a rate, by r = 1 + rate (e^u - 1). Rates from
# 1e-300 to 1 - 2^-53 keep their digits: nothing cancels.


_LARGEST_POWER = 700.0  # of e


def log_ratio(
    point: FloatArray | float, rate: FloatArray | float, mu: FloatArray | float
) -> FloatArray:
    """ln r(s), r(s) = 1 + rate (e^{mu s - mu^2/2} - 1), the loss of the sampled pair at s.

    Rates and mu may be arrays; the relative error is small wherever r is near 1.
    """
    return log_sampled(np.asarray(mu * as_losses(point) - 0.5 * mu * mu), rate)


def log_sampled(u: FloatArray, rate: FloatArray | float) -> FloatArray:
    """ln(1 + rate (e^u - 1)): what is left of the loss u where the record is there by chance."""
    if isinstance(rate, float) and rate == 1.0:
        return u
    low = _log_one_plus(np.minimum(u, _LARGEST_POWER), rate)
    if not np.any(u > _LARGEST_POWER):
        return low
    high = u + np.log(rate + (1.0 - rate) * np.exp(-np.maximum(u, _LARGEST_POWER)))
    return np.where(u > _LARGEST_POWER, high, low)


def _log_one_plus(u: FloatArray, rate: FloatArray | float) -> FloatArray:
    """The same where e^u is a number; for rates near 1, 1 - rate is exact and kept apart."""
    found = np.asarray(np.log1p(rate * np.expm1(u)))
    apart = (np.asarray(rate) > 0.5) & (u < -0.5)
    if not apart.any():
        return found
    return np.where(apart, np.log((1.0 - rate) + rate * np.exp(u)), found)


def log_sampled_error(log: FloatArray, rate: FloatArray | float) -> FloatArray:
    """Rounding of a value of `log_sampled` for an exact u.

    x = rate (e^u - 1) is right to 5 units, log1p to 4. The first moves the logarithm by 5 x/(1+x),
    at most 8 of it since x >= -1/2. Kept apart, a sum that is right to 6 units has a logarithm of
    at least 0.2: 4 + 6/0.2.
    """
    return np.asarray(np.where(np.asarray(rate) > 0.5, 34.0, 12.0) * UNIT * np.abs(log))


def above_infimum(loss: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """e^l - (1 - rate), what r exceeds its infimum by at the loss l <= 30, and its two terms' size.

    For rates near 1 the difference 1 - rate is exact, and e^l - 1 would round a small e^l away.
    """
    small, near = np.exp(loss), 1.0 - rate
    bent = np.expm1(loss)
    apart = (rate > 0.5) & (loss < -0.5)
    excess = np.where(apart, small - near, bent + rate)
    return excess, np.where(apart, small + near, np.abs(bent) + rate)


def point_of_log_ratio(loss: ArrayLike, rate: float, mu: float) -> FloatArray:
    """The s with ln r(s) = loss; -inf at or below the infimum ln(1 - rate)."""
    x = as_losses(loss)
    if rate == 1.0:
        return x / mu + 0.5 * mu
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # e^u = (e^l - 1 + rate) / rate; for large l factor e^l out
        small = np.log(np.maximum(above_infimum(np.minimum(x, 30.0), rate)[0], 0.0))
        large = x + np.log1p(-(1.0 - rate) * np.exp(-np.maximum(x, 30.0)))
    u = np.where(x > 30.0, large, small) - math.log(rate)
    return u / mu + 0.5 * mu


def point_slack(loss: FloatArray, point: FloatArray, rate: float, mu: float) -> FloatArray:
    """Rounding of `point_of_log_ratio`: relative 4 ulp, plus the cancellation in e^l - 1 + rate."""
    x = np.minimum(loss, 30.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        left, size = above_infimum(x, rate)
        lost = np.where(left > 0.0, (size + np.abs(x) * np.exp(x)) / left, 0.0)
    reach = np.abs(np.where(np.isfinite(point), point, 0.0)) + mu - math.log(rate) / mu
    return 4.0 * ULP * (reach + (lost + 1.0) / mu)


def log_mix(log_base: FloatArray, log_shifted: FloatArray, rate: float) -> FloatArray:
    """ln((1 - rate) e^base + rate e^shifted)."""
    if rate == 1.0:
        return log_shifted
    return np.logaddexp(math.log1p(-rate) + log_base, math.log(rate) + log_shifted)
