"""The classical conversion from Renyi DP to (epsilon, delta)-DP.

Statement: (order, gamma)-Renyi DP implies (eps, delta)-DP with
    delta = e^{-(order-1)(eps-gamma)},   eps = gamma + ln(1/delta)/(order-1).
Conditions: order > 1, gamma >= 0; eps >= 0 and delta in [0, 1].
Validity: bound. Kept for comparison: `closed_epsilon` and `optimal` are never looser.
Source: Mironov 2017 (arXiv:1702.07476), Proposition 3; Theorem 1 of arXiv:2008.06529.
Error: rounded upwards by 4 ulp of each quantity that enters.
Vectors: thm3_eps, thm3_delta (classical) in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi._arrays import (
    TINY,
    checked_delta,
    checked_epsilon,
    checked_gamma,
    checked_order,
    flat,
    rounded_up,
    shaped,
)
from tightrope.validate import FloatArray

__all__ = ["epsilon", "delta", "epsilon_above", "exponential_above"]


def epsilon(order: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> Any:
    (a, g, d), shape = flat(checked_order(order), checked_gamma(gamma), checked_delta(delta))
    return shaped(epsilon_above(a - 1.0, g, d, 0.0), shape)


def delta(order: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike) -> Any:
    (a, g, eps), shape = flat(checked_order(order), checked_gamma(gamma), checked_epsilon(epsilon))
    return shaped(exponential_above(a - 1.0, g, eps, 0.0), shape)


def epsilon_above(
    z: FloatArray, gamma: FloatArray, delta: FloatArray, log_factor: FloatArray | float
) -> FloatArray:
    """gamma + (ln factor - ln delta)/z, rounded upwards, at least 0; 0 at delta = 1."""
    with np.errstate(divide="ignore"):
        tail = (log_factor - np.log(delta)) / z
    value = rounded_up(gamma + tail, gamma, np.log(np.maximum(delta, TINY)) / z, log_factor / z)
    return np.where(delta == 1.0, 0.0, np.maximum(value, 0.0))


def exponential_above(
    z: FloatArray, gamma: FloatArray, eps: FloatArray, log_factor: FloatArray | float
) -> FloatArray:
    """factor e^{z (gamma - eps)}, rounded upwards, in (0, 1]."""
    with np.errstate(over="ignore", under="ignore"):
        exponent = rounded_up(z * (gamma - eps) + log_factor, 1.0, z * gamma, z * eps)
        return np.minimum(np.maximum(np.exp(exponent), 5e-324), 1.0)
