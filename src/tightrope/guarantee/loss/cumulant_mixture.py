"""The cumulant of a mixture pair, whole or up to a largest loss.

M(z) = int phi A_plus^{1+z} A_minus^{-z} dx over x <= end, by Gauss-Legendre panels, for Re z >= 0.
Near M = 1 the sum is that of M - 1 = int (P^{1+z} Q^{-z} - (1+z) P + z Q), whose terms
P h(zL) + z Q (L (e^L - 1) - h(L)), h(x) = e^x - 1 - x, are positive.

Error: each panel on a Bernstein ellipse, cells and Gaussian tails for what lies outside of them,
rounding term by term. docs/certificate_argument.md, 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.cumulant_points import (
    POINTS,
    TURN,
    panel_points,
    point_moments,
    point_nodes,
)
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.inversion_law import AbstractFamily, TiltedNodes
from tightrope.numerics.quadrature import FloatArray, expm1_minus, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = ["MixtureCumulant", "Scan", "scan", "furthest_peak", "LOG_ROOT_2PI"]

_MAX_SHIFT, _LARGEST_TILT = 5e3, 1e6
_LEFT = 11.0  # e^{-60} of a normal law lies left of it
_NATS = 46.0  # of the grids for searching
_SHORTER, _MAX_PANELS = 24.0, 3000
_RADII = np.array([1.6, 2.3, 3.2, 4.5, 7.0])[:, None]
_TAILS = 2.0 * POINTS * np.log(_RADII) + np.log1p(-(_RADII**-2.0))
_DEPTHS = np.array([0.002, 0.007, 0.02, 0.06, 0.14, 0.25, 0.36, 0.49])[:, None]
_FEW_STEPS = 1000  # up to here the shifted path is tried beside the layers


@final
class MixtureCumulant(AbstractFamily):
    """K of one GaussianMixturePair; `end` leaves out what lies beyond that x."""

    def __init__(self, pair: GaussianMixturePair, count: int, end: float = math.inf) -> None:
        self.counts = np.array([count], dtype=np.float64)
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

    def values(self, tilts: FloatArray) -> FloatArray:
        grid = self._grid(float(np.max(np.abs(tilts))))
        return np.asarray(self.counts[0] * np.array([grid.log_sum(float(z)) for z in tilts]))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        grid = self._grid(tilt)
        shift = math.log(grid.width) - LOG_ROOT_2PI
        return point_moments(grid.losses, grid.exponent(tilt) + shift, self.counts)

    def _log_size(self, tilt: float) -> float:
        return self._grid(tilt).log_sum(tilt)

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
            log_error = self._log_error(edges, tilt, frequency)
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

    def _log_error(self, edges: FloatArray, tilt: float, frequency: float) -> float:
        """ln of the sum of the Gauss-Legendre errors (quadrature.log_ellipse_error), best radii."""
        centre, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
        wide, deep = (0.5 * (_RADII + sign / _RADII) * half for sign in (1.0, -1.0))
        ok = self.pair.mu * deep < 1.0
        deep = np.where(ok, deep, 0.1 * half)
        bound = self._log_on_box(centre - wide, centre + wide, deep, tilt, frequency)
        bound = np.where(ok, bound - _TAILS, np.inf).min(axis=0)
        return float(log_sum_exp(bound + np.log(64.0 / 15.0 * half)))

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
        layers = layers_of_steps(at.losses, heights, int(np.argmax(heights)))
        further = self.shifted(tilt) if float(self.counts[0]) <= _FEW_STEPS else None
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]), further)

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


# ---- phi A_plus^{1+c} A_minus^{-c} of a mixture pair on cells of the line, bounded from above ----
# ln A_plus is convex and ln A_minus(-x) is, with second derivative at most mu^2 times the variance
# of k; so F = -x^2/2 + (1+c) ln A_plus - c ln A_minus exceeds the larger end of a cell by at most
# width^2/8 (1 + c mu^2 v), v a bound on the variance in the cell.


LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
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
