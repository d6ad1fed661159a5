"""Gaussian noise without sampling: unit-variance normals, mu apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from tightrope.errors import DoesNotApply
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss.abstract import (
    POINTS_BEYOND,
    LogMasses,
    Side,
    as_losses,
)
from tightrope.guarantee.loss.pairs.normals import (
    AbstractNormalPair,
    check_mu,
    log_normal_moment,
    normal_edges,
    normal_error,
    normal_measure,
    rough_grid,
    variation_of_normals,
)
from tightrope.guarantee.loss.pairs.sampling import point_of_log_ratio
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import AbstractFamily
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray


@final
@dataclass(frozen=True)
class GaussianPair(AbstractNormalPair):
    """P = N(mu, 1), Q = N(0, 1): L = mu s - mu^2/2."""

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check_mu(self.mu))

    @property
    def total_variation(self) -> float:
        return variation_of_normals(self.mu)

    @property
    def log_mean_square(self) -> float:
        return self.mu * self.mu

    def reversed(self) -> GaussianPair:
        return self  # mirror s -> mu - s

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        s = point_of_log_ratio(loss, 1.0, self.mu)
        return log_ndtr(self.mu - s), log_ndtr(-s)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        s = point_of_log_ratio(loss, 1.0, self.mu)
        return log_ndtr(s - self.mu), log_ndtr(s)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = as_losses(loss)
        s = x / self.mu + 0.5 * self.mu
        return normal_error(np.abs(s) + self.mu, 2.0 * ULP * (np.abs(s) + self.mu))

    def log_delta_single(self, epsilon: float) -> Interval:
        return log_gaussian_delta(epsilon, self.mu)

    @property
    def family(self) -> object:
        return GaussianPair

    @property
    def plain_mu(self) -> float:
        return self.mu

    def cumulant(self, count: int = 1) -> AbstractFamily:
        raise DoesNotApply(
            "A GaussianPair has no law of points: its cumulant is mu^2 z (z + 1)/2. Use the "
            "lattice method instead."
        )

    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        loss, base = rough_grid(self.mu, 1.0, -POINTS_BEYOND)
        return loss, base + loss

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        return normal_measure(self.mu, side, step, rate)

    def cell_edges(self, order: float, cells: int) -> FloatArray:
        return normal_edges(self.mu, order, cells)[1]

    def log_last_cell(self, order: float) -> float:
        return log_normal_moment(self.mu, order)
