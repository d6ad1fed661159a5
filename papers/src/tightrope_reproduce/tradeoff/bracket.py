"""Any trade-off function between two piecewise linear ones.

Statement: on a grid 0 = e_0 < ... < e_n of slopes: `lower` is the polygon of tangents with slopes
    -e^{+-e_i} (lines 1 - delta(e_i) - e^{e_i} a and their mirror images); `upper` joins the points
    where those tangents touch. lower <= f <= upper everywhere.
Conditions: delta(e_n) is at most `tail` on both sides; beyond, `lower` gives up the tail.
Validity: exact bounds; second order in the step of the grid.
Source: convexity; the same as splitting ("connect the dots") and merging loss outcomes.
Error: stated by the two curves; rounding enters through `rounding`.
Vectors: tests/unit/reproduce/test_tradeoff_operations.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.hull import intersection

__all__ = ["TradeoffBracket", "bracket", "coarsened"]

_ROUNDING = 1e-12
_INFLATED = 1e-11
_TAIL = 1e-16
_FINEST = 1e-9  # step of a grid


@final
@dataclass(frozen=True)
class TradeoffBracket:
    """Two curves with lower <= truth <= upper."""

    lower: AbstractTradeoff
    upper: AbstractTradeoff

    def bounds(self, type_i: ArrayLike) -> tuple[Any, Any]:
        """(lower, upper) around the smallest type II error."""
        return self.lower.bounds(type_i)[0], self.upper.bounds(type_i)[1]

    def interval(self, type_i: float) -> Interval:
        return Interval(*self.bounds(float(type_i)))

    def delta_bounds(self, epsilon: ArrayLike) -> tuple[Any, Any]:
        """(lower, upper) around the profile; the lower curve gives the upper delta."""
        return self.upper.delta_bounds(epsilon)[0], self.lower.delta_bounds(epsilon)[1]

    def map(self, operation: Any) -> TradeoffBracket:
        """A monotone operation applied to both curves."""
        return TradeoffBracket(operation(self.lower), operation(self.upper))


def bracket(
    curve: AbstractTradeoff, resolution: int = 1024, tail: float = _TAIL
) -> TradeoffBracket:
    """Piecewise linear curves around `curve`, with `resolution` slopes on each side of -1."""
    if isinstance(curve, ApproxTradeoff):
        curve = intersection([(curve.epsilon, curve.failure)])
    if isinstance(curve, DiscreteTradeoff):
        return TradeoffBracket(curve, curve)
    other = curve.inverse()
    grids = [_grid(_reach(c, tail), resolution) for c in (curve, other)]
    return TradeoffBracket(_tangents(curve, other, *grids), _chords(curve, other, *grids))


def _grid(reach: float, resolution: int) -> FloatArray:
    """Slopes that differ by much more than their rounding, and as many as asked if they can."""
    return np.linspace(0.0, reach, max(min(resolution, int(reach / _FINEST)), 1) + 1)


def _reach(curve: AbstractTradeoff, tail: float) -> float:
    """A slope exponent beyond which delta is below `tail`."""
    low, high = 0.0, 1e-6
    while high < 350.0 and float(curve.delta_one_way(high)) > tail:
        low, high = high, 2.0 * high
    for _ in range(20):
        middle = 0.5 * (low + high)
        inside = float(curve.delta_one_way(middle)) > tail
        low, high = (middle, high) if inside else (low, middle)
    return high


def _tangents(
    curve: AbstractTradeoff, other: AbstractTradeoff, steep_grid: FloatArray, flat_grid: FloatArray
) -> DiscreteTradeoff:
    # raising delta lowers every line; this covers the rounding of the sums below
    left = np.minimum(curve._delta_bounds(steep_grid)[1] * (1.0 + _INFLATED), 1.0)
    right = np.minimum(other._delta_bounds(flat_grid)[1] * (1.0 + _INFLATED), 1.0)
    left[0] = right[0] = max(left[0], right[0])  # the line of slope -1 belongs to both sides
    steep_slopes, flat_slopes = np.exp(steep_grid[1:]), np.exp(flat_grid[1:])
    steep, flat = _widths(steep_slopes, left), _widths(flat_slopes, right)
    middle = max(1.0 - left[0] - steep.sum() - flat.sum(), 0.0)
    p = np.concatenate([[0.0], steep[::-1], [middle], flat * flat_slopes, [right[-1]]])
    q = np.concatenate([[left[-1]], (steep * steep_slopes)[::-1], [middle], flat, [0.0]])
    return DiscreteTradeoff(p / p.sum(), q / q.sum(), _ROUNDING)


def _widths(slopes: FloatArray, deltas: FloatArray) -> FloatArray:
    """Type I errors covered by the tangents of slope `slopes`, from -1 outwards."""
    rises = np.diff(np.concatenate([[1.0], slopes]))
    crossings = -np.diff(deltas) / rises
    return np.asarray(np.maximum(crossings - np.append(crossings[1:], 0.0), 0.0))


def _chords(
    curve: AbstractTradeoff, other: AbstractTradeoff, steep_grid: FloatArray, flat_grid: FloatArray
) -> DiscreteTradeoff:
    x, power = curve.tangent(steep_grid)
    y, co_x = other.tangent(flat_grid)
    steep_p, steep_q = _drops(x), _drops(power)
    flat_q, flat_p = _drops(y), _drops(co_x)
    # both ends of the middle chord are tangent points of slope -1, so its two masses are equal
    middle = max(1.0 - 0.5 * (co_x[0] + x[0] + power[0] + y[0]), 0.0)
    # differences of powers near 1 lose units of 1; what tells nothing apart lifts the curve by them
    middle += 4.0 * UNIT * (len(x) + len(y))
    p = np.concatenate([steep_p[::-1], [middle], flat_p])
    q = np.concatenate([steep_q[::-1], [middle], flat_q])
    return DiscreteTradeoff(p / p.sum(), q / q.sum(), _ROUNDING)


def _drops(values: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(values - np.append(values[1:], 0.0), 0.0))


def coarsened(
    p: FloatArray, q: FloatArray, rounding: float, size: int, *, up: bool
) -> DiscreteTradeoff:
    """The curve of the atoms (p, q), or one on a lattice of about 2 * `size` log ratios.

    Up: the atoms of a cell are merged (harder to tell apart). Down: each atom is split between the
    ends of its cell, keeping both of its masses (easier to tell apart).
    """
    if p.size <= 2 * size:
        return DiscreteTradeoff(p, q, rounding)
    finite = (p > 0.0) & (q > 0.0)
    ends = [np.array([p[~finite].sum(), 0.0]), np.array([0.0, q[~finite].sum()])]
    p, q = p[finite], q[finite]
    ratio = np.log(q) - np.log(p)
    step = max(float(np.max(np.abs(ratio))) / size, 1e-9)
    cell = np.floor(ratio / step)
    first = float(cell.min())
    index = (cell - first).astype(np.int64)
    count = int(index.max()) + 2
    if up:
        masses = [np.bincount(index, m, count) for m in (p, q)]
    else:
        over = ratio - cell * step
        share = np.clip(np.expm1(over) / math.expm1(step), 0.0, 1.0)
        low, high = (1.0 - share, share)
        moved = (1.0 - share) * np.exp(-over), share * np.exp(step - over)
        masses = [
            np.bincount(index, p * low, count) + np.bincount(index + 1, p * high, count),
            np.bincount(index, q * moved[0], count) + np.bincount(index + 1, q * moved[1], count),
        ]
    new_p, new_q = (np.concatenate(parts) for parts in zip(masses, ends, strict=True))
    return DiscreteTradeoff(new_p, new_q, rounding + 2e-14)
