"""Laws of one pair as points on equal Gauss-Legendre panels: what pairs with atoms share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.numerics.inversion_nodes import TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import FloatArray, gauss_legendre

__all__ = ["EqualPanels", "COUNTS", "point_nodes", "point_moments"]

COUNTS = (8, 12, 16, 24, 32)  # points of a panel that are tried


@final
@dataclass(frozen=True)
class EqualPanels:
    """Equal panels on [low, high] with `count` Gauss points each."""

    low: float
    high: float
    panels: int
    count: int

    @property
    def half(self) -> float:
        return 0.5 * (self.high - self.low) / self.panels

    @property
    def centres(self) -> FloatArray:
        return self.low + self.half * (2.0 * np.arange(self.panels, dtype=np.float64) + 1.0)

    def points(self) -> tuple[FloatArray, FloatArray]:
        x, w = gauss_legendre(self.count)
        s = (self.centres[:, None] + self.half * x).reshape(-1)
        return s, np.log(np.tile(self.half * w, self.panels))


def point_nodes(
    losses: FloatArray,
    exponents: FloatArray,
    mass: tuple[float, float],
    errors: tuple[FloatArray, FloatArray],
    quadrature: float,
) -> TiltedNodes:
    """One law as a family of one row; errors: of the exponents and of the losses."""
    value, rounding = np.array([mass[0]]), np.array([mass[1]])
    return tilted_nodes(
        losses[None, :],
        exponents[None, :],
        (value, rounding),
        errors[0][None, :],
        errors[1][None, :],
        np.array([quadrature]),
    )


def point_moments(
    points: FloatArray, exponents: FloatArray, counts: FloatArray
) -> tuple[float, float, float]:
    times = float(counts[0])
    top = float(np.max(exponents))
    p = np.exp(exponents - top)
    total = float(np.sum(p))
    mean = float(p @ points) / total
    variance = float(p @ (points - mean) ** 2) / total
    return times * (top + math.log(total)), times * mean, times * variance
