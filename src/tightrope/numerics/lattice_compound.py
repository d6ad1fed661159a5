"""The law of a sum of rare terms: (1 + B)^n for a small positive measure B on a lattice.

The transform is exp(n ln(1 + x)) with x = b (phi - 1)/(1 + b), b the mass of B and phi the
transform of B over b. It is made from x, not from 1 + x, so rounding grows with the number n b of
terms and not with n.

Error, as in numerics.lattice: an FFT is off by at most 5 log2(N) ulp of the sum of its inputs, and
this enters the exponent times n b; the mass that wraps around is bounded by a Chernoff bound,
counted twice; the error of B counts n b times.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.fft import irfft, rfft

from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.rounding import ULP, expm1_or_inf

__all__ = ["compound"]

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
