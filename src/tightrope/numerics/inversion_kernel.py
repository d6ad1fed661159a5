"""What is asked of a sum X: the mean excess g(x) = E (1 - e^{x-X})_+.

g(x) = 1/(2 pi i) int e^{K(z) - z x} h(z) dz on a vertical line right of 0, h(z) = 1/(z (z + 1)).
The payoff is >= 0, so that aliases of g are too.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.numerics.inversion_nodes import ComplexArray
from tightrope.numerics.quadrature import FloatArray

__all__ = ["log_size", "slope", "ratio", "log_peak"]


def log_size(c: float) -> float:
    """ln h(c)."""
    return -math.log(c) - math.log1p(c)


def slope(c: float) -> tuple[float, float]:
    """First and second derivative of ln h at c."""
    return -1.0 / c - 1.0 / (c + 1.0), 1.0 / c**2 + 1.0 / (c + 1.0) ** 2


def ratio(c: float, y: FloatArray) -> ComplexArray:
    """h(c + iy)/h(c)."""
    return np.asarray(1.0 / (1.0 + 1j * (y / c)) / (1.0 + 1j * (y / (c + 1.0))))


def log_peak(z: FloatArray) -> FloatArray:
    """ln sup_x (1 - e^-x)_+ e^{-zx}: Chernoff's bound is g(x) <= e^{K(z) - zx} times this."""
    z = np.maximum(z, 1e-300)
    return np.asarray(z * np.log(z) - (1.0 + z) * np.log1p(z))
