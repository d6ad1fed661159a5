"""A lattice measure on a coarser lattice, above or below it in the convex order of e^x.

The mass m e^{-x} (the measure that x = ln r is the log ratio of) is moved inside cells of `factor`
steps as in numerics.lattice_convex; the gap of a cell is its exact maximum over the fine points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tightrope.numerics.lattice import LatticeMeasure, normalised
from tightrope.numerics.lattice_convex import gathered, lowered
from tightrope.numerics.rounding import ULP, exp_or_inf
from tightrope.validate import FloatArray

__all__ = ["coarsened", "mixed"]


def coarsened(
    measure: LatticeMeasure,
    factor: int,
    side: Literal["upper", "lower"],
    anchor: float | None = None,
) -> LatticeMeasure:
    """The measure on a lattice of `factor` steps; its error covers the rounding errors before.

    `anchor` is a point of the fine lattice that the coarse one shall contain.
    """
    h, c = measure.step, measure.rate
    weights, rounding = _without_noise(measure)
    kept = np.nonzero(weights)[0]
    low, high = int(kept[0]), int(kept[-1]) + 1
    pad = 0 if anchor is None else (round((measure.first - anchor) / h) + low) % factor
    cells = -(-(pad + high - low) // factor)
    padded = np.zeros(cells * factor)
    padded[pad : pad + high - low] = weights[low:high]
    fine = padded.reshape(cells, factor)
    start = measure.first + (low - pad) * h
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
            left, right, gap + 4.0 * ULP * factor * (left + right), wide, tilt, 0.0
        )
        first = start - wide
    inflation = math.exp(tilt)
    lost = (measure.error + rounding) * inflation + clipped
    slip = measure.slip + 4.0 * ULP * (abs(measure.first) + (high + factor) * h)
    closed = measure.closed and high == len(weights)
    relative = 64.0 * ULP * factor
    return normalised(first, wide, masses, measure.log_scale, c, lost, relative, slip, closed)


def _without_noise(measure: LatticeMeasure) -> tuple[FloatArray, float]:
    """The weights above the level of rounding, and the error of all of them together.

    Smaller ones would spoil every later tail bound; they go to the error.
    """
    weights, noise, n = measure.weights, measure.uniform_error, len(measure.weights)
    small = weights <= noise
    rounding = min(noise * n, measure.square_error * math.sqrt(n)) if noise > 0.0 else 0.0
    return np.where(small, 0.0, weights), rounding + 1.01 * float(weights[small].sum())


def mixed(parts: Sequence[tuple[LatticeMeasure, float]], log_left_out: float) -> LatticeMeasure:
    """The sum of measures on one lattice, each times e^{its number}; closed where all are.

    log_left_out: ln of the tilted mass of what is missing.
    """
    first, step = min(m.first for m, _ in parts), parts[0][0].step
    places = [(m.first - first) / step for m, _ in parts]
    size = max(round(p) + len(m.weights) for p, (m, _) in zip(places, parts, strict=True))
    scale = max(m.log_scale + log for m, log in parts)
    masses, error = np.zeros(size), 0.0
    for place, (m, log) in zip(places, parts, strict=True):
        share, n = math.exp(m.log_scale + log - scale), len(m.weights)
        weights, rounding = _without_noise(m)
        masses[round(place) : round(place) + n] += share * weights
        error += share * (m.error + rounding)
    error += 1.01 * exp_or_inf(log_left_out - scale)
    off = max(abs(place - round(place)) for place in places) * step
    slip = max(m.slip for m, _ in parts) + off + 4.0 * ULP * (abs(first) + size * step)
    exponents = max(abs(m.log_scale) + abs(log) for m, log in parts)
    closed = all(m.closed for m, _ in parts)
    return normalised(
        first, step, masses, scale, parts[0][0].rate, error, 8.0 * ULP * exponents, slip, closed
    )
