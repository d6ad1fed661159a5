"""The exact trade-off curve between two drawn ones, from certified values of delta(epsilon).

Statement: every value of the profile is a tangent, f(a) >= 1 - delta(eps) - e^eps a, so the largest
    of the tangents is a lower curve. With x = e^eps the profile is convex, so tangent i touches f
    between its crossings with its neighbours, and above that piece f lies below the chord from the
    far crossing of tangent i - 1 to the far crossing of tangent i + 1.
Error: second order in the spacing of the slopes; tests compare it with `Guarantee.tradeoff`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray

__all__ = ["Band", "slopes_up_to", "symmetric_band", "one_way_band"]

_SLACK = 1e-9  # far above the widths of the certified deltas, far below what can be seen


@final
@dataclass(frozen=True)
class Band:
    """Tangents 1 - delta_i - slope_i a, by falling slope, as (lower, upper) of their heights."""

    slopes: FloatArray
    heights: FloatArray

    def lower(self, type_i: FloatArray) -> FloatArray:
        """The safe side: no attack has a smaller type II error."""
        lines = self.heights[:, None] - _SLACK - self.slopes[:, None] * type_i
        return np.asarray(np.maximum(np.max(lines, axis=0), 0.0))

    def upper(self, type_i: FloatArray) -> FloatArray:
        x, y = self._corners()
        piece = np.clip(np.searchsorted(x, type_i, side="right") - 1, 0, x.size - 2)
        left, right = np.maximum(piece - 1, 0), np.minimum(piece + 2, x.size - 1)
        share = (type_i - x[left]) / np.maximum(x[right] - x[left], 1e-300)
        return np.minimum(y[left] + share * (y[right] - y[left]) + _SLACK, 1.0 - type_i)

    def _corners(self) -> tuple[FloatArray, FloatArray]:
        """Where neighbouring tangents cross, with the ends (0, 1) and (1, 0) of every curve."""
        x = -np.diff(self.heights) / -np.diff(self.slopes)
        x = np.clip(np.maximum.accumulate(x), 0.0, 1.0)
        y = self.heights[:-1] - self.slopes[:-1] * x
        inside = (y >= 0.0) & (y <= 1.0)
        return np.r_[0.0, x[inside], 1.0], np.r_[1.0, y[inside], 0.0]


def slopes_up_to(epsilon: float, points: int) -> FloatArray:
    """Exponents of the slopes, dense near 0 where most of the curve lies."""
    return epsilon * np.linspace(0.0, 1.0, points) ** 2


def symmetric_band(epsilons: FloatArray, deltas: list[Interval]) -> Band:
    """The curve of a guarantee that holds for both orders of the neighbours."""
    return one_way_band(epsilons, deltas, deltas)


def one_way_band(epsilons: FloatArray, forward: list[Interval], backward: list[Interval]) -> Band:
    """T(P, Q) from E_{e^eps}(Q||P) (forward) and E_{e^eps}(P||Q), epsilons >= 0 and rising."""
    x = np.exp(epsilons)
    steep = 1.0 - np.array([d.upper for d in forward])
    flat = (1.0 - np.array([d.upper for d in backward])) / x
    keep = epsilons > 0.0  # slope -1 belongs to both
    return Band(np.r_[x[::-1], 1.0 / x[keep]], np.r_[steep[::-1], flat[keep]])
