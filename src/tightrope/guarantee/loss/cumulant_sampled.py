"""The cumulants of Poisson-sampled Gaussians, both directions (theory A57, Part D)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_grid import make_grid
from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, Cut, SampledStrip
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.inversion_law import AbstractFamily
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import UNIT, FloatArray, log_sum_exp

__all__ = ["SampledCumulant"]

_MAX_SHIFT = 5e3  # of the tilted normal, in standard deviations
_FEW_STEPS = 200  # up to here the shifted line is tried beside the layers
_BLOCK = 1 << 18


@final
class SampledCumulant(AbstractFamily):
    """K of SampledGaussianPairs of one direction, rates below 1."""

    def __init__(
        self,
        pairs: Sequence[SampledGaussianPair],
        counts: Sequence[int],
        cut: Cut | None = None,
    ) -> None:
        self.counts = np.array(counts, dtype=np.float64)
        rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
        self.strip = SampledStrip(rate, mu, cut)
        self.removes = pairs[0].direction == "remove"
        self._grid = lru_cache(maxsize=2)(self._make_search_grid)
        self._widest_mu = float(np.max(mu))

    def power(self, tilt: float) -> float:
        """The w with M(tilt) = G(w)."""
        return 1.0 + tilt if self.removes else -tilt

    @property
    def max_tilt(self) -> float:
        if not self.removes:
            return 1e9
        # a cut holds the tilted normal back by this factor (see SampledStrip.reach)
        return min(1e9, _MAX_SHIFT * (1.0 + self.strip.bend) / self._widest_mu)

    # ------------------------------------------------------------------ quick values for searching
    def _make_search_grid(self, top: float) -> tuple[FloatArray, FloatArray]:
        """ln r and ln weight on grids wide enough for every power between 0 and `top`."""
        low, high = self.strip.reach(top, 32.0)
        # r^w with w < 0 grows on the way to the branch points
        depth = np.minimum((0.75 if top > 0 else 0.3) * math.pi / self.strip.mu[:, 0], 8.0)
        depth = depth if self.strip.cut is None else np.minimum(depth, 7.0 / self.strip.sharpness)
        bend = 0.5 * (1.0 + self.strip.bend)
        step = 2.0 * math.pi * depth / (30.0 + bend * depth * depth)
        points = int(np.max((high - low) / step)) + 2
        s = low[:, None] + step[:, None] * np.arange(points)
        log_weight = np.log(step)[:, None] - LOG_ROOT_2PI - 0.5 * s * s
        return self.strip.log_ratio(s), log_weight + self.strip.log_kept(s)

    def _search_grid(self, power: float) -> tuple[FloatArray, FloatArray]:
        size = 2.0 ** math.ceil(math.log2(max(abs(power), 1.0)))
        return self._grid(math.copysign(size, power))

    def values(self, tilts: FloatArray) -> FloatArray:
        powers = 1.0 + tilts if self.removes else -tilts
        lr, lw = self._search_grid(float(powers[np.argmax(np.abs(powers))]))
        block = max(1, _BLOCK // lr.size)
        out = np.empty(len(tilts))
        for first in range(0, len(tilts), block):
            w = powers[first : first + block, None, None]
            out[first : first + block] = log_sum_exp(w * lr + lw) @ self.counts
        return out

    def moments(self, tilt: float) -> tuple[float, float, float]:
        w = self.power(tilt)
        lr, lw = self._search_grid(w)
        exponent = w * lr + lw
        value = log_sum_exp(exponent)
        p = np.exp(exponent - value[:, None])
        mean = np.sum(p * lr, axis=1)
        variance = np.sum(p * (lr - mean[:, None]) ** 2, axis=1)
        sign = 1.0 if self.removes else -1.0
        return (
            float(self.counts @ value),
            sign * float(self.counts @ mean),
            float(self.counts @ variance),
        )

    def _log_size(self, tilt: float) -> FloatArray:
        """Estimates of ln G."""
        w = self.power(tilt)
        lr, lw = self._search_grid(w)
        return log_sum_exp(w * lr + lw)

    # ----------------------------------------------------------------------------- proved values
    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        log_size = self._log_size(tilt)
        return make_grid(self.strip, self.removes, tilt, frequency, nats, log_size).nodes()

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        w, mu = self.power(tilt), self.strip.mu[:, 0]
        if (
            w > 0.0
            and self.strip.cut is None
            and bool(np.all((w * mu > 2e4) & (w * mu**2 > 200.0)))
        ):
            return self._far(w)
        log_size = self._log_size(tilt)
        return make_grid(self.strip, self.removes, tilt, 0.0, nats, log_size).mass()

    def _far(self, w: float) -> tuple[FloatArray, FloatArray]:
        """ln G(w) = w ln q + w(w-1) mu^2/2 + ln E_{N(w mu,1)} (1 + (1-q)/q e^-u)^w, u = mu s - ...

        The last term is >= 0. From s = w mu/4 on it is at most w (1-q)/q e^{-w mu^2/4 + mu^2}; what
        lies left of that is below e^{-w^2 mu^2/4}.
        """
        mu, log_rate = self.strip.mu[:, 0], self.strip.log_rate[:, 0]
        log_kappa = math.log(w) - log_rate - 0.25 * w * mu**2 + mu**2
        if float(np.max(log_kappa)) > -40.0:
            raise OverflowError(f"order {w:.1e}")
        main = 0.5 * w * (w - 1.0) * mu**2
        return w * log_rate + main, 1e-15 + 16.0 * UNIT * (main - w * log_rate)

    def decay(self, tilt: float) -> Decay:
        """Layers of the density of L under the tilted law, which is w(s)/|L'(s)|, L' = mu t."""
        w, of, mu = self.power(tilt), self.strip, self.strip.mu
        low, high = (end[:, None] for end in of.reach(w, 12.0))
        low = low - mu  # the density of L leans left of that of s
        cell = np.minimum(0.1, 0.5 / (mu * math.sqrt(max(w + 1.0, 1.0))))
        cells = min(4000, math.ceil(float(np.max((high - low) / cell))))
        width = (high - low) / cells
        edges = low + width * np.arange(cells + 1)
        lr, log_size = of.log_ratio(edges), self._log_size(tilt)
        scale = log_size[:, None] + LOG_MASS_SLACK + of.log_rate + np.log(mu) + LOG_ROOT_2PI
        g = -0.5 * edges * edges + (w + 1.0) * lr - (mu * edges - of.half) - scale
        g = g + of.log_kept(edges)  # concave: least at an end of a cell
        square = 0.125 * width * width
        bend = square * np.maximum(0.0, 0.25 * (w + 1.0) * mu**2 - 1.0)
        heights = np.exp(np.minimum(np.minimum(g[:, :-1], g[:, 1:]) - bend, 700.0))
        # at most two maxima (a line meets a sigmoid three times): variation <= 4 sup
        above = (square * (1.0 + max(0.0, -(w + 1.0)) * 0.25 * mu**2))[:, 0]
        variation = 4.0 * np.exp(np.minimum(np.max(g, axis=1) + above, 700.0))
        if of.cut is not None:
            variation = np.full(len(variation), math.inf)
        peaks = np.argmax(heights, axis=1)
        layers = [layers_of_steps(*row) for row in zip(lr, heights, peaks.tolist(), strict=True)]
        few = float(np.sum(self.counts)) <= _FEW_STEPS
        return Decay.of(layers, variation, log_size, self._shifted(w, log_size) if few else None)

    def _shifted(self, w: float, log_size: FloatArray) -> Callable[[float], FloatArray]:
        """|M(c+iy)|/M <= int |phi r^w| / M on the line where the factor e^{iyL} decays."""
        reach = self.strip.reach(w, 40.0 + np.maximum(0.0, -log_size))

        def further(y: float) -> FloatArray:
            _, logs = self.strip.bound(w, -y, reach)
            log_bound = np.min(logs, axis=1) - log_size + LOG_MASS_SLACK
            return np.asarray(np.exp(np.minimum(log_bound, 0.0)))

        return further
