"""E[(1 - e^{a - X})_+] of a tilted lattice measure, for many a at once, in the log domain.

Error: with rate c and step h, an error of at most u in each weight, of at most e in their sum and
of at most d in the positions changes the value by at most e^{log_scale - c a} (u S + e Z + d), with
f(x) = e^{-c x}(1 - e^{-x}), |f'| <= 1, S = sum over the lattice of f <= 1/(h c (c+1)) + Z and
Z = max f = c^c/(1+c)^{1+c}. Errors with a sum of squares v^2 change it by v R instead of u S, with
R^2 = sum over the lattice of f^2 <= 1/(2 h c (c+1)(2c+1)) + Z^2 (Cauchy-Schwarz). Where the
measure is closed, nothing lies beyond its last point and f is at most the distance to it. The
running sums of positive terms add N ulp, relative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

__all__ = ["TailTable", "TailLadder", "tail_table"]

_BLOCK_RANGE = 300.0  # nats of tilt inside one block of the running sums
_ALL = 1e300  # ln of an error beside which nothing is left
_LONGEST_BLOCK = 1 << 14  # points: keeps the work space small


@final
@dataclass(frozen=True)
class TailTable:
    """mass[i] = sum over j >= i of m_j and call[i] = E[(1 - e^{x_i - X})_+], scaled by block."""

    measure: LatticeMeasure  # its weights are dropped: the two columns hold all that is asked
    mass: FloatArray
    call: FloatArray
    log_scale: FloatArray  # one for each block
    block: int
    size: int  # points of the lattice
    start: int = 0  # the first of them kept

    def log_call(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln E[(1 - e^{a - X})_+] as stored, and ln of the bound on its absolute error."""
        m = self.measure
        index = np.clip(np.ceil((points - m.first) / m.step), 0, self.size - 1).astype(np.int64)
        below = points - (m.first + m.step * index)  # a - x_i, negative inside the lattice
        beyond = below > m.step  # right of the last lattice point: nothing is left
        below = np.minimum(below, 0.0)
        kept = index - self.start
        value = -np.expm1(below) * self.mass[kept] + np.exp(below) * self.call[kept]
        with np.errstate(divide="ignore"):
            log_value = np.log(np.where(beyond, 0.0, value)) + self.log_scale[index // self.block]
        return log_value, self.log_error(points)

    def log_error(self, points: FloatArray) -> FloatArray:
        """ln of the bound on the absolute error of `log_call`, running sums aside."""
        m = self.measure
        if math.isinf(m.error):
            return np.full(points.shape, _ALL)
        c, last = m.rate, m.first + m.step * (self.size - 1)
        largest = math.exp(c * math.log(c / (1.0 + c)) - math.log1p(c)) if c > 0 else 1.0
        reach = np.maximum(last - points, 0.0)
        whole = np.minimum(reach, 1.0) * (reach / m.step + 1.0)  # every term is below min(x, 1)
        if c > 0:
            whole = np.minimum(whole, 1.0 / (m.step * c * (c + 1.0)) + largest)
        one = np.minimum(largest, reach) if m.closed else largest
        each = m.uniform_error * whole
        if m.square_error < math.inf:
            root = np.minimum(reach, 1.0) * np.sqrt(reach / m.step + 1.0)
            if c > 0:
                squares = 1.0 / (2.0 * m.step * c * (c + 1.0) * (2.0 * c + 1.0)) + largest**2
                root = np.minimum(root, math.sqrt(squares))
            each = np.minimum(each, m.square_error * root)
        exponents = 4.0 * ULP * (abs(m.log_scale) + c * np.abs(points))
        total = each + (m.error + exponents) * one + m.slip * (1.0 + m.error)
        # 1 % more: the exponents are rounded
        return np.log(np.maximum(1.01 * total, 1e-300)) + m.log_scale - c * points

    def between(self, low: float, high: float) -> TailTable:
        """The part of it that answers for points in [low, high]."""
        m, last = self.measure, self.size - 1
        start = min(max(math.floor((max(low, m.first) - m.first) / m.step) - 1, 0), last)
        reach = min((high - m.first) / m.step, last)  # rounded as in log_call
        stop = min(max(math.ceil(reach) + 2, start + 1), self.size)
        part = slice(start - self.start, stop - self.start)
        return replace(self, mass=self.mass[part].copy(), call=self.call[part].copy(), start=start)


@final
class TailLadder:
    """Tables of one law at steeper and steeper tilts; each answers where its error is smallest."""

    def __init__(self) -> None:
        self.tables: list[TailTable] = []
        self.turns: list[float] = []  # points where the next table takes over

    @property
    def size(self) -> int:
        """Points of the largest lattice."""
        return max((table.size for table in self.tables), default=1)

    def add(self, table: TailTable) -> None:
        """A table with a steeper tilt than those before."""
        if self.tables:
            before, lowest = self.tables[-1], self.turns[-1] if self.turns else -math.inf
            turn = max(_turn(before, table), lowest)
            self.tables[-1] = before.between(lowest, turn)
            self.turns.append(turn)
            table = table.between(turn, math.inf)
        self.tables.append(table)

    def log_call(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """As that of a table."""
        if len(self.tables) == 1:
            return self.tables[0].log_call(points)
        choice = np.searchsorted(np.array(self.turns), points)
        values, errors = np.empty_like(points), np.empty_like(points)
        for i, table in enumerate(self.tables):
            chosen = choice == i
            if chosen.any():
                values[chosen], errors[chosen] = table.log_call(points[chosen])
        return values, errors


def _turn(mild: TailTable, steep: TailTable) -> float:
    """Where the error of the steeper tilt becomes the smaller one, by bisection."""
    ends = [(t.measure.first, t.measure.first + t.measure.step * t.size) for t in (mild, steep)]
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    for _ in range(30):
        middle = np.array([0.5 * (low + high)])
        if mild.log_error(middle)[0] <= steep.log_error(middle)[0]:
            low = float(middle[0])
        else:
            high = float(middle[0])
    return high


def tail_table(measure: LatticeMeasure) -> TailTable:
    n, c, h = len(measure.weights), measure.rate, measure.step
    block = max(1, min(n, _LONGEST_BLOCK, int(_BLOCK_RANGE / ((c + 1.0) * h))))
    mass, call = np.empty(n), np.empty(n)
    starts = range(0, n, block)
    scales = np.empty(len(starts))
    right_mass = right_call = 0.0  # at the first point of the block to the right
    for b in reversed(range(len(starts))):
        low, high = starts[b], min(starts[b] + block, n)
        x = h * np.arange(high - low)
        scales[b] = measure.log_scale - c * (measure.first + h * low)
        change = math.exp(-c * h * (high - low)) if high < n else 0.0
        m = measure.weights[low:high] * np.exp(-c * x)
        mass[low:high] = np.cumsum(m[::-1])[::-1] + right_mass * change
        # e^{-x_i} call_i = sum over j > i of mass_j (e^{-x_{j-1}} - e^{-x_j})
        drop = np.exp(np.minimum(h - x, 0.0)) * -math.expm1(-h) * mass[low:high]
        drop[0] = 0.0
        end_drop = math.exp(-h * (high - low - 1)) * -math.expm1(-h) * right_mass * change
        end_call = math.exp(-h * (high - low)) * right_call * change
        after = np.append(np.cumsum(drop[::-1])[::-1][1:], 0.0) + (end_drop + end_call)
        call[low:high] = np.exp(x) * after
        right_mass, right_call = float(mass[low]), float(call[low])
    return TailTable(replace(measure, weights=np.empty(0)), mass, call, scales, block, n)
