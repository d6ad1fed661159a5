"""The cumulants of Poisson-sampled Gaussians, both directions (theory A57, Part D)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_grid import SampledGrid, make_grid
from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, SampledStrip
from tightrope.guarantee.loss.cumulant_window import Window
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.inversion_law import AbstractFamily
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import UNIT, FloatArray, log_sum_exp

__all__ = ["SampledCumulant"]

_MAX_SHIFT = 5e3  # of the tilted normal, in standard deviations
_FEW_STEPS = 200  # up to here the shifted line is tried beside the layers
_BLOCK = 1 << 18
_MAX_ROWS = 24  # larger families are as quick one tilt after the other


@final
class SampledCumulant(AbstractFamily):
    """K of SampledGaussianPairs of one direction, rates below 1; with a window, of a part of each.

    Windows are for direction "remove" only.
    """

    def __init__(
        self,
        pairs: Sequence[SampledGaussianPair],
        counts: Sequence[int],
        window: Window | None = None,
    ) -> None:
        self.counts = np.array(counts, dtype=np.float64)
        rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
        self.strip = SampledStrip(rate, mu, window)
        self.removes = pairs[0].direction == "remove"
        self._grid = lru_cache(maxsize=8)(self._make_search_grid)
        self._widest_mu = float(np.max(mu))

    def power(self, tilt: float) -> float:
        """The w with M(tilt) = G(w)."""
        return 1.0 + tilt if self.removes else -tilt

    @property
    def max_tilt(self) -> float:
        if not self.removes:
            return 1e9
        # the end of a window holds the tilted normal back by this factor (see SampledStrip.reach)
        window = self.strip.window
        held = 0.0 if window is None else window.fall**2
        return min(1e9, _MAX_SHIFT * (1.0 + held) / self._widest_mu)

    # ------------------------------------------------------------------ quick values for searching
    def _make_search_grid(self, top: float) -> tuple[FloatArray, FloatArray]:
        """ln r and ln weight on grids wide enough for every power between 0 and `top`."""
        window, rows = self.strip.window, np.ones_like(self.strip.mu)
        low, high = self.strip.reach(top * rows, 32.0)
        # r^w with w < 0 grows on the way to the branch points
        depth = np.minimum((0.75 if top > 0 else 0.3) * math.pi / self.strip.mu[:, 0], 8.0)
        depth = depth if window is None else np.minimum(depth, 7.0 / window.sharpness)
        bend = 0.5 * (1.0 if window is None else 1.0 + window.bend)
        step = 2.0 * math.pi * depth / (30.0 + bend * depth * depth)
        points = int(np.max((high - low) / step)) + 2
        s = low[:, None] + step[:, None] * np.arange(points)
        log_weight = np.log(step)[:, None] - LOG_ROOT_2PI - 0.5 * s * s
        log_weight = log_weight if window is None else log_weight + window.log_share(s)
        return self.strip.log_ratio(s), log_weight

    def _search_grid(self, power: float) -> tuple[FloatArray, FloatArray]:
        size = 2.0 ** math.ceil(math.log2(max(abs(power), 1.0)))
        return self._grid(math.copysign(size, power))

    def row_values(self, tilts: FloatArray) -> FloatArray:
        """K of each law at several tilts, (tilts, laws); estimates."""
        powers = 1.0 + tilts if self.removes else -tilts
        lr, lw = self._search_grid(float(powers[np.argmax(np.abs(powers))]))
        block = max(1, _BLOCK // lr.size)
        out = np.empty((len(tilts), len(self.counts)))
        for first in range(0, len(tilts), block):
            w = powers[first : first + block, None, None]
            out[first : first + block] = log_sum_exp(w * lr + lw)
        return out

    def values(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(self.row_values(tilts) @ self.counts)

    def row_moments(self, tilt: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """K, K' and K'' of each law; estimates."""
        w = self.power(tilt)
        lr, lw = self._search_grid(w)
        exponent = w * lr + lw
        value = log_sum_exp(exponent)
        p = np.exp(exponent - value[:, None])
        mean = (p * lr).sum(axis=1)
        variance = (p * (lr - mean[:, None]) ** 2).sum(axis=1)
        return value, mean if self.removes else -mean, variance

    def moments(self, tilt: float) -> tuple[float, float, float]:
        value, mean, variance = self.row_moments(tilt)
        n = self.counts
        return float(n @ value), float(n @ mean), float(n @ variance)

    def _log_size(self, tilt: float) -> FloatArray:
        """Estimates of ln G."""
        w = self.power(tilt)
        lr, lw = self._search_grid(w)
        return log_sum_exp(w * lr + lw)

    # ----------------------------------------------------------------------------- proved values
    def _proved(self, wants: Sequence[tuple[float, float, float]]) -> SampledGrid:
        """One grid for several (tilt, frequency, nats), the laws repeated for each of them."""
        laws, times = len(self.counts), len(wants)
        columns = [np.repeat(np.array(column), laws) for column in zip(*wants, strict=True)]
        of = self.strip if times == 1 else self.strip.repeated(times)
        tilt, frequency, nats = columns
        log_size = self.row_values(tilt[::laws]).reshape(-1)
        return make_grid(of, self.removes, tilt[:, None], frequency[:, None], nats, log_size)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        return self._proved([(tilt, frequency, nats)]).nodes(len(self.counts))

    def nodes_and_real(
        self, tilt: float, frequency: float, nats: float, others: tuple[float, ...], coarse: float
    ) -> tuple[TiltedNodes, list[tuple[FloatArray, FloatArray]]]:
        laws = len(self.counts)
        if laws * (1 + len(others)) > _MAX_ROWS:
            return super().nodes_and_real(tilt, frequency, nats, others, coarse)
        grid = self._proved([(tilt, frequency, nats), *((z, 0.0, coarse) for z in others)])
        value, error = grid.mass()
        real = [
            (value[first : first + laws], error[first : first + laws])
            for first in range(laws, len(value), laws)
        ]
        return grid.nodes(laws), real

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        w, mu = self.power(tilt), self.strip.mu[:, 0]
        if (
            w > 0.0
            and self.strip.window is None
            and bool(np.all((w * mu > 2e4) & (w * mu**2 > 200.0)))
        ):
            return self._far(w)
        return self._proved([(tilt, 0.0, nats)]).mass()

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
        low, high = (end[:, None] for end in of.reach(w * np.ones_like(mu), 12.0))
        low = low - mu  # the density of L leans left of that of s
        cell = np.minimum(0.1, 0.5 / (mu * math.sqrt(max(w + 1.0, 1.0))))
        cells = min(4000, math.ceil(float(np.max((high - low) / cell))))
        width = (high - low) / cells
        edges = low + width * np.arange(cells + 1)
        lr, log_size = of.log_ratio(edges), self._log_size(tilt)
        scale = log_size[:, None] + LOG_MASS_SLACK + of.log_rate + np.log(mu) + LOG_ROOT_2PI
        g = -0.5 * edges * edges + (w + 1.0) * lr - (mu * edges - of.half) - scale
        if of.window is not None:  # concave: least at an end of a cell
            g = g + of.window.log_share(edges)
        square = 0.125 * width * width
        bend = square * np.maximum(0.0, 0.25 * (w + 1.0) * mu**2 - 1.0)
        heights = np.exp(np.minimum(np.minimum(g[:, :-1], g[:, 1:]) - bend, 700.0))
        # at most two maxima (a line meets a sigmoid three times): variation <= 4 sup
        above = (square * (1.0 + max(0.0, -(w + 1.0)) * 0.25 * mu**2))[:, 0]
        variation = 4.0 * np.exp(np.minimum(np.max(g, axis=1) + above, 700.0))
        if of.window is not None:
            variation = np.full(len(variation), math.inf)
        peaks = np.argmax(heights, axis=1)
        layers = [layers_of_steps(*row) for row in zip(lr, heights, peaks.tolist(), strict=True)]
        few = float(np.sum(self.counts)) <= _FEW_STEPS
        return Decay.of(layers, variation, log_size, self.shifted(tilt) if few else None)

    def shifted(self, tilt: float) -> Callable[[float], FloatArray]:
        """|M(c+iy)|/M <= int |phi r^w| / M on the line where the factor e^{iyL} decays.

        As a function of y this falls. It holds when ln M is the quick estimate within
        LOG_MASS_SLACK.
        """
        log_size, ones = self._log_size(tilt), np.ones_like(self.strip.mu)
        w = self.power(tilt) * ones
        reach = self.strip.reach(w, 40.0 + np.maximum(0.0, -log_size))

        def further(y: float) -> FloatArray:
            _, logs = self.strip.bound(w, -y * ones, reach)
            log_bound = np.min(logs, axis=1) - log_size + LOG_MASS_SLACK
            return np.asarray(np.exp(np.minimum(log_bound, 0.0)))

        return further
