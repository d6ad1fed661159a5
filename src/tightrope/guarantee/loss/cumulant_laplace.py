"""The cumulants of Laplace noise and of the exponential mechanism.

Error: Gauss-Legendre panels; the entire integrand is bounded on a Bernstein ellipse around each.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_bounded import BoundedCumulant
from tightrope.guarantee.loss.cumulant_points import EqualPanels
from tightrope.guarantee.loss.laplace import BoundedRangePair, LaplacePair
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.quadrature import FloatArray, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["LaplaceCumulant"]


@final
class LaplaceCumulant(BoundedCumulant):
    """L = top (1 - 2x) with density 2 top inner e^{-top x} for x in [0, 1], and atoms."""

    def __init__(self, pair: LaplacePair | BoundedRangePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.top = self.largest = pair.top
        self.log_inner = math.log(pair.inner)
        self.ends = np.array([loss for loss, _ in pair.atoms])
        # ln of their masses, the first of which may be too small for a double
        self.log_ends = np.minimum(self.ends, 0.0) - math.log(2.0)

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        """The atoms, and 2 inner e^{z top} (1 - e^{-(1+2z) top})/(1 + 2z) where nothing cancels."""
        z, top = tilt, self.top
        if (1.0 + 2.0 * z) * top < 2.0:
            return super().real(tilt, nats)
        within = math.log(-2.0 * math.expm1(-(1.0 + 2.0 * z) * top) / (1.0 + 2.0 * z))
        logs = np.append(z * self.ends + self.log_ends, z * top + within + self.log_inner)
        value = float(log_sum_exp(logs))
        return np.array([value]), np.array([UNIT * (32.0 + 8.0 * abs(z * top) + 4.0 * top)])

    def _points(self, panels: int, count: int) -> tuple[FloatArray, FloatArray]:
        x, log_weight = EqualPanels(0.0, 1.0, panels, count).points()
        inner = math.log(2.0 * self.top) + self.log_inner - self.top * x + log_weight
        losses = np.append(self.top * (1.0 - 2.0 * x), self.ends)
        return losses, np.append(inner, self.log_ends)

    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        return self._points(min(400, 2 + int(self.top * abs(1.0 + 2.0 * tilt) / 8.0)), 24)

    def _slope(self, tilt: float, frequency: float) -> float:
        return self.top * (abs(1.0 + 2.0 * tilt) + 2.0 * frequency + 2.0)

    def _log_bound(self, tilt: float) -> float:
        ends = max(self.top * tilt, -self.top * (1.0 + tilt), 0.0)
        return ends + math.log(2.0 * self.top) + self.log_inner

    def _point_error(self, losses: FloatArray) -> FloatArray:
        return np.asarray(8.0 * UNIT * (np.abs(losses) + self.top))

    def decay(self, tilt: float) -> Decay:
        """The density of L under the tilted law is proportional to e^{(tilt + 1/2) L}."""
        edges = np.linspace(-self.top, self.top, 65)
        log_size = self._log_size(tilt)
        g = (tilt + 0.5) * edges - 0.5 * self.top + self.log_inner - log_size - LOG_MASS_SLACK
        heights = np.exp(np.minimum(g[:-1], g[1:]))
        layers = layers_of_steps(edges, heights, int(np.argmax(heights)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))
