"""The best constant in the classical conversion (Balle et al.).

Statement: (order, gamma)-Renyi DP implies (eps, delta)-DP with
    delta = zeta e^{(order-1)(gamma-eps)},   zeta = (1/order)(1 - 1/order)^(order-1),
    eps = gamma - ln(delta/zeta)/(order-1).
Conditions: order > 1, gamma >= 0; eps >= 0 and delta in [0, 1] (both ends clipped to that).
Validity: bound.
Source: Balle et al. 2020 (arXiv:1905.09982), Theorem 21; Canonne, Kamath and Steinke 2020
    (arXiv:2004.00010), Proposition 12.
Error: rounded upwards by 4 ulp of each quantity that enters.
Vectors: thm3_eps, thm3_delta (balle) in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi._arrays import (
    checked_delta,
    checked_epsilon,
    checked_gamma,
    checked_order,
    flat,
    shaped,
)
from tightrope.guarantee.renyi.classical import epsilon_above, exponential_above
from tightrope.validate import FloatArray

__all__ = ["log_zeta", "epsilon", "delta"]


def log_zeta(z: FloatArray) -> FloatArray:
    """ln zeta = -ln(1+z) - z ln(1+1/z), z = order - 1; relative rounding of a few ulp."""
    return -(np.log1p(z) + z * np.log1p(1.0 / z))


def epsilon(order: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> Any:
    (a, g, d), shape = flat(checked_order(order), checked_gamma(gamma), checked_delta(delta))
    return shaped(epsilon_above(a - 1.0, g, d, log_zeta(a - 1.0)), shape)


def delta(order: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike) -> Any:
    (a, g, eps), shape = flat(checked_order(order), checked_gamma(gamma), checked_epsilon(epsilon))
    return shaped(exponential_above(a - 1.0, g, eps, log_zeta(a - 1.0)), shape)
