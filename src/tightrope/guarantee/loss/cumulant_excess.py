"""G(w) - 1 of the sampled Gaussian as a sum without cancellation (theory D(i).2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_window import Window
from tightrope.numerics.quadrature import FloatArray, expm1_minus

__all__ = ["Excess"]

_Parts = tuple[FloatArray, FloatArray]


@final
@dataclass(frozen=True)
class Excess:
    """Weighted terms whose sum is G - 1, and the sum of the |parts| of each, for its rounding."""

    w: FloatArray  # (rows, 1)
    tilt: FloatArray
    removes: bool
    lr: FloatArray
    log_weight: FloatArray

    def within(self, window: Window | None, s: FloatArray, log_share: FloatArray | None) -> _Parts:
        """G_window - 1 = E[share (r^w - 1 - w(r-1)) - dropped (1 + w(r-1))]."""
        if window is None:
            return self._terms(self.log_weight)
        assert log_share is not None
        terms, sizes = self._terms(self.log_weight + log_share)
        dropped = window.dropped(s)
        # 1 + w(r-1) = (1 - w) + w r
        base = np.exp(self.log_weight) * (1.0 - self.w) * dropped
        hit = self.w * np.exp(self.log_weight + np.minimum(self.lr, 700.0)) * dropped
        return terms - base - hit, sizes + 4.0 * (np.abs(base) + np.abs(hit))

    def _terms(self, log_weight: FloatArray) -> _Parts:
        """Weighted r^w - 1 - w(r - 1), whose integral is G - 1 because E r = 1."""
        w, z, lr = self.w, self.tilt, self.lr
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
