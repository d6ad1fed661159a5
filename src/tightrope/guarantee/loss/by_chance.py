"""The loss of a record that is there by chance, and the point where it passes a given value.

With the record, densities differ by e^u; drawn with a rate, by r = 1 + rate (e^u - 1). Rates from
1e-300 to 1 - 2^-53 keep their digits: nothing cancels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.loss.abstract import as_losses
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray

__all__ = [
    "log_ratio",
    "log_sampled",
    "log_sampled_error",
    "above_infimum",
    "point_of_log_ratio",
    "point_slack",
    "log_mix",
]

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
