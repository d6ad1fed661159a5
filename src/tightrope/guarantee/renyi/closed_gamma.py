"""Theorem 4: two closed lower bounds on the optimal gamma.

Statement: gamma(order, eps, delta) >= max(f, g) for 0 < order*delta < 1, with z = order - 1,
    g = eps - ln(zeta/delta)/z,   zeta = (1/order)(1 - 1/order)^z,
    f = eps + ln( (e^eps - order delta)((1-delta)/(e^eps-delta))^order + order delta )/z;
    equality gamma = eps - ln(1-delta) for order*delta >= 1.
Conditions: order > 1, eps >= 0, 0 <= delta <= 1.
Validity: bound (lower; the safe side of gamma).
Source: Asoodeh et al. (arXiv:2008.06529), Theorem 4. (96) there has a typing error.
Error: rounded downwards by a few ulp of the quantities that enter. f is computed from
        (e^{z f} - 1)/z = k(y) + order delta (e^{z eps} - 1 + e^-eps y (1 - y^z))/z,
        y = (1-delta)/(1 - delta e^-eps), an identity whose terms are never negative.
Vectors: thm3_gamma (f, g) in tests/golden/renyi.json.
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
    checked_order,
    flat,
    rounded_down,
    shaped,
)
from tightrope.guarantee.renyi.balle import log_zeta
from tightrope.guarantee.renyi.kernel import log_growth, log_kernel
from tightrope.guarantee.renyi.randomized_response import gamma_of_log_chi
from tightrope.validate import FloatArray

__all__ = ["f", "g", "gamma", "gamma_lower"]


def f(order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The bound f, a chord of the convex map delta -> chi."""
    (z, eps, d), shape = _read(order, epsilon, delta)
    return shaped(_f(z, eps, d), shape)


def g(order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The bound g; it is Balle et al. solved for gamma, and may be negative."""
    (z, eps, d), shape = _read(order, epsilon, delta)
    return shaped(_g(z, eps, d), shape)


def gamma(order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """A closed lower bound on the optimal gamma, never negative."""
    (z, eps, d), shape = _read(order, epsilon, delta)
    return shaped(gamma_lower(z, eps, d), shape)


def gamma_lower(z: FloatArray, eps: FloatArray, delta: FloatArray) -> FloatArray:
    """max(0, f, g), and the exact value where order*delta >= 1."""
    with np.errstate(divide="ignore"):
        end = eps - np.log1p(-delta)
    inner = np.maximum(np.maximum(_f(z, eps, delta), _g(z, eps, delta)), 0.0)
    return np.where((1.0 - delta) - z * delta <= 0.0, rounded_down(end), inner)


def _read(
    order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike
) -> tuple[list[FloatArray], tuple[int, ...]]:
    (a, eps, d), shape = flat(checked_order(order), checked_epsilon(epsilon), checked_delta(delta))
    return [a - 1.0, eps, d], shape


def _g(z: FloatArray, eps: FloatArray, delta: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)
    return rounded_down(eps + (log_delta - log_zeta(z)) / z, eps, log_delta / z, log_zeta(z) / z)


def _f(z: FloatArray, eps: FloatArray, delta: FloatArray) -> FloatArray:
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
