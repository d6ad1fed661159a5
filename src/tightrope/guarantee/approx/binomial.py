"""Logarithms of binomial probabilities of randomised response, accurate for a million trials.

Statement: ln P(l) = ln [C(n, l) q^l (1-q)^(n-l)], q = 1/(1 + e^eps), by Stirling's formula with its
    correction and the two deviances, so that no large numbers cancel.
Conditions: 0 < eps <= LARGEST (beyond, P(0) is 1 to every digit), 0 <= l <= n, whole numbers.
Validity: exact.
Source: Loader 2000, "Fast and accurate computation of binomial probabilities".
Error: below 1e-13 (1 + |ln P|/100), measured against 50 digits for n up to 1e6.
Vectors: tests/unit/guarantee/test_approx_optimal.py.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np

from tightrope.validate import FloatArray

__all__ = ["LARGEST", "log_pmf"]

LARGEST = 600.0

_SMALL = np.array(
    [0.0]
    + [
        math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2.0 * math.pi)
        for n in range(1, 16)
    ]
)


def log_pmf(successes: FloatArray, trials: int, eps: float) -> FloatArray:
    """ln P(l) for every l in `successes`; the success probability is 1/(1 + e^eps)."""
    n, x = float(trials), successes
    ends = (x == 0.0) | (x == n)
    inner = np.where(ends, 1.0, x) if trials > 1 else np.ones_like(x)
    rest = np.maximum(n - inner, 1.0)
    mean, mean_low = _mean(trials, eps)
    gap = (inner - mean) - mean_low
    value = _stirling(np.array([n]))[0] - _stirling(inner) - _stirling(rest)
    value = value - _deviance(inner, mean, gap) - _deviance(rest, n - mean, -gap)
    value = value - 0.5 * np.log(2.0 * math.pi * inner * rest / n)
    none = -n * math.log1p(math.exp(-eps))
    return np.where(x == 0.0, none, np.where(x == n, none - n * eps, value))


def _mean(trials: int, eps: float) -> tuple[float, float]:
    """n/(1 + e^eps) as a sum of two doubles: its rounding alone would cost 1e-11 at n = 1e6."""
    with localcontext() as context:
        context.prec = 40
        mean = Decimal(trials) / (1 + Decimal(eps).exp())
        high = float(mean)
        return high, float(mean - Decimal(high))


def _stirling(n: FloatArray) -> FloatArray:
    """ln n! - [(n + 1/2) ln n - n + ln sqrt(2 pi)] for whole n >= 1."""
    table = _SMALL[np.minimum(n, 15.0).astype(np.int64)]
    m = np.maximum(n, 15.0)
    s = 1.0 / (m * m)
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188))))) / m
    return np.where(n <= 15.0, table, series)


def _deviance(x: FloatArray, mean: float, gap: FloatArray) -> FloatArray:
    """x ln(x/mean) + mean - x with gap = x - mean given."""
    v = gap / (2.0 * mean + gap)  # (x - mean)/(x + mean)
    w = v * v
    series = np.zeros_like(v)
    for j in range(23, 0, -1):
        series = (series + 1.0 / (2 * j + 1)) * w
    near = gap * v + 2.0 * x * v * series
    far = x * (np.log(x / mean)) - gap
    return np.where(np.abs(v) < 0.35, near, far)
