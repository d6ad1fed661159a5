"""What is asked of a sum X: an expectation g(x) = E payoff(X - x) with a rational transform.

g(x) = side/(2 pi i) int e^{K(z) - z x} h(z) dz on a vertical line, h(z) = prod 1/(z - pole).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.numerics.inversion_nodes import ComplexArray
from tightrope.numerics.quadrature import FloatArray

__all__ = ["Kernel", "EXCESS", "ABOVE", "BELOW", "TILTED_ABOVE", "TILTED_BELOW"]


@final
@dataclass(frozen=True)
class Kernel:
    """Poles, and the side of all of them on which the line runs (+1: right, -1: left).

    payoff(x) for poles (0, -1) right: (1 - e^-x)_+; for one pole p: e^{px} on x > 0 (right) or
    x <= 0 (left). In every case payoff >= 0, so that aliases of g are non-negative.
    """

    poles: tuple[float, ...]
    side: int

    @property
    def edge(self) -> float:
        """The pole nearest to the line."""
        return max(self.poles) if self.side > 0 else min(self.poles)

    def log_size(self, c: float) -> float:
        """ln |h(c)|."""
        return -sum(math.log(abs(c - p)) for p in self.poles)

    def log_sizes(self, c: FloatArray) -> FloatArray:
        return -np.log(np.abs(math.prod((c - p for p in self.poles), start=np.ones_like(c))))

    def slope(self, c: float) -> tuple[float, float]:
        """First and second derivative of ln |h| at c."""
        return -sum(1.0 / (c - p) for p in self.poles), sum(1.0 / (c - p) ** 2 for p in self.poles)

    def ratio(self, c: float, y: FloatArray) -> ComplexArray:
        """h(c + iy)/h(c)."""
        out = np.ones(len(y), dtype=np.complex128)
        for p in self.poles:
            out = out / (1.0 + 1j * (y / (c - p)))
        return out

    def log_peak(self, z: FloatArray) -> FloatArray:
        """ln sup_x payoff(x) e^{-zx}: Chernoff's bound is g(x) <= e^{K(z) - zx} times this."""
        if len(self.poles) == 1:
            return np.zeros_like(z)
        z = np.maximum(z, 1e-300)  # z ln z - (1+z) ln(1+z), theory A5
        return z * np.log(z) - (1.0 + z) * np.log1p(z)


EXCESS = Kernel((0.0, -1.0), 1)  # E (1 - e^{x-X})_+
ABOVE = Kernel((0.0,), 1)  # P(X > x)
BELOW = Kernel((0.0,), -1)  # P(X <= x)
TILTED_ABOVE = Kernel((-1.0,), 1)  # e^x E[e^-X; X > x]
TILTED_BELOW = Kernel((-1.0,), -1)  # e^x E[e^-X; X <= x]
