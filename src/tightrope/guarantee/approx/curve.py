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

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_delta, check_epsilon, check_probability, check_real

__all__ = ["tradeoff", "tradeoff_interval", "implied_delta"]

_ULPS = 4.0 * ULP


def tradeoff(type_i: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest type II error at `type_i` under (epsilon, delta)-DP."""
    a = np.asarray(check_probability(type_i, "type_i"))
    eps = np.asarray(check_real(epsilon, "epsilon", low=0.0, finite=False))
    left = 1.0 - np.asarray(check_delta(delta))
    steep = left - np.where(a > 0.0, np.exp(np.minimum(eps, 709.0)) * a, 0.0)
    flat = np.exp(-eps) * (left - a)
    return np.maximum(np.maximum(steep, flat), 0.0)[()]


def tradeoff_interval(type_i: float, epsilon: float, delta: float) -> Interval:
    value = float(tradeoff(float(type_i), float(epsilon), float(delta)))
    # the steep line is a difference of numbers below 1; the flat one is relative to itself
    slack = _ULPS * (1.0 if type_i < 0.5 else value)
    return Interval(max(value - slack, 0.0), min(value + slack, 1.0))


def implied_delta(at_epsilon: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest delta at the level `at_epsilon` that (epsilon, delta)-DP implies."""
    x = np.asarray(check_epsilon(at_epsilon, "at_epsilon"))
    eps = np.asarray(check_real(epsilon, "epsilon", low=0.0, finite=False))
    d = np.asarray(check_delta(delta))
    share = -np.expm1(np.minimum(x - eps, 0.0)) / (1.0 + np.exp(-eps))
    return (d + (1.0 - d) * share)[()]
