"""G(w) - 1 of the sampled Gaussian, without cancellation: docs/certificate_argument.md, 3.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.numerics.quadrature import FloatArray, expm1_minus, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["Excess", "log_mass"]

_Parts = tuple[FloatArray, FloatArray]


def log_mass(exponents: FloatArray, error: FloatArray) -> _Parts:
    """ln of the sum of e^exponents, and its rounding where each exponent is off by `error`."""
    value = log_sum_exp(exponents)
    p = np.exp(exponents - value[:, None])
    return value, (p * error).sum(axis=1) + 24.0 * UNIT * (1.0 + np.abs(value))


@final
@dataclass(frozen=True)
class Excess:
    """Weighted terms whose sum is G - 1, and the sum of the |parts| of each, for its rounding."""

    w: FloatArray  # (rows, 1)
    tilt: FloatArray
    removes: bool
    lr: FloatArray
    log_weight: FloatArray

    def _terms(self) -> _Parts:
        """Weighted r^w - 1 - w(r - 1), whose integral is G - 1 because E r = 1."""
        w, z, lr, log_weight = self.w, self.tilt, self.lr, self.log_weight
        weight = np.exp(log_weight)
        safe = np.minimum(lr, 50.0)
        x = np.minimum(z * safe, 200.0)
        if self.removes:  # r^{1+z} - 1 - (1+z)(r-1) = r h(z l) + z (l (r-1) - h(l)), h = e^x-1-x
            first = np.exp(safe) * expm1_minus(x)
            second = safe * np.expm1(safe) - expm1_minus(safe)
        else:  # r^{-z} - 1 + z(r-1) = h(-z l) + z h(l)
            first, second = expm1_minus(-x), expm1_minus(safe)
        near = (lr <= 50.0) & (np.abs(z * safe) <= 200.0)
        terms = np.where(near, weight * (first + z * second), 0.0)
        sizes = np.where(near, weight * (first + 3.0 * np.abs(z) * np.abs(second)), 0.0)
        if bool(near.all()):
            return terms, sizes
        parts = (
            np.exp(np.minimum(log_weight + w * lr, 600.0)),
            np.exp(np.minimum(log_weight + lr, 600.0)),
        )
        far = parts[0] - w * parts[1] - (1.0 - w) * weight
        size = parts[0] + np.abs(w) * parts[1] + np.abs(1.0 - w) * weight
        return np.where(near, terms, far), np.where(near, sizes, size * (2.0 + np.abs(w * lr)))

    def total(
        self, exponents: FloatArray, weight_error: FloatArray, lr_error: FloatArray
    ) -> _Parts:
        """The sum, and the bound on its rounding; weight_error: relative, of the weights.

        h(x) = e^x - 1 - x is right to 16 units and moves by at most 2 + max(x, 0) units with one of
        x; what the rounding of l does is in `slope`.
        """
        terms, sizes = self._terms()
        plain = np.exp(self.log_weight + np.minimum(self.lr, 700.0))
        slope = np.abs(self.w) * np.abs(np.exp(np.minimum(exponents, 700.0)) - plain)
        x = self.tilt * self.lr if self.removes else -self.tilt * self.lr
        own = weight_error + UNIT * (64.0 + 4.0 * np.clip(x, 0.0, 200.0))
        return np.sum(terms, axis=1), np.sum(sizes * own + slope * lr_error, axis=1)

    def near(
        self, value: FloatArray, rounding: FloatArray, total: FloatArray, small: FloatArray
    ) -> _Parts:
        """ln(1 + total) and its error where ln G is near 0, `value` and `rounding` elsewhere."""
        near = np.abs(value) <= 0.5
        total = np.where(near, total, 0.0)
        small = 1.2 * small / (1.0 + total) + 2.0 * UNIT * np.abs(total)
        return np.where(near, np.log1p(total), value), np.where(near, small, rounding)
