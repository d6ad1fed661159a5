"""The cumulant of the Poisson-sampled Gaussian, both directions (theory A57, Part D)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_strip import AbstractSampled
from tightrope.guarantee.loss.gaussian import log_ratio
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import UNIT, FloatArray, log_sum_exp

__all__ = ["SampledCumulant"]

_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


@final
class SampledCumulant(AbstractSampled):
    """K of a SampledGaussianPair with rate < 1."""

    def values(self, tilts: FloatArray) -> FloatArray:
        powers = 1.0 + tilts if self.removes else -tilts
        extreme = float(powers[np.argmax(np.abs(powers))])
        lr, lw, _ = self.grid(extreme)
        return log_sum_exp(np.multiply.outer(powers, lr) + lw)

    def moments(self, tilt: float) -> tuple[float, float, float]:
        w = self.power(tilt)
        lr, lw, _ = self.grid(w)
        exponent = w * lr + lw
        top = float(np.max(exponent))
        p = np.exp(exponent - top)
        total = float(np.sum(p))
        mean = float(p @ lr) / total
        return top + math.log(total), self.sign * mean, float(p @ (lr - mean) ** 2) / total

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        w = self.power(tilt)
        if w * self.mu > 2e4 and w * self.mu**2 > 200.0:
            return self._far(w)
        return super().real(tilt, nats)

    def _far(self, w: float) -> tuple[float, float]:
        """ln G(w) = w ln q + w(w-1) mu^2/2 + ln E_{N(w mu,1)} (1 + (1-q)/q e^-u)^w, u = mu s - ...

        The last term is >= 0. From s = w mu/4 on it is at most w (1-q)/q e^{-w mu^2/4 + mu^2}; what
        lies left of that is below e^{-w^2 mu^2/4}.
        """
        main = w * math.log(self.rate), 0.5 * w * (w - 1.0) * self.mu**2
        log_kappa = math.log(w / self.rate) - 0.25 * w * self.mu**2 + self.mu**2
        if log_kappa > -40.0:
            raise OverflowError(f"order {w:.1e} at rate {self.rate:.1e}")
        return sum(main), 1e-15 + 16.0 * UNIT * (main[1] - main[0])

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        points, log_error = self.points(tilt, frequency, nats)
        return points.collect(frequency, log_error)

    def decay(self, tilt: float) -> Decay:
        """Layers of the density of L under the tilted law, which is w(s)/|L'(s)|, L' = mu t."""
        w = self.power(tilt)
        low, high = self.reach(w, 12.0)
        low -= self.mu  # the density of L leans left of that of s
        cell = min(0.1, 0.5 / (self.mu * math.sqrt(max(w + 1.0, 1.0))))
        edges = np.linspace(low, high, min(4000, math.ceil((high - low) / cell)) + 1)
        width = (high - low) / (len(edges) - 1)
        lr = log_ratio(edges, self.rate, self.mu)
        u = self.mu * edges - 0.5 * self.mu**2
        log_size = self.log_size(tilt)
        scale = log_size + LOG_MASS_SLACK + math.log(self.rate * self.mu) + _LOG_ROOT_2PI
        g = -0.5 * edges * edges + (w + 1.0) * lr - u - scale
        # at most two maxima (a line meets a sigmoid three times): variation <= 4 sup
        above = 0.125 * width * width * (1.0 + max(0.0, -(w + 1.0)) * 0.25 * self.mu**2)
        variation = 4.0 * math.exp(min(float(np.max(g)) + above, 700.0))
        bend = 0.125 * width * width * max(0.0, 0.25 * (w + 1.0) * self.mu**2 - 1.0)
        heights = np.exp(np.minimum(g[:-1], g[1:]) - bend)
        layers = layers_of_steps(lr, heights, int(np.argmax(heights)))
        further = self._shifted(w, log_size)
        return Decay(layers.lengths, layers.masses, variation, further, log_size)

    def _shifted(self, w: float, log_size: float) -> Callable[[float], float]:
        """|M(c+iy)|/M <= int |phi r^w| / M on the line where the factor e^{iyL} decays."""
        reach = self.reach(w, 40.0 + max(0.0, -log_size))

        def further(y: float) -> float:
            _, logs = self.strip(w, -y, reach)
            return math.exp(min(float(np.min(logs)) - log_size + LOG_MASS_SLACK, 0.0))

        return further
