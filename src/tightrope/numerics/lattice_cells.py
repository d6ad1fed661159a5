"""Normal mass of cells, divided between their two ends so that a second moment is kept exactly.

The standard normal density phi on a cell (s_i, s_{i+1}) goes to the ends with the weights
(r_{i+1} - r)/(r_{i+1} - r_i) and (r - r_i)/(r_{i+1} - r_i), where r(s) is any affine function of
e^{mu s}: the weights do not depend on which. Both total mass and the mean of r are kept.

Error: Gauss-Legendre on an analytic integrand. With x = width * (|s| + mu + 1) and the Bernstein
ellipse of parameter rho (half axis R = rho width / 4), the relative error of a panel is at most
(64/15) rho^{-2n} e^{R (|s| + R + mu)} (R/width + 1); the table below keeps it under 2e-15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr

from tightrope.errors import NotCertified
from tightrope.numerics.quadrature import gauss_legendre
from tightrope.validate import FloatArray

__all__ = ["shared_mass", "CELL_ERROR"]

CELL_ERROR = 2e-15
_PANELS = ((2e-3, 3), (2e-2, 4), (2e-1, 6), (1.0, 8))  # largest x, nodes
_BOUNDS = np.array([bound for bound, _ in _PANELS])
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)
_MOST_PANELS = 2e5  # of a chunk: a few megabytes
_CHUNK = 8192  # cells at a time: the work space stays below a megabyte


def _rule(nodes: int) -> tuple[FloatArray, FloatArray]:
    x, w = gauss_legendre(nodes)
    return 0.5 * (x + 1.0), 0.5 * w


_RULES = {nodes: _rule(nodes) for _, nodes in _PANELS}


@final
@dataclass(frozen=True)
class _Cells:
    """Where the mass of each cell begins, how wide it lies, and the room to both ends."""

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
