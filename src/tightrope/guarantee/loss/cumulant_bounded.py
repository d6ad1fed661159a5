"""Cumulants of losses of a bounded range, as points on panels and atoms.

Error: Gauss-Legendre panels, by the bound of the law in question; rounding term by term.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.cumulant_points import COUNTS, log_mass, point_moments, point_nodes
from tightrope.numerics.inversion_law import AbstractFamily, TiltedNodes
from tightrope.numerics.quadrature import FloatArray, log_ellipse_error, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["BoundedCumulant"]

_PANELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class BoundedCumulant(AbstractFamily):
    """One law with a largest loss; P and Q have mass 1 each."""

    largest: float  # |loss|

    @property
    def max_tilt(self) -> float:
        return 2e3 / self.largest

    @abstractmethod
    def _points(self, panels: int, count: int) -> tuple[FloatArray, FloatArray]:
        """Losses and ln masses under P: `panels` panels of `count` points each, and the atoms."""

    @abstractmethod
    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        """The same, good enough to search by."""

    @abstractmethod
    def _slope(self, tilt: float, frequency: float) -> float:
        """A bound on the derivative of the integrand's logarithm, as a function on the panels."""

    @abstractmethod
    def _log_bound(self, tilt: float) -> float:
        """ln of a bound on the integrand at real points."""

    @abstractmethod
    def _point_error(self, losses: FloatArray) -> FloatArray:
        """Bounds on the rounding of the losses."""

    length = 1.0  # of all panels together
    height = math.inf  # from the panels' line to where the bound on the slope ends

    def values(self, tilts: FloatArray) -> FloatArray:
        losses, log_masses = self._rough(float(np.max(np.abs(tilts))))
        exponents = np.multiply.outer(tilts, losses) + log_masses
        return np.asarray(self.counts[0] * log_sum_exp(exponents))

    def _log_size(self, tilt: float) -> float:
        losses, log_masses = self._rough(tilt)
        return float(log_sum_exp(tilt * losses + log_masses))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        losses, log_masses = self._rough(tilt)
        return point_moments(losses, tilt * losses + log_masses, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        panels, count, log_error = self._choose(tilt, frequency, nats)
        losses, log_masses = self._points(panels, count)
        exponents = tilt * losses + log_masses
        point_error = self._point_error(losses)
        error = UNIT * (64.0 + 4.0 * np.abs(log_masses) + 4.0 * np.abs(tilt * losses))
        error += (abs(tilt) + 1.0) * point_error
        value, rounding = log_mass(losses, log_masses, tilt, (error, point_error))
        quadrature = 3.0 * math.exp(log_error - value)
        return point_nodes(losses, exponents, (value, rounding), (error, point_error), quadrature)

    def _choose(self, tilt: float, frequency: float, nats: float) -> tuple[int, int, float]:
        """Panels, points of each, and ln of the error: |f| <= e^(bound + slope * distance)."""
        slope = self._slope(tilt, frequency)
        for panels in _PANELS:
            half = 0.5 / panels
            tallest = self.height / half
            for count in COUNTS:
                radius = max(1.5, 2.0 * count / max(half * slope, 1e-3))
                radius = min(radius, tallest + math.sqrt(1.0 + tallest * tallest))
                reach = 0.5 * half * (radius + 1.0 / radius)
                bound = self._log_bound(tilt) + slope * reach
                # all panels together: their half widths add up to half of the length
                log_error = log_ellipse_error(count, radius, bound, 0.5 * self.length)
                if log_error < -nats:
                    return panels, count, log_error
        raise NotCertified("The cumulant needs too many panels; use the lattice method.")
