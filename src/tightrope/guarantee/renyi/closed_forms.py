"""Closed conversions of one Renyi level: classical, best constant, Lemma 1 and Theorem 4.

Statement: (order, gamma)-Renyi DP implies (eps, delta)-DP; with z = order - 1,
    classical  delta = e^{z (gamma - eps)},        eps = gamma - ln(delta)/z;
    balle      delta = zeta e^{z (gamma - eps)},   eps = gamma - ln(delta/zeta)/z,
               zeta = (1/order)(1 - 1/order)^z;
    lemma1     eps = (gamma + ln(1-delta))_+ where order*delta >= 1 (exact), otherwise
               eps = (1/z) min{(z gamma - ln(delta/zeta))_+, ln(1 + (e^{z gamma}-1)/(order delta))};
               solved for delta: min{ zeta e^{z(gamma-eps)}, (e^{z gamma}-1)/(order (e^{z eps}-1)) }
               where that is below 1/order, and max{1/order, 1 - e^{eps-gamma}} otherwise.
Conditions: order > 1, gamma >= 0; eps >= 0 and delta in [0, 1] (both ends clipped to that).
Validity: bound; the first two for comparison, Lemma 1 is never looser and vanishes with gamma.
Source: Mironov 2017 (arXiv:1702.07476), Proposition 3; Balle et al. 2020 (arXiv:1905.09982),
    Theorem 21; Canonne, Kamath and Steinke 2020 (arXiv:2004.00010), Proposition 12; Asoodeh et al.
    (arXiv:2008.06529), Lemma 1, (24)-(25).
Error: rounded upwards by 4 ulp of each quantity that enters.
Vectors: thm3_eps, thm3_delta in tests/golden/renyi.json.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tightrope.guarantee.renyi.kernel import (
    TINY,
    checked_delta,
    checked_epsilon,
    checked_gamma,
    excess_order,
    gamma_of_log_chi,
    log_growth,
    log_kernel,
    rounded_down,
    rounded_up,
    softplus,
)
from tightrope.numerics.arrays import elementwise
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray


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


def log_zeta(z: FloatArray) -> FloatArray:
    """ln zeta = -ln(1+z) - z ln(1+1/z), z = order - 1; relative rounding of a few ulp."""
    return -(np.log1p(z) + z * np.log1p(1.0 / z))


classical_epsilon = elementwise(excess_order, checked_gamma, checked_delta)(
    partial(epsilon_above, log_factor=0.0)
)
classical_delta = elementwise(excess_order, checked_gamma, checked_epsilon)(
    partial(exponential_above, log_factor=0.0)
)


@elementwise(excess_order, checked_gamma, checked_delta)
def balle_epsilon(z: FloatArray, gamma: FloatArray, delta: FloatArray) -> FloatArray:
    return epsilon_above(z, gamma, delta, log_zeta(z))


@elementwise(excess_order, checked_gamma, checked_epsilon)
def balle_delta(z: FloatArray, gamma: FloatArray, eps: FloatArray) -> FloatArray:
    return exponential_above(z, gamma, eps, log_zeta(z))


def lemma1_epsilon_upper(z: FloatArray, gamma: FloatArray, delta: FloatArray) -> FloatArray:
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


def lemma1_delta_upper(z: FloatArray, gamma: FloatArray, eps: FloatArray) -> FloatArray:
    """The smallest delta for which `lemma1_epsilon_upper` is at most eps."""
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


lemma1_epsilon = elementwise(excess_order, checked_gamma, checked_delta)(lemma1_epsilon_upper)
lemma1_delta = elementwise(excess_order, checked_gamma, checked_epsilon)(lemma1_delta_upper)


# ---- Theorem 4: two closed lower bounds on the optimal gamma
# Statement: gamma(order, eps, delta) >= max(f, g) for 0 < order*delta < 1, with z = order - 1,
#     g = eps - ln(zeta/delta)/z,   zeta = (1/order)(1 - 1/order)^z,
#     f = eps + ln( (e^eps - order delta)((1-delta)/(e^eps-delta))^order + order delta )/z;
#     equality gamma = eps - ln(1-delta) for order*delta >= 1.
# Conditions: order > 1, eps >= 0, 0 <= delta <= 1.
# Validity: bound (lower; the safe side of gamma).
# Source: Asoodeh et al. (arXiv:2008.06529), Theorem 4. (96) there has a typing error.
# Error: rounded downwards by a few ulp of the quantities that enter. f is computed from
#         (e^{z f} - 1)/z = k(y) + order delta (e^{z eps} - 1 + e^-eps y (1 - y^z))/z,
#         y = (1-delta)/(1 - delta e^-eps), an identity whose terms are never negative.
# Vectors: thm3_gamma (f, g) in tests/golden/renyi.json.


def gamma_lower(z: FloatArray, eps: FloatArray, delta: FloatArray) -> FloatArray:
    """max(0, f, g), and the exact value where order*delta >= 1."""
    with np.errstate(divide="ignore"):
        end = eps - np.log1p(-delta)
    inner = np.maximum(np.maximum(theorem4_f(z, eps, delta), theorem4_g(z, eps, delta)), 0.0)
    return np.where((1.0 - delta) - z * delta <= 0.0, rounded_down(end), inner)


theorem4_gamma = elementwise(excess_order, checked_epsilon, checked_delta)(gamma_lower)


def theorem4_g(z: FloatArray, eps: FloatArray, delta: FloatArray) -> FloatArray:
    """The conversion of Balle et al. solved for gamma; it may be negative."""
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)
    return rounded_down(eps + (log_delta - log_zeta(z)) / z, eps, log_delta / z, log_zeta(z) / z)


def theorem4_f(z: FloatArray, eps: FloatArray, delta: FloatArray) -> FloatArray:
    """A chord of the convex map delta -> chi."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        v = -np.log1p(-delta * np.expm1(-eps) / (1.0 - delta))  # ln y
        weight = np.log(delta) + np.log1p(z) - np.log(z)
        first = log_kernel(v, z)
        second = weight + log_growth(z, eps)
        fall = np.where(-z * v < 1e-290, log_growth(z, -v), np.log(-np.expm1(z * v)))
        third = weight + v - eps + fall
        log_chi = np.logaddexp(first, np.logaddexp(second, third))
        size = np.abs(weight) + np.where(np.isfinite(log_chi), np.abs(log_chi), 0.0) + z * eps
        slack = np.where(np.isfinite(size), 8.0 * ULP * (1.0 + size), 0.0)
        value = gamma_of_log_chi(log_chi - slack, z) * (1.0 - 8.0 * ULP)
        return np.where(value < TINY, 0.0, value)  # subnormal numbers keep no relative accuracy
