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

import numpy as np

from tightrope.numerics.quadrature import gauss_legendre
from tightrope.validate import FloatArray

__all__ = ["shared_mass", "CELL_ERROR"]

CELL_ERROR = 2e-15
_PANELS = ((2e-3, 3), (2e-2, 4), (2e-1, 6), (1.0, 8))  # largest x, nodes
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


def _rule(nodes: int) -> tuple[FloatArray, FloatArray]:
    x, w = gauss_legendre(nodes)
    return 0.5 * (x + 1.0), 0.5 * w


_RULES = {nodes: _rule(nodes) for _, nodes in _PANELS}


def shared_mass(
    edges: FloatArray, mu: float, log_weight: FloatArray, extra: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Mass given to the left and to the right end of each cell, times e^log_weight of the cell.

    The first cell may begin `extra` (even inf) left of edges[0], with no mass there.
    """
    width = np.diff(edges)
    hidden = np.zeros_like(width)
    hidden[0] = extra
    reach = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:])) + mu + 1.0
    x = width * reach
    left, right = np.empty_like(width), np.empty_like(width)
    wide = x > _PANELS[-1][0]
    narrow = ~wide
    if narrow.any():
        cells = (edges[:-1][narrow], width[narrow], hidden[narrow])
        left[narrow], right[narrow] = _narrow(*cells, mu, log_weight[narrow], x[narrow].max())
    if wide.any():
        cells = (edges[:-1][wide], width[wide], hidden[wide])
        left[wide], right[wide] = _wide(*cells, mu, log_weight[wide], x[wide])
    return left / _ROOT_TWO_PI, right / _ROOT_TWO_PI


def _narrow(
    start: FloatArray,
    width: FloatArray,
    hidden: FloatArray,
    mu: float,
    log_weight: FloatArray,
    largest: float,
) -> tuple[FloatArray, FloatArray]:
    nodes = next(count for bound, count in _PANELS if largest <= bound)
    whole = -np.expm1(-mu * (width + hidden))
    left, right = np.zeros_like(width), np.zeros_like(width)
    for place, weight in zip(*_RULES[nodes], strict=True):
        s = start + place * width
        mass = np.exp(log_weight - 0.5 * s * s) * (weight * width)
        to_left = -np.expm1(mu * (place - 1.0) * width) / whole
        left += mass * to_left
        right += mass * (1.0 - to_left)
    return left, right


def _wide(
    start: FloatArray,
    width: FloatArray,
    hidden: FloatArray,
    mu: float,
    log_weight: FloatArray,
    x: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Cells cut into panels of x <= 1 first."""
    panels = np.ceil(x).astype(np.int64)
    cell = np.repeat(np.arange(len(start)), panels)
    number = np.arange(len(cell)) - np.repeat(np.cumsum(panels) - panels, panels)
    panel = (width / panels)[cell]
    offset = number * panel
    first, whole_width, log_weight = start[cell], width[cell], log_weight[cell]
    hidden = hidden[cell]
    whole = -np.expm1(-mu * (whole_width + hidden))
    left, right = np.zeros(len(cell)), np.zeros(len(cell))
    for place, weight in zip(*_RULES[8], strict=True):
        inside = offset + place * panel
        s = first + inside
        mass = np.exp(log_weight - 0.5 * s * s) * (weight * panel)
        beyond = np.minimum(inside - whole_width, 0.0)
        left += mass * (-np.expm1(mu * beyond) / whole)
        right += mass * (np.exp(mu * beyond) * -np.expm1(-mu * (inside + hidden)) / whole)
    size = len(start)
    totals = (np.bincount(cell, part, size) for part in (left, right))
    left_total, right_total = (np.asarray(total, dtype=np.float64) for total in totals)
    return left_total, right_total
