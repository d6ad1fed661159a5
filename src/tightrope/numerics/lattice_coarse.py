"""A lattice measure on a coarser lattice, above or below it in the convex order of e^x.

The mass m e^{-x} (the measure that x = ln r is the log ratio of) is moved inside cells of `factor`
steps as in numerics.lattice_convex; the gap of a cell is its exact maximum over the fine points.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tightrope.numerics.lattice import LatticeMeasure, normalised
from tightrope.numerics.lattice_convex import gathered, lowered

__all__ = ["coarsened"]

_EPS = 2.0**-52


def coarsened(
    measure: LatticeMeasure, factor: int, side: Literal["upper", "lower"]
) -> LatticeMeasure:
    """The measure on a lattice of `factor` steps; its error covers the rounding errors before."""
    weights, h, c = measure.weights, measure.step, measure.rate
    # weights at the level of rounding would spoil every later tail bound; they go to the error
    noise = measure.uniform_error
    kept = np.nonzero(weights > noise)[0]
    low, high = int(kept[0]), int(kept[-1]) + 1
    cells = -(-(high - low) // factor)
    padded = np.zeros(cells * factor)
    padded[: high - low] = np.where(weights[low:high] > noise, weights[low:high], 0.0)
    dropped = float(weights[weights <= noise].sum())
    fine = padded.reshape(cells, factor)
    start = measure.first + low * h
    wide = factor * h
    position = h * np.arange(factor)
    # tilted at the left end of the cell, in units of m e^{-x}
    units = np.exp(-(c + 1.0) * position)
    share = np.expm1(position) / math.expm1(wide)
    left, right = fine @ (units * (1.0 - share)), fine @ (units * share)
    tilt = (c + 1.0) * wide
    clipped = 0.0
    if side == "upper":
        masses, first = gathered(left, right, tilt), start
    else:
        before = np.cumsum(fine * (units * share), axis=1)
        after = left[:, None] - np.cumsum(fine * (units * (1.0 - share)), axis=1)
        gap = ((1.0 - share) * before + share * np.maximum(after, 0.0)).max(axis=1)
        masses, clipped = lowered(
            left, right, gap + 4.0 * _EPS * factor * (left + right), wide, tilt, 0.0
        )
        first = start - wide
    inflation = math.exp(tilt)
    size = len(weights)
    rounding = min(noise * size, measure.square_error * math.sqrt(size)) + 1.01 * dropped
    lost = (measure.error + rounding) * inflation + clipped
    slip = measure.slip + 4.0 * _EPS * (abs(measure.first) + high * h)
    closed = measure.closed and high == len(weights)
    relative = 64.0 * _EPS * factor
    return normalised(first, wide, masses, measure.log_scale, c, lost, relative, slip, closed)
