"""Laws of one pair as points on equal Gauss-Legendre panels: what pairs with atoms share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.numerics.inversion_decay import Decay, no_decay
from tightrope.numerics.inversion_law import AbstractFamily, TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import FloatArray, expm1_minus, gauss_legendre, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["EqualPanels", "COUNTS", "point_nodes", "log_mass", "point_moments", "DiscreteCumulant"]

COUNTS = (8, 12, 16, 24, 32)  # points of a panel that are tried
_FAR = 40.0  # (1 + x) e^-x is below 2 units from here on


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


def log_mass(
    losses: FloatArray,
    log_masses: FloatArray,
    tilt: float,
    errors: tuple[FloatArray, FloatArray],
    beyond: tuple[float, float] = (0.0, 0.0),
) -> tuple[float, float]:
    """ln M(z) and its rounding, from points of the law; errors: of the exponents and the losses.

    beyond: P(L = inf) = i and Q(L = -inf) = j. With these P and Q have mass 1, so near M = 1
    M - 1 = sum p (h(zl) + z h(-l)) - i + z (j - i), h(x) = e^x - 1 - x >= 0.
    """
    error, point_error = errors
    exponents = tilt * losses + log_masses
    value = float(log_sum_exp(exponents))
    if abs(value) > 0.5:
        return value, float(np.exp(exponents - value) @ error) + 24.0 * UNIT * (1.0 + abs(value))
    first = np.exp(log_masses) * expm1_minus(tilt * losses)
    near = np.maximum(losses, -_FAR)
    second = np.exp(log_masses - losses + near) * expm1_minus(-near)
    infinite, only_under_q = beyond
    total = float(np.sum(first + tilt * second)) - infinite + tilt * (only_under_q - infinite)
    size = float((first + abs(tilt) * second) @ (2.0 * error + 64.0 * UNIT))
    size += 64.0 * UNIT * (infinite + abs(tilt) * (only_under_q + infinite))
    slope = np.exp(log_masses) * np.abs(np.expm1(tilt * losses)) * (1.0 + abs(tilt))
    return math.log1p(total), 1.2 * (size + float(slope @ point_error)) / (1.0 + total)


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


# ---- The cumulant of a discrete loss -------------------------------------------------------------


@final
class DiscreteCumulant(AbstractFamily):
    """Finitely many losses."""

    def __init__(self, pair: DiscretePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        held = np.isfinite(pair.log_masses)
        self.losses, self.log_masses = np.array(pair.losses)[held], pair.log_masses[held]
        self.log_errors = pair.log_errors[held]
        self.point_error = np.full(len(self.losses), pair.loss_error)
        self.beyond = (pair.infinite_mass, pair.only_under_q)

    def values(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(
            self.counts[0] * log_sum_exp(np.multiply.outer(tilts, self.losses) + self.log_masses)
        )

    def moments(self, tilt: float) -> tuple[float, float, float]:
        return point_moments(self.losses, tilt * self.losses + self.log_masses, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        exponents = tilt * self.losses + self.log_masses
        error = UNIT * (2.0 + 2.0 * np.abs(tilt * self.losses)) + self.log_errors
        errors = (error + abs(tilt) * self.point_error, self.point_error)
        mass = log_mass(self.losses, self.log_masses, tilt, errors, self.beyond)
        return point_nodes(self.losses, exponents, mass, errors, 0.0)

    def decay(self, tilt: float) -> Decay:
        return no_decay()  # the transform of a discrete law comes back to 1 again and again
