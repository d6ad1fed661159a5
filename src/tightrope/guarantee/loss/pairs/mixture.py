"""Mixtures of normals whose log-likelihood ratio rises: groups of records, and replaced records.

P = sum_k Bin(plus, rate)(k) N(k mu, 1),   Q = sum_k Bin(minus, rate)(k) N(-k mu, 1).

A group of K records that is removed is (K, 0); added, and mirrored, (0, K); one record replaced by
its opposite is (1, 1). With A(x) of `binomial_mixture`, L(x) = ln A_plus(x) - ln A_minus(-x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.loss.abstract import (
    POINTS_BEYOND,
    LogMasses,
    Side,
    as_losses,
    mirrored,
)
from tightrope.guarantee.loss.pairs.binomial_mixture import Arm
from tightrope.guarantee.loss.pairs.normals import (
    GRID_STEP,
    AbstractRatedPair,
    check_mu,
    check_rate,
)
from tightrope.guarantee.loss.pairs.points import (
    POINTS,
    TURN,
    OneLaw,
    log_panels_error,
    panel_points,
    point_nodes,
    to_ends,
)
from tightrope.guarantee.loss.pairs.sampling import NEVER
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import (
    LOG_MASS_SLACK,
    AbstractFamily,
    Decay,
    TiltedNodes,
)
from tightrope.numerics.lattice import LatticeMeasure, gap_bound, gathered, lowered, normalised
from tightrope.numerics.lattice_tail import CELL_ERROR
from tightrope.numerics.quadrature import LOG_ROOT_2PI, expm1_minus, gauss_legendre, log_sum_exp
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray, check_count

MOST_MEMBERS = 512
_ROUNDING = 1e-9  # moves of Newton's method that may be no more than rounding
_GRID = 256  # points between which Newton's method begins


@final
@dataclass(frozen=True)
class GaussianMixturePair(AbstractRatedPair):
    """P and Q of the module's docstring; rate below 1, plus + minus >= 1."""

    rate: float
    mu: float
    plus: int
    minus: int

    is_costly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_rate(self.rate))
        if self.rate == 1.0:
            raise InvalidInput("rate must be below 1; got 1. Without sampling use GaussianPair.")
        object.__setattr__(self, "mu", check_mu(self.mu))
        for name in ("plus", "minus"):
            value = check_count(getattr(self, name), name)
            object.__setattr__(self, name, value)
        if not 1 <= self.plus + self.minus <= MOST_MEMBERS:
            raise InvalidInput(
                f"A mixture has between 1 and {MOST_MEMBERS} records; got plus={self.plus} and "
                f"minus={self.minus}. Larger groups are bounded by `group` of one record's "
                "guarantee."
            )

    @cached_property
    def arms(self) -> tuple[Arm, Arm]:
        return Arm(self.rate, self.mu, self.plus), Arm(self.rate, self.mu, self.minus)

    @property
    def has_rare_losses(self) -> bool:
        return self.plus > 0

    @property
    def support(self) -> tuple[float, float]:
        # ln A rises from ln b_0 on, ln A_minus(-x) falls to ln b_0
        plus, minus = (float(arm.logs[0]) for arm in self.arms)
        return (-math.inf if self.minus else plus), (math.inf if self.plus else -minus)

    def reversed(self) -> GaussianMixturePair:
        return GaussianMixturePair(self.rate, self.mu, self.minus, self.plus)  # x -> -x

    def loss(self, x: FloatArray) -> FloatArray:
        """L(x)."""
        plus, minus = self.arms
        return np.asarray(plus.log(x) - minus.log(-x))

    def slope(self, x: FloatArray) -> FloatArray:
        """L'(x) = mu (m_plus(x) + m_minus(-x))."""
        plus, minus = self.arms
        return np.asarray(self.mu * (plus.mean(x) + minus.mean(-x)))

    def loss_and_slope(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        (plus, up), (minus, down) = self.arms[0].log_and_mean(x), self.arms[1].log_and_mean(-x)
        return np.asarray(plus - minus), np.asarray(self.mu * (up + down))

    def loss_error(self, x: FloatArray) -> FloatArray:
        """A bound on the rounding of `loss`."""
        plus, minus = self.arms
        return plus.log_error(x, plus.log(x)) + minus.log_error(-x, minus.log(-x))

    def brackets(self, loss: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Proved low <= x <= high around the x with L(x) = loss, close to each other.

        Infinite where the loss is not reached within the support.
        """
        asked, (least, most) = as_losses(loss), self.support
        level = np.where((asked > least) & (asked < most), asked, 0.0)
        x = self._near(level)
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = self.loss_error(x) / self.slope(x) + 4.0 * ULP * np.abs(x)
        ends = []
        for sign in (-1.0, 1.0):
            end, step = x + sign * reach, reach
            for _ in range(60):
                passed = sign * (self.loss(end) - level) >= self.loss_error(end)
                if bool(np.all(passed)):
                    break
                step = 2.0 * step
                end = np.where(passed, end, x + sign * step)
            end = np.where(passed, end, sign * math.inf)
            end = np.where(asked >= most, math.inf, end)
            ends.append(np.where(asked <= least, -math.inf, end))
        return ends[0], ends[1]

    def _near(self, level: FloatArray) -> FloatArray:
        """Close to the x with L(x) = level: Newton's method inside of a bracket."""
        low, high = np.full(level.shape, -1.0), np.full(level.shape, 1.0)
        for _ in range(27):  # up to 2^27
            behind, ahead = self.loss(low) > level, self.loss(high) < level
            if not bool(np.any(behind | ahead)):
                break
            low, high = np.where(behind, 2.0 * low, low), np.where(ahead, 2.0 * high, high)
        grid = np.linspace(low.min(), high.max(), _GRID)
        x, before = np.clip(np.interp(level, self.loss(grid), grid), low, high), math.inf
        for _ in range(90):
            found, slope = self.loss_and_slope(x)
            off = found - level
            low, high = np.where(off < 0.0, x, low), np.where(off < 0.0, high, x)
            with np.errstate(divide="ignore", invalid="ignore"):
                after = x - off / slope
            after = np.where((after >= low) & (after <= high), after, 0.5 * (low + high))
            moved = float(np.max(np.abs(after - x) / (1.0 + np.abs(x)), initial=0.0))
            x = after
            if moved <= 2.0 * ULP or (moved < _ROUNDING and moved > 0.5 * before):
                break  # what is left is the rounding of the loss
            before = moved
        return np.asarray(x)

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        x = self._point(loss)
        plus, minus = self.arms
        return plus.log_above(x), minus.log_below(-x)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        x = self._point(loss)
        plus, minus = self.arms
        return plus.log_below(x), minus.log_above(-x)

    def _point(self, loss: ArrayLike) -> FloatArray:
        low, high = self.brackets(loss)
        finite = np.isfinite(low) & np.isfinite(high)
        middle = 0.5 * (np.where(finite, low, 0.0) + np.where(finite, high, 0.0))
        return np.asarray(np.where(finite, middle, np.where(np.isinf(low), low, high)))

    def log_error(self, loss: ArrayLike) -> FloatArray:
        ends = [np.where(np.isinf(x), 0.0, x) for x in self.brackets(loss)]
        size = np.maximum(*np.abs(ends)) + self.mu * max(self.plus, self.minus)
        slack = ends[1] - ends[0] + ULP * size
        units = 8.0 * ULP * (size * size + self.plus + self.minus + 40.0)
        return np.asarray((size + 1.0) * slack + units)

    def log_delta_single(self, epsilon: float) -> Interval:
        """P(x > x*) - e^eps Q(x > x*) with L(x*) = eps, between proved points around x*.

        Turned round, 1 - e^eps + e^eps delta(-eps), where eps < 0. Masses are right to 1e-13.
        """
        if epsilon < 0.0:
            return mirrored(self.reversed().log_delta_single(-epsilon), epsilon)
        most_loss = self.support[1]
        if epsilon >= most_loss * (1.0 + 4.0 * ULP):
            return NEVER
        if epsilon >= most_loss:  # it is rounded: perhaps just below the largest loss
            steps = (1e-15, 1e-12, 1e-8)
            before = (self.log_delta_single(epsilon * (1.0 - step)).upper for step in steps)
            return Interval(-math.inf, min(before))
        low, high = (float(end) for end in self.brackets(epsilon))
        plus, minus = self.arms
        at = np.array([low, high])
        with_them, without = np.exp(plus.log_above(at)), np.exp(minus.log_below(-at) + epsilon)
        size = 1e-13 * (with_them[0] + without[0]) * (1.0 + epsilon)
        most = with_them[0] - without[1] + size
        least = float(np.max(with_them - without)) - size  # any test proves a lower bound
        lower = math.log(least) if least > 0.0 else -math.inf
        return Interval(lower, min(0.0, math.log(max(most, 1e-320))))

    # ------------------------------------------------------------------------------- its order
    @property
    def family(self) -> object:
        return (self.plus, self.minus)

    # ---------------------------------------------------------------------------- its cumulant
    def cumulant(self, count: int = 1) -> AbstractFamily:
        return MixtureCumulant(self, count)

    @classmethod
    def cut_cumulant(
        cls, pairs: Sequence[Self], counts: Sequence[int], nats: float
    ) -> tuple[AbstractFamily, float]:
        law = MixtureCumulant(pairs[0], counts[0], pairs[0].arms[0].quantile(-nats))
        return law, law.log_dropped()

    @property
    def reach(self) -> float:
        return self.mu * self.plus

    # --------------------------------------------------------------------------- on a lattice
    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        s = np.arange(-POINTS_BEYOND, POINTS_BEYOND + 1.5 * self.mu * self.plus, GRID_STEP)
        masses = self.arms[0].log(s) - 0.5 * s * s + math.log(GRID_STEP) - LOG_ROOT_2PI
        return self.loss(s), masses

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        return mixture_measure(self, side, step, rate, cut)

    def point_of(self, loss: float) -> float:
        return float(self._near(np.array(loss)))

    def largest_up_to(self, point: float) -> float:
        if not self.is_endless:
            return self.support[1]
        at = np.array(point)
        return float(self.loss(at) + self.loss_error(at))

    def log_beyond(self, point: float) -> float:
        return float(self.arms[0].log_above(np.array(point))) + 1e-12

    # ------------------------------------------------------------------------------- by cells
    def cell_edges(self, order: float, cells: int) -> FloatArray:
        end = furthest_peak(self, order - 1.0) + POINTS_BEYOND
        return self.loss(np.linspace(-POINTS_BEYOND, end, cells + 1))

    def log_last_cell(self, order: float) -> float:
        if math.isfinite(self.support[1]):
            return -math.inf
        last = np.array(furthest_peak(self, order - 1.0) + POINTS_BEYOND - 0.01)
        # the integrand falls like a Gaussian from there on
        value = self.arms[0].log(last) + (order - 1.0) * self.loss(last) - 0.5 * last * last
        return float(value) + 1e-6


# ---- The cumulant, whole or up to a largest loss
# M(z) = int phi A_plus^{1+z} A_minus^{-z} dx over x <= end, by Gauss-Legendre panels, Re z >= 0.
# Near M = 1 the sum is that of M - 1 = int (P^{1+z} Q^{-z} - (1+z) P + z Q), whose terms
# P h(zL) + z Q (L (e^L - 1) - h(L)), h(x) = e^x - 1 - x, are positive.
#
# Error: each panel on a Bernstein ellipse, cells and Gaussian tails for what lies outside of them,
# rounding term by term. docs/certificate_argument.md, 3.5.
_MAX_SHIFT, _LARGEST_TILT = 5e3, 1e6
_LEFT = 11.0  # e^{-60} of a normal law lies left of it
_NATS = 46.0  # of the grids for searching
_SHORTER, _MAX_PANELS = 24.0, 3000
_DEPTHS = np.array([0.002, 0.007, 0.02, 0.06, 0.14, 0.25, 0.36, 0.49])[:, None]
_FEW_STEPS = 1000  # up to here the shifted path is tried beside the layers


@final
class MixtureCumulant(OneLaw):
    """K of one GaussianMixturePair; `end` leaves out what lies beyond that x."""

    def __init__(self, pair: GaussianMixturePair, count: int, end: float = math.inf) -> None:
        super().__init__(count)
        self.pair, self.end = pair, end
        self._coarse = lru_cache(maxsize=8)(self._make_coarse)
        self._fine = lru_cache(maxsize=8)(self._make_fine)

    @property
    def max_tilt(self) -> float:
        if self.end < math.inf:
            return _MAX_SHIFT / max(float(self.pair.loss(np.array(self.end))), 1e-3)
        reach = self.pair.mu * self.pair.plus
        return min(_LARGEST_TILT, _MAX_SHIFT / reach) if reach else _LARGEST_TILT

    def log_dropped(self) -> float:
        """ln of a bound on the probability of any step beyond the end."""
        tail = float(self.pair.arms[0].log_above(np.array(self.end)))
        return tail + math.log(self.counts[0]) + 1e-9

    # ------------------------------------------------------------------ quick values for searching
    def _make_coarse(self, top: float) -> Scan:
        high = min(self.end, furthest_peak(self.pair, top) + _LEFT)
        width = 0.5 / max(1.0, self.pair.mu)
        return scan(self.pair, min(-_LEFT, high - 1.0), high, width)

    def _make_fine(self, top: float) -> Scan:
        coarse = self._coarse(top)
        log_size = min(coarse.log_sum(top), 0.0)
        first, last, *_ = coarse.ends(0.0, log_size - _NATS)
        last = max(last, coarse.ends(top, coarse.log_sum(top) - _NATS)[1])
        low, high = float(coarse.x[first]), float(coarse.x[last])
        return scan(self.pair, low, high, 0.1 / max(1.0, self.pair.mu))

    def _grid(self, tilt: float) -> Scan:
        return self._fine(_rounded_up(tilt))

    def _is_cut(self, at: Scan) -> bool:
        return float(at.x[-1]) == self.end

    def _rough(self, top: float) -> tuple[FloatArray, FloatArray]:
        grid = self._grid(top)
        return grid.losses, grid.exponent(0.0) + (math.log(grid.width) - LOG_ROOT_2PI)

    # ----------------------------------------------------------------------------- proved values
    def fewest_points(self, tilt: float, frequency: float) -> float:
        """Panels of TURN radians of e^{iyL} where weight is left; a tenth for negligible points."""
        grid = self._grid(tilt)
        f = grid.exponent(tilt)
        heavy = grid.losses[f > float(f.max()) - 40.0]
        return 0.9 * POINTS / TURN * frequency * float(heavy[-1] - heavy[0])

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        log_size = self._log_size(tilt)
        edges, log_error = self._panels(tilt, frequency, nats, log_size)
        x, log_weight = panel_points(edges, POINTS)
        size = np.abs(log_weight)
        log_weight = log_weight - LOG_ROOT_2PI - 0.5 * x * x
        plus, minus = self.pair.arms
        a, b = plus.log(x), minus.log(-x)
        loss = a - b
        a_error, b_error = plus.log_error(x, a), minus.log_error(-x, b)
        loss_error = a_error + b_error + 2.0 * UNIT * np.abs(loss)
        weight_error = UNIT * (72.0 + 6.0 * x * x + 3.0 * size)
        exponents = log_weight + a + tilt * loss
        error = weight_error + a_error + tilt * (loss_error + 4.0 * UNIT * np.abs(loss))
        error = error + 4.0 * UNIT * np.abs(a)
        value = float(log_sum_exp(exponents))
        if abs(value) <= 0.5:
            total, rounding = _excess(tilt, (log_weight, a, b, loss), (weight_error, loss_error))
            out = self._outside(tilt, float(edges[0]), float(edges[-1]))
            total, rounding = total - out[0], rounding + 1e-12 * out[1]
            value = math.log1p(total)
            rounding = 1.2 * rounding / (1.0 + total) + 2.0 * UNIT * abs(total)
        else:
            p = np.exp(exponents - value)
            rounding = float(p @ error) + (24.0 + len(x) / 16.0) * UNIT * (1.0 + abs(value))
        lost = math.exp(min(log_error - value, 0.0))
        return point_nodes(loss, exponents, (value, rounding), (error, loss_error), lost)

    def _outside(self, tilt: float, low: float, high: float) -> tuple[float, float]:
        """(1+z) P - z Q of what lies beyond the panels, and its size, for the rounding."""
        plus, minus = self.pair.arms
        at, last = np.array(low), np.array(high)
        p = math.exp(float(plus.log_below(at))) + math.exp(float(plus.log_above(last)))
        q = math.exp(float(minus.log_above(-at))) + math.exp(float(minus.log_below(-last)))
        return (1.0 + tilt) * p - tilt * q, (1.0 + tilt) * p + tilt * q

    def _panels(
        self, tilt: float, frequency: float, nats: float, log_size: float
    ) -> tuple[FloatArray, float]:
        """Edges of panels, and ln of a bound on what they miss of M."""
        coarse, turn = self._coarse(_rounded_up(tilt)), TURN
        first, last, log_lost, beyond = coarse.ends(tilt, log_size - nats - 2.0)
        if self._is_cut(coarse):  # what lies beyond is left out on purpose
            last = len(coarse.x) - 1
        else:
            log_lost = float(np.logaddexp(log_lost, beyond))
        for _ in range(20):
            edges = self._edges(coarse, first, last, max(frequency, 0.5 * (1.0 + tilt)), turn)
            box = partial(self._log_on_box, tilt=tilt, frequency=frequency)
            log_error = log_panels_error(edges, self.pair.mu, box)
            if log_error <= log_size - nats:
                break
            turn *= 0.85
        return edges, float(np.logaddexp(log_error, log_lost))

    def _edges(self, at: Scan, first: int, last: int, turning: float, turn: float) -> FloatArray:
        """Each panel for about `turn` radians of yL, and none too long."""
        x, means = at.x[first : last + 1], at.means
        pace = turning * self.pair.mu * (means[0] + means[1])[first : last + 1] / turn
        widest = min(turn / _SHORTER, 1.0) * min(0.9 / self.pair.mu, 1.2)
        dense = np.maximum(pace, 1.0 / widest)
        dense = np.maximum(dense[:-1], dense[1:]) * np.diff(x)
        so_far = np.concatenate([[0.0], np.cumsum(dense)])
        panels = math.ceil(float(so_far[-1]))
        if panels > _MAX_PANELS:
            raise OverflowError(f"{panels} panels")
        edges = np.interp(np.linspace(0.0, float(so_far[-1]), panels + 1), so_far, x)
        edges[0], edges[-1] = x[0], x[-1]
        return np.asarray(edges)

    def _log_on_box(
        self, left: FloatArray, right: FloatArray, deep: FloatArray, tilt: float, frequency: float
    ) -> FloatArray:
        """ln of a bound on the integrand for Re x in [left, right], |Im x| <= deep, |Im z| <= y.

        theta = mu deep: |A_plus| is at most its value at the right end, |A_minus| at least its own
        there times cos(theta/2)^{4 v}; the argument of either is at most 2 tan(theta/2) m.
        """
        plus, minus = self.pair.arms
        half = 0.5 * self.pair.mu * deep
        a, b = plus.log(right), minus.log(-right)
        many = minus.mean(-left)
        spread = np.minimum(many, 0.25 * minus.size)
        turned = 2.0 * frequency * np.tan(half) * (plus.mean(right) + many)
        value = (1.0 + tilt) * a - tilt * (b + 4.0 * spread * np.log(np.cos(half))) + turned
        plain = np.logaddexp(math.log1p(tilt) + a, math.log(tilt + 1e-300) + minus.log(-left))
        nearest = np.clip(0.0, left, right)
        base = 0.5 * (deep * deep - nearest * nearest) - LOG_ROOT_2PI + 1e-9
        return np.asarray(base + np.logaddexp(value, plain))

    # ------------------------------------------------------------------------------------- decay
    def decay(self, tilt: float) -> Decay:
        """Layers of the density e^F/L' of L under the tilted law."""
        at, mu, log_size = self._grid(tilt), self.pair.mu, self._log_size(tilt)
        f = at.exponent(tilt)
        most = np.minimum(at.means[0][1:], 0.25 * self.pair.plus)
        bend = 0.125 * at.width**2 * np.maximum(0.0, (1.0 + tilt) * mu**2 * most - 1.0)
        steep = np.log(mu * (at.means[0][1:] + at.means[1][:-1]) + 1e-300)
        scale = log_size + LOG_MASS_SLACK + LOG_ROOT_2PI + 1e-9
        heights = np.exp(np.minimum(np.minimum(f[:-1], f[1:]) - bend - steep - scale, 700.0))
        further = self.shifted(tilt) if float(self.counts[0]) <= _FEW_STEPS else None
        return replace(self._layered(at.losses, heights, tilt), further=further)

    def shifted(self, tilt: float) -> Callable[[float], FloatArray]:
        """|M(c+iy)|/M(c) on paths x + id, where arg A >= m sin(mu d): it falls with y.

        A law that is cut ends with the way down to its end, on which mu d < pi/3. The bound holds
        when ln M is the quick estimate within LOG_MASS_SLACK.
        """
        pair, log_size = self.pair, self._log_size(tilt)
        at = self._coarse(_rounded_up(tilt))
        depth, is_cut = _DEPTHS * min(math.pi / pair.mu, 14.0), self._is_cut(at)
        if is_cut:
            depth = depth[pair.mu * depth[:, 0] < 1.04]
        theta = pair.mu * depth
        raised = 0.5 * depth * depth - LOG_ROOT_2PI - log_size + LOG_MASS_SLACK
        worse = -4.0 * tilt * np.log(np.cos(0.5 * theta))
        cells = at.cells(tilt) + raised + worse * at.spread
        angle = np.sin(theta) * (at.means[0][:-1] + at.means[1][1:])
        f = at.exponent(tilt)
        outside = f[0] + math.log(1.2534) + 0.0 * raised
        if not is_cut:
            outside = np.logaddexp(outside, f[-1] + math.log(1.2534))
        outside = (outside + raised + worse * 0.25 * pair.minus)[:, 0]
        pace = 0.82 * float(pair.slope(np.array(at.x[-1])))
        down = (f[-1] + raised + worse * 0.25 * pair.minus)[:, 0] - math.log(pace + 1e-300)

        def further(y: float) -> FloatArray:
            logs = np.logaddexp(log_sum_exp(cells - y * angle), outside)
            if is_cut:
                logs = np.logaddexp(logs, down - math.log(y))
            return np.array([math.exp(min(float(np.min(logs)), 0.0))])

        return further


def _rounded_up(tilt: float) -> float:
    """A power of two, so that few grids serve all tilts."""
    return 2.0 ** math.ceil(math.log2(max(abs(tilt), 1.0)))


def _excess(
    tilt: float, terms: tuple[FloatArray, ...], errors: tuple[FloatArray, FloatArray]
) -> tuple[float, float]:
    """The sum of P h(zL) + z Q (L (e^L - 1) - h(L)), and a bound on its rounding."""
    log_weight, a, b, loss = terms
    x = np.clip(tilt * loss, -200.0, 200.0)
    safe = np.clip(loss, -50.0, 50.0)
    p, q = np.exp(np.minimum(log_weight + a, 600.0)), np.exp(np.minimum(log_weight + b, 600.0))
    near = (np.abs(tilt * loss) <= 200.0) & (np.abs(loss) <= 50.0)
    first = p * expm1_minus(x)
    second = tilt * q * (safe * np.expm1(safe) - expm1_minus(safe))
    whole = np.exp(np.minimum(log_weight + a + tilt * loss, 600.0))
    far = whole - (1.0 + tilt) * p + tilt * q
    sizes = np.where(near, first + 3.0 * second, whole + (1.0 + tilt) * p + tilt * q)
    moved = tilt * p * (np.abs(np.expm1(x)) + np.abs(loss))
    weight_error, loss_error = errors
    own = weight_error + loss_error + UNIT * (128.0 + 4.0 * np.abs(x) + len(loss) / 16.0)
    own = np.where(near, own, own + tilt * (loss_error + 4.0 * UNIT * np.abs(loss)))
    total = float(np.sum(np.where(near, first + second, far)))
    return total, float(np.sum(sizes * own + moved * loss_error))


# ---- phi A_plus^{1+c} A_minus^{-c} on cells of the line, bounded from above
# ln A_plus is convex and ln A_minus(-x) is, with second derivative at most mu^2 times the variance
# of k; so F = -x^2/2 + (1+c) ln A_plus - c ln A_minus exceeds the larger end of a cell by at most
# width^2/8 (1 + c mu^2 v), v a bound on the variance in the cell.
_MAX_CELLS = 20_000
_ROUNDS, _AT_ONCE = 4, 256


def furthest_peak(pair: GaussianMixturePair, tilt: float) -> float:
    """A point from which F falls at least like -x^2/2, for tilts from 0 up to this one.

    F' = -x + (1+c) mu m_plus(x) + c mu m_minus(-x); m_plus <= plus, and m_minus(-x) falls.
    """
    low, high = 0.0, tilt * pair.mu * pair.minus
    for _ in range(_ROUNDS):
        at = np.linspace(low, high, _AT_ONCE + 1)
        falls = at >= tilt * pair.mu * pair.arms[1].mean(-at)
        falls[-1] = True
        first = int(np.argmax(falls))
        low, high = float(at[max(first - 1, 0)]), float(at[first])
    return (1.0 + tilt) * pair.mu * pair.plus + high


@final
@dataclass(frozen=True)
class Scan:
    """Points, a fixed width apart, with both arms at each."""

    pair: GaussianMixturePair
    x: FloatArray

    @property
    def width(self) -> float:
        return float(self.x[1] - self.x[0])

    @cached_property
    def logs(self) -> tuple[FloatArray, FloatArray]:
        """ln A_plus(x) and ln A_minus(-x)."""
        plus, minus = self.pair.arms
        return plus.log(self.x), minus.log(-self.x)

    @cached_property
    def means(self) -> tuple[FloatArray, FloatArray]:
        """m_plus(x), which rises, and m_minus(-x), which falls."""
        plus, minus = self.pair.arms
        return plus.mean(self.x), minus.mean(-self.x)

    @cached_property
    def losses(self) -> FloatArray:
        return self.logs[0] - self.logs[1]

    def exponent(self, tilt: float) -> FloatArray:
        """F at the points."""
        return -0.5 * self.x * self.x + self.logs[0] + tilt * self.losses

    @cached_property
    def spread(self) -> FloatArray:
        """A bound on the variance of k of A_minus in each cell."""
        return np.minimum(self.means[1][:-1], 0.25 * self.pair.minus) + 1e-12

    def cells(self, tilt: float) -> FloatArray:
        """ln of bounds on the integral of e^F over each cell."""
        f, square = self.exponent(tilt), 0.125 * self.width**2
        bend = square * (1.0 + tilt * self.pair.mu**2 * self.spread)
        return np.maximum(f[:-1], f[1:]) + bend + math.log(self.width) + 1e-9

    def ends(self, tilt: float, log_enough: float) -> tuple[int, int, float, float]:
        """First and last edge with all but about e^log_enough of M; ln of what lies beyond each.

        Beyond the first and the last point e^F falls at least like e^{-x^2/2}.
        """
        cells, f = self.cells(tilt), self.exponent(tilt)
        left = np.logaddexp.accumulate(np.append(f[0] + math.log(1.2534), cells))
        right = np.logaddexp.accumulate(np.append(cells, f[-1] + math.log(1.2534))[::-1])[::-1]
        goal = log_enough + LOG_ROOT_2PI - 1.0
        first = min(max(int(np.searchsorted(left, goal)) - 1, 0), len(cells) - 1)
        last = min(max(int(np.searchsorted(-right, -goal)), first + 1), len(cells))
        return first, last, float(left[first]) - LOG_ROOT_2PI, float(right[last]) - LOG_ROOT_2PI

    def log_sum(self, tilt: float) -> float:
        """ln M(tilt), a trapezoidal estimate."""
        return float(log_sum_exp(self.exponent(tilt))) + math.log(self.width) - LOG_ROOT_2PI


def scan(pair: GaussianMixturePair, low: float, high: float, width: float) -> Scan:
    cells = max(4, math.ceil((high - low) / width))
    if cells > _MAX_CELLS:
        raise NotCertified(f"A scan of {cells} cells takes too much work; use the lattice method.")
    return Scan(pair, np.linspace(low, high, cells + 1))  # ends exactly where asked


# ---- On the lattice, above and below
# P on the cell between the points x_i, x_{i+1} with losses l_i, l_i + h goes to both ends with the
# weights that keep P and Q: (1 - e^{-(L - l_i)})/(1 - e^{-h}) to the right. Weights times density
# are sums of normal densities, so that Gauss-Legendre panels have the error of shared_mass.
# nodes of a panel by the largest width * (|x| + mu k + 1), cut to 1: error below CELL_ERROR
_NODES = ((2e-3, 3), (2e-2, 4), (2e-1, 6), (math.inf, 8))
_CLOSE = 1e-6  # of a cell, before the last of Newton's steps
_FAR = 55.0  # nats: what is rarer under the tilt is an error
_MOST_CELLS, _MOST_WORK = 200_000, 1e7


def mixture_measure(
    pair: GaussianMixturePair, side: str, step: float, rate: float, cut: float
) -> LatticeMeasure:
    """The measure of L under P, tilted by e^{rate L}, up to the point x = cut or a little further.

    What is beyond the cut counts elsewhere; what is left out before it is an error.
    """
    x, levels, log_lost, closed, (left, right) = _cells(pair, step, rate, cut)
    f = -0.5 * x * x + pair.arms[0].log(x) + rate * levels
    first, scale = float(levels[0]), float(f.max())
    if side == "upper":
        masses, clipped = gathered(left, right, rate * step), 0.0
    else:
        peak = _peaks(pair, x, f - scale, step)
        # in units of Q times e^{l_i}: the right end holds its P mass times e^-h
        right = right * math.exp(-step)
        gap = gap_bound(left, right, peak)
        masses, clipped = lowered(left, right, gap, step, (rate + 1.0) * step, 0.0)
        first -= step
    off, error = pair.loss(x) - levels, pair.loss_error(x)
    slip = max(float(np.max(np.abs(off[:-1]) + error[:-1])), float(off[-1] + error[-1]))
    slip += 4.0 * ULP * float(np.abs(levels).max())
    relative = _relative_error(error, x, levels, rate, f)
    lost = math.exp(min(log_lost - scale, 0.0)) + clipped
    return normalised(first, step, masses, scale, rate, lost, relative, slip=slip, closed=closed)


@lru_cache(maxsize=2)
def _cells(
    pair: GaussianMixturePair, step: float, rate: float, cut: float
) -> tuple[FloatArray, FloatArray, float, bool, tuple[FloatArray, FloatArray]]:
    """Points, their losses, ln of what is left out, whether they reach the cut, and the shares.

    The same for both sides.
    """
    low, high, log_lost = _reach(pair, rate, cut)
    first, last = pair.loss(np.array([low, high])).tolist()
    cells = max(4, math.ceil((last - first) / step))
    if cells > _MOST_CELLS:
        raise NotCertified(f"A lattice of {cells} points is too long for one step.")
    levels = first + step * np.arange(cells + 1.0)
    x = _points(pair, levels, low, high)
    scale = float(np.max(-0.5 * x * x + pair.arms[0].log(x) + rate * levels))
    shares = _shares(pair, x, levels, step, rate * levels[:-1] - scale)
    return x, levels, log_lost, high == cut, shares


def _reach(pair: GaussianMixturePair, rate: float, cut: float) -> tuple[float, float, float]:
    """The stretch with all but e^-55 of the tilted law up to the cut, and ln of the rest."""
    far = furthest_peak(pair, rate) + 12.0
    at = scan(pair, -12.0, min(far, cut), 0.5 / max(1.0, pair.mu))
    first, last, left, right = at.ends(rate, at.log_sum(rate) - _FAR)
    if far <= cut or last < len(at.x) - 1:
        return float(at.x[first]), float(at.x[last]), float(np.logaddexp(left, right))
    return float(at.x[first]), cut, left


def _points(pair: GaussianMixturePair, levels: FloatArray, low: float, high: float) -> FloatArray:
    """About the x with L(x) = levels, rising; the last at most a little beyond the reach."""
    grid = np.linspace(low, high + 1.0, 2000)
    x = np.interp(levels, pair.loss(grid), grid)
    for _ in range(4):
        loss, slope = pair.loss_and_slope(x)
        off = loss - levels
        x = np.clip(x - off / slope, low, high + 1.0)
        if float(np.max(np.abs(off[1:-1]))) < _CLOSE * (levels[1] - levels[0]):
            break  # the next ones are squares of it
    x[0] = low
    return np.asarray(np.maximum.accumulate(x))


def _shares(
    pair: GaussianMixturePair,
    x: FloatArray,
    levels: FloatArray,
    step: float,
    log_weight: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """P given to the left and to the right end of each cell, times e^log_weight of the cell."""
    size = np.maximum(np.abs(x[:-1]), np.abs(x[1:])) + pair.mu * max(pair.plus, pair.minus) + 1.0
    turn = np.diff(x) * size
    if float(np.sum(turn) + len(turn)) * (pair.plus + pair.minus + 1) > _MOST_WORK:
        raise NotCertified("A lattice of this mixture takes too much work.")
    left, right, least = np.zeros(len(turn)), np.zeros(len(turn)), -1.0
    for most, nodes in _NODES:
        cells = np.flatnonzero((turn > least) & (turn <= most))
        panels = np.maximum(np.ceil(turn[cells] + 1e-9), 1.0).astype(np.int64)
        cell, least = np.repeat(cells, panels), most
        number = np.arange(len(cell)) - np.repeat(np.cumsum(panels) - panels, panels)
        width = np.diff(x)[cell] / np.repeat(panels, panels)
        ends = x[cell] + width * number, width, levels[cell], log_weight[cell]
        shares = _panel_shares(pair, nodes, step, *ends)
        left, right = (
            total + np.bincount(cell, part, len(turn))
            for total, part in zip((left, right), shares, strict=True)
        )
    return left, right


def _panel_shares(
    pair: GaussianMixturePair,
    nodes: int,
    step: float,
    begin: FloatArray,
    width: FloatArray,
    level: FloatArray,
    log_weight: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """P given to both ends by panels of the cells, each by one rule."""
    at, weights = gauss_legendre(nodes)
    s = begin[:, None] + width[:, None] * (0.5 * (at + 1.0))
    logs = pair.arms[0].log(s)
    loss = logs - pair.arms[1].log(-s)
    exponent = log_weight[:, None] - 0.5 * s * s + logs - LOG_ROOT_2PI
    mass = np.exp(exponent) * (0.5 * weights * width[:, None])
    to_left, to_right = to_ends(np.clip(loss - level[:, None], 0.0, step), step)
    return np.sum(mass * to_left, axis=1), np.sum(mass * to_right, axis=1)


def _peaks(pair: GaussianMixturePair, x: FloatArray, f: FloatArray, step: float) -> FloatArray:
    """Bounds on (density of e^L under Q) * width in each cell, in the units of the cell.

    phi A_plus exceeds its larger end by at most e^{width^2/8}; L' = mu (m_plus + m_minus).
    """
    plus, minus = pair.arms[0].mean(x), pair.arms[1].mean(-x)
    least = pair.mu * (plus[:-1] + minus[1:])
    top = np.maximum(f[:-1], f[1:]) + 0.125 * np.diff(x) ** 2 - LOG_ROOT_2PI + 1e-9
    with np.errstate(over="ignore"):  # no bound where L hardly moves
        return np.asarray(np.exp(top) / np.maximum(least, 1e-300) * math.expm1(step))


def _relative_error(
    loss_error: FloatArray, x: FloatArray, levels: FloatArray, rate: float, f: FloatArray
) -> float:
    """Rounding of exponents and shares, as a share of the total mass."""
    units = 4.0 * ULP * (x * x + np.abs(rate * levels) + 40.0) + loss_error
    weight = np.exp(f - f.max()) * np.gradient(x)
    return float(weight @ units / weight.sum()) + CELL_ERROR
