"""Losses and profiles of a release on a random sample: a record is there by chance.

With the record, densities differ by e^u; drawn with a rate, by r = 1 + rate (e^u - 1). Rates from
1e-300 to 1 - 2^-53 keep their digits: nothing cancels.

A sampled release has the profile G of the release itself at a moved epsilon:
remove: delta = q G(ln kappa), kappa = (e^eps - 1 + q)/q;
add:    delta = q kappa e^eps G(-ln kappa), kappa = (e^-eps - 1 + q)/q (0 when kappa <= 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.loss.abstract import as_losses
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray

Direction = Literal["remove", "add"]
REVERSE: dict[Direction, Direction] = {"remove": "add", "add": "remove"}
Profile = Callable[[float], Interval]  # ln delta of every real epsilon
NEVER = Interval.exact(-math.inf)  # delta = 0
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
    """ln(1 + rate (e^u - 1)) where e^u is a number; for rates near 1, 1 - rate is exact."""
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


# ---- the profile of one sampled release
def below_support(epsilon: float) -> Interval:
    """ln(1 - e^eps), where every loss is above eps < 0."""
    value = math.log(-math.expm1(epsilon))
    slack = 64.0 * ULP * (1.0 + abs(value))
    return Interval(value - slack, min(0.0, value + slack))


def _moved_epsilon(q: float, epsilon: float) -> tuple[float, float]:
    """ln kappa with kappa = (e^eps - 1 + q)/q, and its absolute error; -inf when kappa <= 0.

    An infinite error says that only an upper bound on kappa is known, which may be 0.
    """
    if q == 1.0:
        return epsilon, 0.0
    if epsilon > 30.0:
        value = epsilon + math.log1p(-(1.0 - q) * math.exp(-epsilon)) - math.log(q)
        return value, 4.0 * ULP * (abs(value) + epsilon - math.log(q))
    left, size = (float(part) for part in above_infimum(np.asarray(epsilon), q))
    rounding = 4.0 * ULP * size
    if left < -rounding:
        return -math.inf, 0.0
    if left < 2.0 * rounding:  # within rounding of the infimum, perhaps below it
        return math.log(3.0 * rounding) - math.log(q), math.inf
    value = math.log(left) - math.log(q)
    return value, 2.0 * rounding / left + 4.0 * ULP * (abs(value) - math.log(q) + 1.0)


def over(centre: float, error: float, base: Profile) -> Interval:
    """A falling profile over [centre - error, centre + error]."""
    if error == 0.0:
        return base(centre)
    if error == math.inf:
        return Interval(-math.inf, 0.0)
    low, high = base(centre + error), base(centre - error)
    return Interval(min(low.lower, high.lower), max(low.upper, high.upper))


def shifted(value: Interval, shift: float) -> Interval:
    slack = 4.0 * ULP * (abs(shift) + 1.0)
    return Interval(value.lower + shift - slack, min(0.0, value.upper + shift + slack))


def sampled_removed(rate: float, epsilon: float, base: Profile) -> Interval:
    kappa, error = _moved_epsilon(rate, epsilon)
    if kappa == -math.inf or error == math.inf:  # below the support, or within 3 rounding/q
        return below_support(epsilon)
    return shifted(over(kappa, error, base), math.log(rate))


def sampled_added(rate: float, epsilon: float, base: Profile) -> Interval:
    kappa, error = _moved_epsilon(rate, -epsilon)
    if kappa == -math.inf:
        return NEVER
    if error == math.inf:  # kappa G(-ln kappa) increases with kappa
        most = base(-kappa).upper + math.log(rate) + epsilon + kappa
        return Interval(-math.inf, min(0.0, most + 8.0 * ULP * (abs(most) + abs(epsilon) + 1.0)))
    part = shifted(over(-kappa, error, base), math.log(rate) + epsilon + kappa)
    return Interval(part.lower - error, min(0.0, part.upper + error))


def sampled_both(rate: float, epsilon: float, base: Profile) -> Interval:
    """Both a record that is removed where L > 0 and one that is added where L < 0; eps >= 0."""
    kappa, error = _moved_epsilon(rate, epsilon)
    return shifted(over(kappa, error, base), math.log(rate))
