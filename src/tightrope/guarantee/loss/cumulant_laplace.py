"""The cumulant of a Laplace pair: a bounded range and an atom at each of its ends.

Error: Gauss-Legendre panels; the entire integrand is bounded on a Bernstein ellipse around each.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.cumulant_points import (
    COUNTS,
    EqualPanels,
    point_moments,
    point_nodes,
)
from tightrope.guarantee.loss.discrete import LaplacePair
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.inversion_law import AbstractFamily
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import FloatArray, expm1_minus, log_ellipse_error, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["LaplaceCumulant"]


@final
class LaplaceCumulant(AbstractFamily):
    """L = top (1 - 2x) with density (top/2) e^{-top x} for x in [0, 1], and an atom at each end."""

    def __init__(self, pair: LaplacePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.top = 1.0 / pair.scale

    @property
    def max_tilt(self) -> float:
        return 2e3 / self.top

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        """M(z) = (e^{z top} + e^{-(1+z) top})/2 + int; in closed form where nothing cancels."""
        z, top = tilt, self.top
        if (1.0 + 2.0 * z) * top < 2.0:
            return super().real(tilt, nats)
        inner = math.log(-math.expm1(-(1.0 + 2.0 * z) * top) / (1.0 + 2.0 * z))
        logs = np.array([z * top, -(1.0 + z) * top, z * top + inner])
        value = float(log_sum_exp(logs)) - math.log(2.0)
        return np.array([value]), np.array([UNIT * (32.0 + 8.0 * abs(z * top))])

    def _points(self, panels: EqualPanels) -> tuple[FloatArray, FloatArray]:
        """Losses and ln masses under P: the panels, then the two atoms."""
        x, log_weight = panels.points()
        inner = math.log(0.5 * self.top) - self.top * x + log_weight
        ends = np.array([-math.log(2.0) - self.top, -math.log(2.0)])
        losses = np.append(self.top * (1.0 - 2.0 * x), [-self.top, self.top])
        return losses, np.append(inner, ends)

    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        slope = self.top * abs(1.0 + 2.0 * tilt)
        return self._points(EqualPanels(0.0, 1.0, min(400, 2 + int(slope / 8.0)), 24))

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
        panels, log_error = self._choose(tilt, frequency, nats)
        losses, log_masses = self._points(panels)
        exponents = tilt * losses + log_masses
        point_error = 8.0 * UNIT * (np.abs(losses) + self.top)
        error = UNIT * (64.0 + 4.0 * np.abs(log_masses) + 4.0 * np.abs(tilt * losses))
        error += (abs(tilt) + 1.0) * point_error
        value = float(log_sum_exp(exponents))
        if abs(value) <= 0.5:
            # P and Q have mass 1: M - 1 = sum p h(zl) + z q (l (e^l - 1) - h(l)), h = e^x-1-x
            first = np.exp(log_masses) * expm1_minus(tilt * losses)
            bracket = losses * np.expm1(losses) - expm1_minus(losses)
            second = np.exp(log_masses - losses) * bracket
            total = float(np.sum(first + tilt * second))
            size = float((first + 3.0 * abs(tilt) * second) @ (2.0 * error + 64.0 * UNIT))
            slope = np.exp(log_masses) * np.abs(np.expm1(tilt * losses)) * (1.0 + abs(tilt))
            value = math.log1p(total)
            rounding = 1.2 * (size + float(slope @ point_error)) / (1.0 + total)
        else:
            rounding = float(np.exp(exponents - value) @ error) + 24.0 * UNIT * (1.0 + abs(value))
        quadrature = 3.0 * math.exp(log_error - value)
        return point_nodes(losses, exponents, (value, rounding), (error, point_error), quadrature)

    def _choose(self, tilt: float, frequency: float, nats: float) -> tuple[EqualPanels, float]:
        """Panels for an entire integrand whose exponent has slope at most `slope` in x."""
        slope = self.top * (abs(1.0 + 2.0 * tilt) + 2.0 * frequency + 2.0)
        ends = max(self.top * tilt, -self.top * (1.0 + tilt), 0.0)
        for panels in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048):
            half = 0.5 / panels
            for count in COUNTS:
                radius = max(1.5, 2.0 * count / max(half * slope, 1e-3))
                bound = (
                    ends + math.log(0.5 * self.top) + 0.5 * slope * half * (radius + 1.0 / radius)
                )
                # all panels together: their half widths add up to 1/2
                log_error = log_ellipse_error(count, radius, bound, 0.5)
                if log_error < -nats:
                    return EqualPanels(0.0, 1.0, panels, count), log_error
        raise NotCertified("The Laplace cumulant needs too many panels; use the lattice method.")

    def decay(self, tilt: float) -> Decay:
        """The density of L under the tilted law is proportional to e^{(tilt + 1/2) L}."""
        edges = np.linspace(-self.top, self.top, 65)
        log_size = self._log_size(tilt)
        g = (tilt + 0.5) * edges - 0.5 * self.top + math.log(0.25) - log_size - LOG_MASS_SLACK
        heights = np.exp(np.minimum(g[:-1], g[1:]))
        layers = layers_of_steps(edges, heights, int(np.argmax(heights)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))
