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
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr

from tightrope.errors import NotCertified
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.quadrature import gauss_legendre
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

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
        """ln of the bound on the absolute error of `log_call`, but for the running sums."""
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
    """The point where the error of the steeper tilt becomes the smaller one, by bisection."""
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


# ---- Normal mass of cells, divided between their two ends so that a second moment is kept exac----
# The standard normal density phi on a cell (s_i, s_{i+1}) goes to the ends with the weights
# (r_{i+1} - r)/(r_{i+1} - r_i) and (r - r_i)/(r_{i+1} - r_i), where r(s) is any affine function of
# e^{mu s}: the weights do not depend on which. Both total mass and the mean of r are kept.
#
# Error: Gauss-Legendre on an analytic integrand. With x = width * (|s| + mu + 1) and the Bernstein
# ellipse of parameter rho (half axis R = rho width / 4), the relative error of a panel is at most
# (64/15) rho^{-2n} e^{R (|s| + R + mu)} (R/width + 1); the table below keeps it under 2e-15.
CELL_ERROR = 2e-15
_PANELS = ((2e-3, 3), (2e-2, 4), (2e-1, 6), (1.0, 8))  # largest x, nodes
_BOUNDS = np.array([bound for bound, _ in _PANELS])
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)
_MOST_PANELS = 2e5  # of a chunk: a few megabytes
_CHUNK = 8192  # cells at a time: the work space stays below a megabyte


_GAUSS = {nodes: gauss_legendre(nodes) for _, nodes in _PANELS}
_RULES = {nodes: (0.5 * (x + 1.0), 0.5 * w) for nodes, (x, w) in _GAUSS.items()}  # on [0, 1]


@final
@dataclass(frozen=True)
class _Cells:
    """The begin and width of the mass of each cell, and the room to both ends."""

    begin: FloatArray
    width: FloatArray
    before: FloatArray
    after: FloatArray

    def chosen(self, which: NDArray[Any]) -> _Cells:
        return _Cells(self.begin[which], self.width[which], self.before[which], self.after[which])


def shared_mass(
    edges: FloatArray,
    mu: float,
    log_weight: FloatArray,
    low: float = -math.inf,
    high: float = math.inf,
) -> tuple[FloatArray, FloatArray]:
    """Mass given to the left and to the right end of each cell, times e^log_weight of the cell.

    Only the mass in (low, high) counts. The first cell may begin at -inf.
    """
    cells, begun = len(edges) - 1, 0
    left, right = np.empty(cells), np.empty(cells)
    if edges[0] == low == -math.inf:
        shares = _open_cell(float(edges[1]), min(float(edges[1]), high), mu)
        left[0], right[0] = (math.exp(log_weight[0]) * share for share in shares)
        begun = 1
    for start in range(begun, cells, _CHUNK):
        part = slice(start, min(start + _CHUNK, cells))
        ends = edges[part.start : part.stop + 1]
        left[part], right[part] = _shared(ends, mu, log_weight[part], low, high)
    return left, right


def _open_cell(end: float, high: float, mu: float) -> tuple[float, float]:
    """All mass below `high` <= end; the integral of e^{mu (s - end)}, its share to the right."""
    if high > mu:
        right = math.exp(mu * (0.5 * mu - end) + float(log_ndtr(high - mu)))
    else:
        scaled = 0.5 * float(erfcx((mu - high) / math.sqrt(2.0)))
        right = scaled * math.exp(mu * (high - end) - 0.5 * high * high)
    return max(0.0, float(ndtr(high)) - right), right


def _shared(
    edges: FloatArray, mu: float, log_weight: FloatArray, low: float, high: float
) -> tuple[FloatArray, FloatArray]:
    begin = np.clip(edges[:-1], low, high)
    end = np.clip(edges[1:], low, high)
    cells = _Cells(begin, end - begin, begin - edges[:-1], edges[1:] - end)
    x = cells.width * (np.maximum(np.abs(begin), np.abs(end)) + mu + 1.0)
    left, right = np.empty_like(x), np.empty_like(x)
    kind = np.searchsorted(_BOUNDS, x)
    for number in np.flatnonzero(np.bincount(kind)):
        which = np.flatnonzero(kind == number)
        some = cells.chosen(which), mu, log_weight[which]
        if number < len(_PANELS):
            left[which], right[which] = _narrow(*some, _PANELS[number][1])
        else:
            left[which], right[which] = _wide(*some, x[which])
    return left / _ROOT_TWO_PI, right / _ROOT_TWO_PI


def _narrow(
    cells: _Cells, mu: float, log_weight: FloatArray, nodes: int
) -> tuple[FloatArray, FloatArray]:
    place, weight = (values[:, None] for values in _RULES[nodes])
    width = cells.width
    whole = -np.expm1(-mu * (cells.before + width + cells.after))
    s = cells.begin + place * width
    mass = np.exp(log_weight - 0.5 * s * s) * weight
    to_left = -np.expm1(-mu * ((1.0 - place) * width + cells.after)) / whole
    left = (mass * to_left).sum(axis=0)
    return left * width, (mass.sum(axis=0) - left) * width


def _wide(
    cells: _Cells, mu: float, log_weight: FloatArray, x: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Cells cut into panels of x <= 1 first."""
    if float(x.sum()) > _MOST_PANELS:
        raise NotCertified(
            f"The cells of a lattice would need {x.sum():.3g} panels; the limit is "
            f"{_MOST_PANELS:g}. Its step is far too wide for losses this small; another method "
            "must answer."
        )
    panels = np.ceil(x).astype(np.int64)
    cell = np.repeat(np.arange(len(panels)), panels)
    number = np.arange(len(cell)) - np.repeat(np.cumsum(panels) - panels, panels)
    panel = (cells.width / panels)[cell]
    offset = number * panel
    all_of = cells.chosen(cell)
    log_weight = log_weight[cell]
    whole = -np.expm1(-mu * (all_of.before + all_of.width + all_of.after))
    left, right = np.zeros(len(cell)), np.zeros(len(cell))
    for place, weight in zip(*_RULES[8], strict=True):
        inside = offset + place * panel
        s = all_of.begin + inside
        mass = np.exp(log_weight - 0.5 * s * s) * (weight * panel)
        to_end = np.minimum(inside - all_of.width, 0.0) - all_of.after
        left += mass * (-np.expm1(mu * to_end) / whole)
        right += mass * (np.exp(mu * to_end) * -np.expm1(-mu * (inside + all_of.before)) / whole)
    size = len(panels)
    totals = (np.bincount(cell, part, size) for part in (left, right))
    left_total, right_total = (np.asarray(total, dtype=np.float64) for total in totals)
    return left_total, right_total
