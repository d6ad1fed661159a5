"""Trade-off function of the Gaussian pair.

Statement: G_mu(type_i) = Phi(Phi^-1(1 - type_i) - mu), the smallest type II error between N(0,1)
    and N(mu,1). G_mu is its own inverse.
Conditions: 0 <= type_i <= 1, 0 <= mu <= inf.
Validity: exact.
Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Definition 2.6 and (6).
Error: relative error below 3e-13 measured for mu <= 1e3 and values down to 1e-300 (rounding of
    Phi^-1, amplified in the tails). The bounds move type_i and the result by
    CURVE_MARGIN each, in all ten times that.
Vectors: tradeoff_gaussian in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from tightrope.validate import FloatArray

__all__ = ["CURVE_MARGIN", "tradeoff_of", "tradeoff_bounds_of"]

CURVE_MARGIN = 1.5e-12


def tradeoff_of(type_i: FloatArray, mu: FloatArray) -> FloatArray:
    """G_mu; 0 at type_i = 1, and 1 at type_i = 0 unless mu is infinite."""
    value = ndtr(-ndtri(type_i) - np.minimum(mu, 1e300))
    value = np.where(type_i >= 1.0, 0.0, np.where(type_i <= 0.0, 1.0, value))
    return np.where(mu == np.inf, 0.0, np.where(mu == 0.0, 1.0 - type_i, value))


def tradeoff_bounds_of(type_i: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(lower, upper) around G_mu."""
    # near 1 the margin is relative to 1 - type_i, which is exact there
    room = CURVE_MARGIN * np.minimum(type_i, 1.0 - type_i)
    left, right = np.nextafter(type_i - room, 0.0), np.nextafter(type_i + room, 1.0)
    lower = tradeoff_of(right, mu) * (1.0 - CURVE_MARGIN)
    upper = tradeoff_of(left, mu) * (1.0 + CURVE_MARGIN)
    upper = np.maximum(upper, np.finfo(np.float64).tiny)  # ndtr gives 0 for subnormal numbers
    ends = (type_i <= 0.0) | (type_i >= 1.0) | (mu == np.inf)
    exact = tradeoff_of(type_i, mu)
    upper = np.minimum(upper, np.nextafter(1.0 - type_i, 1.0))
    return np.where(ends, exact, np.minimum(lower, upper)), np.where(ends, exact, upper)
