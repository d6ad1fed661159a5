"""The cumulant of a discrete loss."""

from __future__ import annotations

from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_points import log_mass, point_moments, point_nodes
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.numerics.inversion_decay import Decay, no_decay
from tightrope.numerics.inversion_law import AbstractFamily, TiltedNodes
from tightrope.numerics.quadrature import FloatArray, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["DiscreteCumulant"]


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
