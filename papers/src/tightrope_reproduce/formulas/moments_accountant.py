"""The moments accountant for composed Gaussian mechanisms, in closed form both ways.

Statement: `steps` adaptive releases of queries of unit L2 sensitivity with Gaussian noise of
    standard deviation s are (order, rho T order)-Renyi DP, rho = 1/(2 s^2); the classical
    conversion at its best order gives eps = rho T + 2 sqrt(rho T L), L = ln(1/delta). Solved:
    delta = exp(-(eps - rho T)^2/(4 rho T)) for eps > rho T,
    s^2 = T (sqrt(L + eps) + sqrt(L))^2/(2 eps^2),
    T = floor(2 s^2 eps^2/(sqrt(L + eps) + sqrt(L))^2).
Conditions: noise_multiplier > 0 (relative to the sensitivity), steps >= 1, eps > 0, 0 < delta < 1.
Validity: bound. The exact answer is Gaussian DP with mu = sqrt(T)/s (question_two.py).
Source: (29) and (36) of arXiv:2008.06529 (there the remainder misses a factor T).
Error: rounded to the safe side by 8 ulp of each quantity that enters.
Vectors: gaussian_composition and thm5_sigma2 (moments_accountant) in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi.kernel import rounded_up
from tightrope.numerics.arrays import flat, shaped
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_positive, check_real

__all__ = ["epsilon", "delta", "noise_multiplier", "steps", "rate_of", "checked_inner_delta"]


def epsilon(noise_multiplier: ArrayLike, steps: ArrayLike, delta: ArrayLike) -> Any:
    (rate, d), shape = flat(rate_of(noise_multiplier, steps), checked_inner_delta(delta))
    return shaped(rounded_up(rounded_up(rate + 2.0 * np.sqrt(rate * -np.log(d)))), shape)


def delta(noise_multiplier: ArrayLike, steps: ArrayLike, epsilon: ArrayLike) -> Any:
    eps = check_real(epsilon, "epsilon", low=0.0)
    (rate, e), shape = flat(rate_of(noise_multiplier, steps), eps)
    with np.errstate(under="ignore", over="ignore"):
        exponent = -(np.maximum(e - rate, 0.0) ** 2) / (4.0 * rate)
        value = np.exp(rounded_up(exponent, exponent, e, 1.0)) + np.finfo(np.float64).tiny
    return shaped(np.minimum(value, 1.0), shape)


def noise_multiplier(epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike) -> Any:
    """The smallest noise for which this accountant promises (epsilon, delta)."""
    (e, d, t), shape = _read(epsilon, delta, steps)
    return shaped(np.sqrt(0.5 * t) * _root(e, d) / e * (1.0 + 16.0 * ULP), shape)


def steps(epsilon: ArrayLike, delta: ArrayLike, noise_multiplier: ArrayLike) -> Any:
    """The largest number of steps for which this accountant promises (epsilon, delta)."""
    (e, d, s), shape = _read(epsilon, delta, noise_multiplier)
    return shaped(np.floor(2.0 * (s * e / _root(e, d)) ** 2 * (1.0 - 32.0 * ULP)), shape)


def rate_of(noise_multiplier: ArrayLike, steps: ArrayLike) -> Any:
    """rho T = T/(2 s^2), rounded upwards: the Renyi divergence per order."""
    s = check_positive(noise_multiplier, "noise_multiplier")
    t = check_positive(steps, "steps")
    return rounded_up(np.asarray(0.5 * np.asarray(t) / np.square(s)))


def checked_inner_delta(delta: ArrayLike) -> Any:
    return check_real(delta, "delta", low=1e-300, high=1.0 - 2.0**-53)


def _read(
    epsilon: ArrayLike, delta: ArrayLike, third: ArrayLike
) -> tuple[list[FloatArray], tuple[int, ...]]:
    eps = check_positive(epsilon, "epsilon")
    return flat(eps, checked_inner_delta(delta), check_positive(third, "the third argument"))


def _root(eps: FloatArray, delta: FloatArray) -> FloatArray:
    log_inverse = -np.log(delta)
    return np.asarray(np.sqrt(log_inverse + eps) + np.sqrt(log_inverse))
