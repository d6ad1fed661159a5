"""The curve of the best possible attack at many points, never below the truth between them.

The hit rate of the best attack is a concave, increasing function T of its false alarm rate. Between
two knots it lies below the lines through its neighbours on either side, and below the value at
the right end; with proved ends L <= T <= U of each value:
    T(x) <= U_i + (U_i - L_{i-1}) / (a_i - a_{i-1}) (x - a_i)                        a_i <= x
    T(x) <= U_{i+1} - max(0, L_{i+2} - U_{i+1}) / (a_{i+2} - a_{i+1}) (a_{i+1} - x)  x <= a_{i+1}
"""

from __future__ import annotations

import numpy as np

from tightrope.guarantee.base import Guarantee
from tightrope.validate import FloatArray

__all__ = ["POINTS", "STYLE", "best_attack"]

POINTS = 200
STYLE = "steps-pre"  # drawn between two points is the value at the right one, the larger


def best_attack(guarantee: Guarantee, least: float) -> tuple[FloatArray, FloatArray]:
    """False alarm rates from `least` to 1, and hit rates that no attack exceeds; see STYLE."""
    knots = _spread(least, 17, 16)
    values = [guarantee.true_positive_rate(float(a)) for a in knots]
    lower, upper = np.array([v.lower for v in values]), np.array([v.upper for v in values])
    rates = _spread(least, POINTS * 2 // 5, POINTS * 3 // 5)
    return rates, np.minimum(_above(rates, knots, lower, upper), 1.0)


def _spread(least: float, low: int, high: int) -> FloatArray:
    """Even steps for the eye, on the left of a log axis and on its right."""
    return np.concatenate([np.geomspace(least, 0.1, low), np.linspace(0.1, 1.0, high + 1)[1:]])


def _above(x: FloatArray, knots: FloatArray, lower: FloatArray, upper: FloatArray) -> FloatArray:
    right = np.clip(np.searchsorted(knots, x), 1, len(knots) - 1)
    left = right - 1
    before, after = np.maximum(left - 1, 0), np.minimum(right + 1, len(knots) - 1)
    near = np.where(left > before, knots[left] - knots[before], 1.0)
    far = np.where(after > right, knots[after] - knots[right], 1.0)
    rise, fall = upper[left] - lower[before], np.maximum(lower[after] - upper[right], 0.0)
    from_left = np.where(left > before, upper[left] + rise / near * (x - knots[left]), np.inf)
    from_right = upper[right] - np.where(after > right, fall / far * (knots[right] - x), 0.0)
    return np.where(x <= knots[0], upper[0], np.minimum(from_left, from_right))
