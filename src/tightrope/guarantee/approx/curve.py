"""Trade-off function and profile of one (epsilon, delta) guarantee.

Statement: f(a) = max{0, 1 - delta - e^eps a, e^-eps (1 - delta - a)}, and for every other level x
    >= 0 delta(x) = delta + (1 - delta) (e^eps - e^x)_+ / (1 + e^eps).
Conditions: 0 <= eps <= inf, 0 <= delta <= 1.
Validity: exact ((eps, delta)-DP is equivalent to f-DP; the worst pair has four outcomes).
Source: Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776).
Error: a few roundings (relative 1e-15; relative to 1 where f is computed as 1 - ...).
Vectors: tradeoff_eps_delta in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import (
    FloatArray,
    check_delta,
    check_epsilon,
    check_probability,
    check_real,
)

__all__ = ["tradeoff", "tradeoff_bounds", "tradeoff_interval", "implied_delta"]

_ULPS = 4.0 * ULP
_LARGE, _TINY = 700.0, 5e-324  # e^700 is still a double; the smallest of them


def tradeoff(type_i: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest type II error at `type_i` under (epsilon, delta)-DP."""
    a = np.asarray(check_probability(type_i, "type_i"))
    eps = np.asarray(check_real(epsilon, "epsilon", low=0.0, finite=False))
    left = 1.0 - np.asarray(check_delta(delta))
    with np.errstate(over="ignore"):  # e^eps in two factors: neither is too large for a double
        grown = np.exp(np.clip(eps - _LARGE, 0.0, _LARGE)) * (np.exp(np.minimum(eps, _LARGE)) * a)
    steep = np.where(a < 0.5, left - grown, 0.0)  # from 1/2 on it lies below the flat line
    flat = np.exp(-eps) * (left - a)
    return np.maximum(np.maximum(steep, flat), 0.0)[()]


def tradeoff_bounds(
    type_i: FloatArray, epsilon: float, delta: float
) -> tuple[FloatArray, FloatArray]:
    """(lower, upper) around `tradeoff`; lower is the safe side."""
    value = np.asarray(tradeoff(type_i, epsilon, delta))
    # the steep line is a difference of numbers below 1; the flat one is relative to itself, unless
    # 1 - delta is rounded
    rounded = math.exp(-epsilon) if delta > 0.0 else 0.0
    slack = _ULPS * np.where(type_i < 0.5, 1.0, value + rounded) + _TINY * (value > 0.0)
    return np.maximum(value - slack, 0.0), np.minimum(value + slack, 1.0)


def tradeoff_interval(type_i: float, epsilon: float, delta: float) -> Interval:
    lower, upper = tradeoff_bounds(np.asarray(float(type_i)), float(epsilon), float(delta))
    return Interval(float(lower), float(upper))


def implied_delta(at_epsilon: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest delta at the level `at_epsilon` that (epsilon, delta)-DP implies."""
    x = np.asarray(check_epsilon(at_epsilon, "at_epsilon"))
    eps = np.asarray(check_real(epsilon, "epsilon", low=0.0, finite=False))
    d = np.asarray(check_delta(delta))
    share = -np.expm1(np.minimum(x - eps, 0.0)) / (1.0 + np.exp(-eps))
    return (d + (1.0 - d) * share)[()]
