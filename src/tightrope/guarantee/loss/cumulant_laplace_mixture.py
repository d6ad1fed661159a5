"""The cumulant of sampled Laplace noise.

M(z) = int A_plus^{1+z} A_minus^{-z} d Lap over the points where L rises, and the two atoms.

Error: Gauss-Legendre panels on either side of 0. With u = (2x - 1)/b, ln A = ln(1 - q + q e^u) has
the derivative 1/(1 + (1-q) e^-u/q) in u, of size at most 1 where |Im u| <= pi/2; so on
|Im x| <= pi b/4 the integrand's logarithm has a slope of at most (1 + 2 max(|1+z|, |z|))/b.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_bounded import BoundedCumulant
from tightrope.guarantee.loss.cumulant_points import EqualPanels
from tightrope.guarantee.loss.laplace_mixture import LaplaceMixturePair
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import UNIT

__all__ = ["LaplaceMixtureCumulant"]

_CELLS = 256  # of the density of L, on either side of 0


@final
class LaplaceMixtureCumulant(BoundedCumulant):
    """K of one LaplaceMixturePair."""

    def __init__(self, pair: LaplaceMixturePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.pair = pair
        low, high = pair.support
        self.largest = max(high, -low)
        self.ends, masses = (np.array(column) for column in zip(*pair.atoms, strict=True))
        self.log_ends = np.log(masses)
        self.sides = [(low, low + 1.0) for low in (-1.0, 0.0) if pair.ends[0] <= low < pair.ends[1]]
        self.length, self.height = float(len(self.sides)), 0.25 * math.pi * pair.scale

    def _log_density(self, x: FloatArray) -> FloatArray:
        """Of P."""
        base = -np.abs(x) / self.pair.scale - math.log(2.0 * self.pair.scale)
        return np.asarray(base + self.pair.log_plus(x))

    def _points(self, panels: int, count: int) -> tuple[FloatArray, FloatArray]:
        losses, logs = [], []
        for low, high in self.sides:
            x, log_weight = EqualPanels(low, high, panels, count).points()
            losses.append(self.pair.loss(x))
            logs.append(self._log_density(x) + log_weight)
        return np.concatenate([*losses, self.ends]), np.concatenate([*logs, self.log_ends])

    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        return self._points(min(400, 2 + int(self._slope(tilt, 0.0) / 8.0)), 24)

    def _slope(self, tilt: float, frequency: float) -> float:
        return (3.0 + 2.0 * (abs(tilt) + frequency)) / self.pair.scale

    def _log_bound(self, tilt: float) -> float:
        """Lap <= 1/(2b), A_plus^{1+c} A_minus^{-c} by the extreme values of both."""
        at = np.array(self.pair.ends)
        plus, minus = self.pair.log_plus(at), self.pair.log_minus(at)
        most = np.max((1.0 + tilt) * plus) + np.max(-tilt * minus)
        return float(most) - math.log(2.0 * self.pair.scale)

    def _point_error(self, losses: FloatArray) -> FloatArray:
        arm = math.exp(float(self.pair.log_arm(np.zeros(1))[0]))  # the smallest A
        once = 16.0 / self.pair.scale + 8.0 * self.pair.rate / arm
        return np.asarray(UNIT * (16.0 * np.abs(losses) + 2.0 * once))

    def decay(self, tilt: float) -> Decay:
        """Layers of the tilted density of L, Lap A_plus e^{cL}/L', from below on cells of x.

        The slope of its logarithm in x is at most (5 + 2 |c|)/b: as 1/b, ln A and ln of the share.
        """
        scale, log_size = self.pair.scale, self._log_size(tilt)
        steepest = (5.0 + 2.0 * abs(tilt)) / scale
        edges, heights = [], []
        for low, high in self.sides:
            x = np.linspace(low, high, _CELLS + 1)
            log = self._log_density(x) - self.pair.log_share(x) + math.log(0.5 * scale)
            log += tilt * self.pair.loss(x) - log_size - LOG_MASS_SLACK
            edges.append(self.pair.loss(x))
            heights.append(np.exp(0.5 * (log[:-1] + log[1:]) - 0.5 * steepest / _CELLS))
        all_edges = np.concatenate([edges[0], *(more[1:] for more in edges[1:])])
        steps = np.concatenate(heights)
        layers = layers_of_steps(all_edges, steps, int(np.argmax(steps)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))
