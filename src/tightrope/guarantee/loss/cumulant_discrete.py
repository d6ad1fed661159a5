"""The cumulant of a discrete loss."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_points import point_moments, point_nodes
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.numerics.inversion_decay import Decay, no_decay
from tightrope.numerics.inversion_law import AbstractFamily
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import FloatArray, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["DiscreteCumulant"]


@final
class DiscreteCumulant(AbstractFamily):
    """Finitely many losses. The masses are rounded; with infinite_mass those meant add up to 1."""

    def __init__(self, pair: DiscretePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        masses = np.array(pair.masses)
        held = masses > 0.0
        self.losses, self.masses = np.array(pair.losses)[held], masses[held]
        self.log_masses = np.log(self.masses)
        self.missing = pair.infinite_mass

    def values(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(
            self.counts[0] * log_sum_exp(np.multiply.outer(tilts, self.losses) + self.log_masses)
        )

    def moments(self, tilt: float) -> tuple[float, float, float]:
        return point_moments(self.losses, tilt * self.losses + self.log_masses, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        x = tilt * self.losses
        exponents = x + self.log_masses
        error = UNIT * (8.0 + 2.0 * np.abs(x) + 2.0 * np.abs(self.log_masses))
        value = float(log_sum_exp(exponents))
        if abs(value) <= 0.5:  # M - 1 = sum m (e^x - 1) - missing
            terms = self.masses * np.expm1(x)
            total = math.fsum(terms) - self.missing
            value, size = math.log1p(total), float(np.abs(terms) @ (error + 4.0 * UNIT))
            rounding = 1.1 * size / (1.0 + total) + 2.0 * UNIT * (abs(total) + self.missing)
        else:
            rounding = float(np.exp(exponents - value) @ error) + 24.0 * UNIT * (1.0 + abs(value))
        return point_nodes(self.losses, exponents, (value, rounding), (error, 0.0 * x), 0.0)

    def decay(self, tilt: float) -> Decay:
        return no_decay()  # the transform of a discrete law comes back to 1 again and again
