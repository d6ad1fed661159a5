"""Measures on a coarser lattice, sums of measures, and sums of any number of rare terms.

A measure moved to cells of `factor` steps lies above or below in the convex order of e^x: the mass
m e^{-x} (the measure that x = ln r is the log ratio of) is moved inside the cells as in `lowered`;
the gap of a cell is its exact maximum over the fine points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.fft import irfft, rfft

from tightrope.numerics.lattice import LatticeMeasure, gathered, lowered, normalised
from tightrope.numerics.rounding import ULP, exp_or_inf, expm1_or_inf
from tightrope.validate import FloatArray


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


# ---- The law of a sum of rare terms: (1 + B)^n for a small positive measure B on a lattice -------
# The transform is exp(n ln(1 + x)) with x = b (phi - 1)/(1 + b), b the mass of B and phi the
# transform of B over b. It is made from x, not from 1 + x, so rounding grows with the number n b of
# terms and not with n.
#
# Error, as in numerics.lattice: an FFT is off by at most 5 log2(N) ulp of the sum of its inputs;
# this enters the exponent times n b; the mass that wraps around is bounded by a Chernoff bound,
# counted twice; the error of B counts n b times.
_HOPELESS = 100.0  # weights are at most 1: an error of e^100 says nothing
_REACHES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 13.0, 26.0, 52.0)  # tilts times the length


def compound(measure: LatticeMeasure, count: int, size: int) -> LatticeMeasure:
    """(1 + measure)^count on a window of `size` points from 0; a lattice point must be 0."""
    place = round(measure.first / measure.step)
    mass = math.exp(measure.log_scale)
    weights = np.zeros(size)
    index = (place + np.arange(len(measure.weights))) % size
    np.add.at(weights, index, measure.weights)
    unit = 5.0 * ULP * math.log2(size)
    share = mass / (1.0 + mass)
    change = share * (rfft(weights) - 1.0)
    # the complex log1p of NumPy forms 1 + x first and loses it
    real = 0.5 * np.log1p(2.0 * change.real + change.real**2 + change.imag**2)
    exponent = count * (real + 1j * np.arctan2(change.imag, 1.0 + change.real))
    # d ln(1 + x) = dx/(1 + x); 1 + x is at least 1 - 2 share in modulus
    room = 1.0 - 2.0 * share
    off = count * share * (unit + 8.0 * ULP) / room if room > 0.05 else _HOPELESS
    bound = np.exp(np.minimum(exponent.real + off, 0.0))
    forward = bound * math.expm1(min(off, _HOPELESS)) + bound * 8.0 * ULP * np.abs(exponent)
    backward = unit * bound
    result = irfft(np.exp(exponent), size, overwrite_x=True)
    np.maximum(result, 0.0, out=result)
    terms = count * share
    log_scale = count * math.log1p(mass)
    error = expm1_or_inf(terms * measure.error) + 2.0 * _outside(measure, count, size)
    return replace(
        measure,
        first=0.0,
        weights=result,
        log_scale=log_scale,
        error=error + 16.0 * ULP * (1.0 + abs(log_scale) + terms * (1.0 + abs(measure.log_scale))),
        uniform_error=2.0 * float((forward + backward).sum()) / size,
        square_error=math.sqrt(2.0 / size)
        * float(np.linalg.norm(forward) + np.linalg.norm(backward)),
        closed=False,
    )


def _outside(measure: LatticeMeasure, count: int, size: int) -> float:
    """Chernoff bound on the mass right of the window, relative to all of it."""
    mass = math.exp(measure.log_scale)
    length = measure.first + measure.step * len(measure.weights)
    best = 0.0
    for reach in _REACHES:
        theta = reach / length
        log_moment = min(theta * measure.first + measure.log_moment(theta), 700.0)
        value = count * math.log1p(mass / (1.0 + mass) * math.expm1(log_moment))
        cut_off = theta * measure.step * size
        best = min(best, value - cut_off + 8.0 * ULP * (abs(value) + cut_off))
    return math.exp(best)
