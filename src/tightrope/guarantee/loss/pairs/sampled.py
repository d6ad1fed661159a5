"""Gaussian noise on a Poisson sample, in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from tightrope.errors import InvalidInput
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss.abstract import (
    POINTS_BEYOND,
    LogMasses,
    Side,
    as_losses,
)
from tightrope.guarantee.loss.pairs.jumps import NormalJumps
from tightrope.guarantee.loss.pairs.normals import (
    BEYOND_BULK,
    BRANCH,
    LEFT,
    LOG_CUT_OFF,
    AbstractSampledPair,
    beyond_end,
    branch_measure,
    end_of_tail,
    log_normal_moment,
    normal_edges,
    normal_error,
    normal_measure,
    rough_grid,
)
from tightrope.guarantee.loss.pairs.sampled_grid import (
    RowFamily,
    SampledGrid,
    SampledStrip,
    layers_of_density,
    make_grid,
)
from tightrope.guarantee.loss.pairs.sampled_part import PartCumulant, rare_points
from tightrope.guarantee.loss.pairs.sampling import (
    REVERSE,
    Direction,
    log_mix,
    log_ratio,
    point_of_log_ratio,
    point_slack,
    sampled_added,
    sampled_removed,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import (
    LOG_MASS_SLACK,
    AbstractFamily,
    Decay,
    TiltedNodes,
)
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.quadrature import LOG_ROOT_2PI
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

_LARGEST_MU = 20.0  # beyond, e^{mu^2} says nothing that a double can


@final
@dataclass(frozen=True)
class SampledGaussianPair(AbstractSampledPair):
    """Poisson-sampled Gaussian; mix = (1-rate) N(0,1) + rate N(mu,1), r = dmix/dN(0,1).

    "remove": P = mix, Q = N(0,1), L = ln r.   "add": P = N(0,1), Q = mix, L = -ln r.
    """

    rate: float
    mu: float
    direction: Direction = "remove"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction not in ("remove", "add"):
            raise InvalidInput(
                f"direction must be 'remove' or 'add'; got {self.direction!r}. 'remove' puts the "
                "example in the first dataset of the pair, 'add' in the second."
            )

    @property
    def has_jumps(self) -> bool:
        return self.direction == "remove" and self.rate < 1.0

    @property
    def has_rare_losses(self) -> bool:
        return self.has_jumps

    @property
    def support(self) -> tuple[float, float]:
        edge = math.log1p(-self.rate) if self.rate < 1.0 else -math.inf
        return (edge, math.inf) if self.direction == "remove" else (-math.inf, -edge)

    @property
    def log_mean_square(self) -> float:
        if self.rate == 1.0 or self.mu > _LARGEST_MU:
            return self.mu * self.mu
        return math.log1p(self.rate**2 * math.expm1(self.mu**2))  # of r under N(0,1)

    def reversed(self) -> SampledGaussianPair:
        return replace(self, direction=REVERSE[self.direction])

    def _log_ratio(self, loss: ArrayLike) -> FloatArray:
        """ln r where L is this."""
        return as_losses(loss) if self.direction == "remove" else -as_losses(loss)

    def _half_line(self, loss: ArrayLike, above: bool) -> LogMasses:
        """ln P and ln Q of the losses above this one, or up to it."""
        removes = self.direction == "remove"
        s = point_of_log_ratio(self._log_ratio(loss), self.rate, self.mu)
        sign = -1.0 if above is removes else 1.0  # beyond s, or before it
        base = log_ndtr(sign * s)
        mix = log_mix(base, log_ndtr(sign * (s - self.mu)), self.rate)
        return (mix, base) if removes else (base, mix)

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        return self._half_line(loss, above=True)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        return self._half_line(loss, above=False)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = self._log_ratio(loss)
        s = point_of_log_ratio(x, self.rate, self.mu)
        slack = point_slack(x, s, self.rate, self.mu)
        return normal_error(np.abs(s) + self.mu, slack)

    def log_delta_single(self, epsilon: float) -> Interval:
        base = partial(log_gaussian_delta, mu=self.mu)
        if self.direction == "remove":
            return sampled_removed(self.rate, epsilon, base)
        return sampled_added(self.rate, epsilon, base)

    # ------------------------------------------------------------------------------- its order
    @property
    def family(self) -> object:
        return self.direction

    # ---------------------------------------------------------------------------- its cumulant
    def cumulant(self, count: int = 1) -> AbstractFamily:
        return SampledCumulant([self], [count])

    @property
    def joint(self) -> str:
        return self.direction

    @classmethod
    def joint_cumulant(cls, pairs: Sequence[Self], counts: Sequence[int]) -> AbstractFamily:
        return SampledCumulant(pairs, counts)

    @classmethod
    def cut_cumulant(
        cls, pairs: Sequence[Self], counts: Sequence[int], nats: float
    ) -> tuple[AbstractFamily, float]:
        part = PartCumulant(pairs, counts, rare_points(pairs, nats))
        return part, part.log_dropped()

    # --------------------------------------------------------------------------- on a lattice
    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        loss, base = rough_grid(self.mu, self.rate, -POINTS_BEYOND)
        return (loss, base + loss) if self.direction == "remove" else (-loss[::-1], base[::-1])

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        if self.rate == 1.0:
            return normal_measure(self.mu, side, step, rate)
        if self.direction == "remove":
            branch = BRANCH[side](self.rate, self.mu, rate + 1.0, step, 0.0, -math.inf, cut)
            return branch_measure(branch, step, rate, 0.0)
        far = end_of_tail(self.rate, self.mu, rate, -39.0)
        branch = BRANCH[side](self.rate, self.mu, -rate, step, 0.0, -math.inf, far)
        top = branch.origin + step * (branch.start + len(branch.masses) - 1)
        beyond = beyond_end(branch, self.rate, self.mu, rate, branch.log_scale)
        turned = replace(branch, origin=-top, start=0, masses=branch.masses[::-1].copy())
        return branch_measure(turned, step, rate, beyond)

    @property
    def jumps(self) -> NormalJumps | None:
        return NormalJumps(self.rate, self.mu) if self.has_jumps else None

    def point_of(self, loss: float) -> float:
        """No law is meant to end before it begins.

        That comes of losses too close together for a double, and then it ends beyond them.
        """
        point = float(point_of_log_ratio(loss, self.rate, self.mu))
        return point if point > LEFT else BEYOND_BULK

    def largest_up_to(self, point: float) -> float:
        return float(log_ratio(point, self.rate, self.mu)) if self.has_jumps else self.support[1]

    @property
    def log_left_out(self) -> float:
        return LOG_CUT_OFF if self.rate < 1.0 else -math.inf

    # ------------------------------------------------------------------------------- by cells
    def cell_edges(self, order: float, cells: int) -> FloatArray:
        points, losses = normal_edges(self.mu, order, cells)
        if self.rate == 1.0:  # then no loss has an upper end
            return losses
        losses = log_ratio(points, self.rate, self.mu)
        return losses if self.direction == "remove" else -losses

    def log_last_cell(self, order: float) -> float:
        bounded = math.isfinite(self.support[1])
        return -math.inf if bounded else log_normal_moment(self.mu, order)


# ---- its cumulant, for families of pairs of one direction, by the trapezoidal grid
_MAX_SHIFT = 5e3  # of the tilted normal, in standard deviations
_FEW_STEPS = 200  # up to here the shifted line is tried beside the layers
_MAX_SEARCH = 1e7  # points of a grid for searching
_MAX_ROWS = 24  # larger families are as quick one tilt after the other
_HEAVY = 24.0  # nats below the largest weight


@final
class SampledCumulant(RowFamily):
    """K of SampledGaussianPairs of one direction, rates below 1."""

    def __init__(self, pairs: Sequence[SampledGaussianPair], counts: Sequence[int]) -> None:
        self.counts = np.array(counts, dtype=np.float64)
        rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
        self.strip = SampledStrip(rate, mu)
        self.removes = pairs[0].direction == "remove"
        self._grid = lru_cache(maxsize=8)(self._make_search_grid)
        self.row_moments = lru_cache(maxsize=8)(super().row_moments)  # type: ignore[method-assign]
        self._widest_mu = float(np.max(mu))

    def power(self, tilt: float) -> float:
        return 1.0 + tilt if self.removes else -tilt

    @property
    def max_tilt(self) -> float:
        if not self.removes:
            return 1e9 / float(np.min(self.strip.rate))
        return min(1e9, _MAX_SHIFT / self._widest_mu)

    # ------------------------------------------------------------------ quick values for searching
    def _make_search_grid(self, top: float) -> tuple[FloatArray, FloatArray]:
        """ln r and ln weight on grids wide enough for every power between 0 and `top`."""
        rows = np.ones_like(self.strip.mu)
        low, high = self.strip.reach(top * rows, 32.0)
        # r^w with w < 0 grows on the way to the branch points
        depth = np.minimum((0.75 if top > 0 else 0.3) * math.pi / self.strip.mu[:, 0], 8.0)
        bend: Any = 0.5
        if top < 0:  # at the peak s = w mu t, and |r|^w bends by -w mu^2 t (1 - t)
            bend = bend + 0.5 * self.strip.mu[:, 0] * np.maximum(-low - 8.0, 0.0)
            depth = np.minimum(depth, np.sqrt(30.0 / bend))
        step = 2.0 * math.pi * depth / (30.0 + bend * depth * depth)
        widest = float(np.max((high - low) / step))
        if not widest * len(step) < _MAX_SEARCH:
            raise OverflowError(f"{widest:.0e} quadrature points")
        points = int(widest) + 2
        s = low[:, None] + step[:, None] * np.arange(points)
        return self.strip.log_ratio(s), np.log(step)[:, None] - LOG_ROOT_2PI - 0.5 * s * s

    def _points_for(self, power: float) -> tuple[FloatArray, FloatArray]:
        size = 2.0 ** math.ceil(math.log2(max(abs(power), 1.0)))
        return self._grid(math.copysign(size, power))

    def _log_size(self, tilt: float) -> FloatArray:
        """Estimates of ln G."""
        return self.row_moments(tilt)[0]

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

    def fewest_points(self, tilt: float, frequency: float) -> float:
        """One point for each turn of e^{iyL} where it turns fastest, y mu t, and weight is left.

        ln of the weight bends down at most as a normal law's: it is above e^-n on 2 sqrt(2n).
        """
        if not self.removes:
            return 0.0
        lr, lw = self._points_for(self.power(tilt))
        exponent = self.power(tilt) * lr + lw
        heavy = exponent > exponent.max(axis=1, keepdims=True) - _HEAVY
        last = np.max(np.where(heavy, lr, -np.inf), axis=1)
        pace = self.strip.mu[:, 0] * (1.0 - (1.0 - self.strip.rate[:, 0]) * np.exp(-last))
        return math.sqrt(2.0 * _HEAVY) * frequency * float(np.sum(pace)) / math.pi

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
        if w > 0.0 and bool(np.all((w * mu > 2e4) & (w * mu**2 > 200.0))):
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
        w, mu, log_size = self.power(tilt), self.strip.mu, self._log_size(tilt)
        low, high = self.strip.reach(w * np.ones_like(mu), 12.0)
        low = low - mu[:, 0]  # the density of L leans left of that of s
        layers, variation = layers_of_density(self.strip, w, (low, high), log_size)
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
        outline = self.strip.outline(w, reach, right_ends=False)
        outside = np.logaddexp(*self.strip.tails(w, 0.0 * ones, outline))

        def further(y: float) -> FloatArray:
            logs = outline.total(-y * ones, outside)
            log_bound = np.min(logs, axis=1) - log_size + LOG_MASS_SLACK
            return np.asarray(np.exp(np.minimum(log_bound, 0.0)))

        return further
