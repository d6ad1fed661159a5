"""One release of a mixture pair on the lattice, above and below.

P on the cell between the points x_i, x_{i+1} with losses l_i, l_i + h goes to both ends with the
weights that keep P and Q: (1 - e^{-(L - l_i)})/(1 - e^{-h}) to the right. Weights times density are
sums of normal densities, so that Gauss-Legendre panels have the error of `lattice_cells`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.cumulant_mixture import LOG_ROOT_2PI, furthest_peak, scan
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.numerics.lattice import LatticeMeasure, gap_bound, gathered, lowered, normalised
from tightrope.numerics.lattice_tail import CELL_ERROR
from tightrope.numerics.quadrature import gauss_legendre
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

__all__ = ["mixture_measure"]

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
    """Where all but e^-55 of the tilted law up to the cut lies, and ln of the rest."""
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
    """The same for panels of the cells, each by one rule."""
    at, weights = gauss_legendre(nodes)
    s = begin[:, None] + width[:, None] * (0.5 * (at + 1.0))
    logs = pair.arms[0].log(s)
    loss = logs - pair.arms[1].log(-s)
    exponent = log_weight[:, None] - 0.5 * s * s + logs - LOG_ROOT_2PI
    mass = np.exp(exponent) * (0.5 * weights * width[:, None])
    within = np.clip(loss - level[:, None], 0.0, step)
    to_right = -np.expm1(-within) / -math.expm1(-step)
    to_left = np.exp(-within) * -np.expm1(within - step) / -math.expm1(-step)
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
