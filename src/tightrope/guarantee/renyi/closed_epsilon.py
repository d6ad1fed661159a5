"""Lemma 1: a closed bound on epsilon that also vanishes with gamma.

Statement: with z = order - 1, (order, gamma)-Renyi DP implies (eps, delta)-DP for
    eps = (gamma + ln(1-delta))_+ where order*delta >= 1 (exact),
    eps = (1/z) min{ (z gamma - ln(delta/zeta))_+, ln(1 + (e^{z gamma} - 1)/(order delta)) }
    otherwise. Solved for delta: min{ zeta e^{z(gamma-eps)}, (e^{z gamma}-1)/(order (e^{z eps}-1)) }
    where that is below 1/order, and max{1/order, 1 - e^{eps-gamma}} otherwise.
Conditions: order > 1, gamma >= 0, eps >= 0, 0 <= delta <= 1.
Validity: bound (exact for one direction where order*delta >= 1).
Source: Asoodeh et al. (arXiv:2008.06529), Lemma 1, (24)-(25).
Error: rounded upwards by a few ulp of each quantity that enters.
Vectors: thm3_eps (lemma1) in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi._arrays import (
    TINY,
    ULP,
    checked_delta,
    checked_epsilon,
    checked_gamma,
    checked_order,
    flat,
    rounded_up,
    shaped,
)
from tightrope.guarantee.renyi.balle import log_zeta
from tightrope.guarantee.renyi.classical import epsilon_above, exponential_above
from tightrope.guarantee.renyi.kernel import log_growth, softplus
from tightrope.validate import FloatArray

__all__ = ["epsilon", "delta", "epsilon_upper", "delta_upper", "second_term"]


def epsilon(order: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> Any:
    (a, g, d), shape = flat(checked_order(order), checked_gamma(gamma), checked_delta(delta))
    return shaped(epsilon_upper(a - 1.0, g, d), shape)


def delta(order: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike) -> Any:
    (a, g, eps), shape = flat(checked_order(order), checked_gamma(gamma), checked_epsilon(epsilon))
    return shaped(delta_upper(a - 1.0, g, eps), shape)


def epsilon_upper(z: FloatArray, gamma: FloatArray, delta: FloatArray) -> FloatArray:
    """(24) and (25) on checked arrays."""
    first = epsilon_above(z, gamma, delta, log_zeta(z))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        second = second_term(z, gamma, delta)
        end = rounded_up(gamma + np.log1p(-delta), gamma, np.log1p(-delta))
    inner = np.where(delta > 0.0, np.minimum(first, second), np.inf)
    closed = (1.0 - delta) - z * delta <= 0.0
    value = np.where(closed, np.maximum(end, 0.0), inner)
    value = np.where(np.isinf(gamma), np.inf, value)
    return np.where((gamma == 0.0) | (delta == 1.0), 0.0, value)


def second_term(z: FloatArray, gamma: FloatArray, delta: FloatArray) -> FloatArray:
    """ln(1 + (e^{z gamma} - 1)/(order delta))/z, rounded upwards; it vanishes with gamma."""
    growth, rounding = _log_growth(z, gamma)
    log_ratio = growth - np.log(delta) - np.log1p(z)
    size = rounding - np.log(delta) + np.log1p(z)
    log_ratio = log_ratio + 4.0 * ULP * np.minimum(size, 1e300)
    small = np.exp(np.minimum(log_ratio, 0.0) - np.log(z) + 4.0 * ULP * np.abs(np.log(z)))
    value = np.where(log_ratio < -600.0, small, softplus(log_ratio) / z)
    return np.maximum(rounded_up(value), TINY)


def _log_growth(z: FloatArray, level: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln(e^{z level} - 1), and the size of what it is rounded by."""
    value = log_growth(z, level)
    return value, 1.0 + z * level + np.maximum(-value, 0.0)


def delta_upper(z: FloatArray, gamma: FloatArray, eps: FloatArray) -> FloatArray:
    """The smallest delta for which `epsilon_upper` is at most eps."""
    first = exponential_above(z, gamma, eps, log_zeta(z))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        (rise, first_size), (fall, second_size) = _log_growth(z, gamma), _log_growth(z, eps)
        log_second = rise - fall - np.log1p(z)
        size = first_size + second_size + np.log1p(z)
        second = np.exp(np.minimum(rounded_up(log_second, np.minimum(size, 1e300)), 0.0))
        end = -np.expm1(np.minimum(eps - gamma, 0.0)) * (1.0 + 4.0 * ULP) + 2.0 * ULP
    inner = np.where(np.isnan(second), first, np.minimum(first, np.maximum(second, 5e-324)))
    outer = np.minimum(np.maximum((1.0 + 2.0 * ULP) / (1.0 + z), end), 1.0)
    value = np.where(inner * (1.0 + z) < 1.0, inner, np.minimum(outer, first))
    value = np.where(np.isinf(gamma), 1.0, value)
    return np.where(gamma == 0.0, 0.0, value)
