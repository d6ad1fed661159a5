"""Positive measures on a lattice, exponentially tilted, and powers of them by FFT.

A measure puts `weights[i] * exp(log_scale - rate * x_i)` at x_i = first + i * step; the weights
sum to 1. Its `error` bounds the sum of |stored - meant| weights.

Error of `convolve`, all bounded and stored with the result (docs/certificate_argument.md, 6.2):
* uniform_error: rounding. Every output of an FFT (of radices 2, 3 and 4) is a sum of inputs times
  twiddle factors over at most log2(N) levels, so each is off by at most 5 log2(N) ulp of the sum of
  |inputs|; a power n turns an error e into |phi|^n (1 + e/|phi|)^n - |phi|^n. It holds for each
  weight.
* square_error: the same rounding in the Euclidean norm, by Parseval; an FFT loses at most the same
  5 log2(N) ulp there (Higham, Accuracy and Stability, Theorem 24.2). Smaller over many weights.
* error: n times the error of each factor, plus twice the mass outside the window (Chernoff),
  which wraps around. It holds for the sum over all weights.
* slip: how far the lattice may be from where it is meant to be: an ulp of each position.
Chernoff exponents are differences of large numbers, so their rounding is part of the bound. A law
that sits at the end of its support keeps that end inside the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from tightrope.errors import NotCertified
from tightrope.numerics.rounding import ULP, expm1_or_inf
from tightrope.validate import FloatArray

_SMALL = 4096.0  # a window this small need not be smaller
_LARGEST = 1 << 22  # points of a measure: some megabytes
_ROW = 256  # indices whose exponentials are made once
_LOST = 1e-300  # more than underflow takes from a sum of weights
_CHUNK = 8192  # frequencies at a time: keeps the work space small
_NEGLIGIBLE = -48.0  # frequencies whose power is below e^-48 go to the error


def check_size(points: float) -> None:
    """Refuse a measure that is too long, before it is laid out."""
    if not points <= _LARGEST:
        raise NotCertified(
            f"The lattice of one step would need {points:.3g} points; the limit is {_LARGEST}. "
            "Losses of such different sizes are for another method."
        )


@final
@dataclass(frozen=True)
class LatticeMeasure:
    first: float
    step: float
    weights: FloatArray
    log_scale: float
    rate: float
    error: float = 0.0
    uniform_error: float = 0.0
    square_error: float = math.inf  # root of the sum of squares; no bound where none was made
    slip: float = 0.0
    closed: bool = True  # is nothing meant to lie right of the last point?

    def log_moment(self, change: float) -> float:
        """ln of a bound on the sum of weights * e^{change * index * step}."""
        rate, last = abs(change) * self.step, len(self.weights) - 1
        slack = 4.0 * ULP * (rate * last + last + 16.0)
        falling = self.weights[::-1] if change > 0.0 else self.weights
        total = _discounted(falling, rate) + _LOST  # what underflows is less
        top = max(change, 0.0) * self.step * last
        if total > 1e-290:
            return top + math.log(total) + slack
        with np.errstate(divide="ignore"):
            logs = np.log(falling) - rate * np.arange(last + 1)
        highest = float(logs.max())
        return top + highest + math.log(float(np.exp(logs - highest).sum())) + slack


def _discounted(weights: FloatArray, rate: float) -> float:
    """The sum of weights[i] e^{-rate i}, rows of a table at a time: few exponentials."""
    rows = len(weights) // _ROW
    within = np.exp(-rate * np.arange(_ROW))
    table = weights[: rows * _ROW].reshape(rows, _ROW) @ within
    starts = np.exp(-rate * _ROW * np.arange(rows + 1))
    rest = weights[rows * _ROW :] @ within[: len(weights) - rows * _ROW]
    return float(starts[:rows] @ table + starts[rows] * rest)


def normalised(
    first: float,
    step: float,
    masses: FloatArray,
    log_scale: float,
    rate: float,
    absolute_error: float,
    relative_error: float,
    slip: float = 0.0,
    closed: bool = True,
) -> LatticeMeasure:
    """A measure from tilted masses of any total; the error covers their sum and its logarithm."""
    total = float(masses.sum())
    if not total > 0.0:
        raise NotCertified("Nothing of a step is left on a lattice this coarse; use a finer one.")
    relative_error += 8.0 * ULP * (8.0 + abs(log_scale) + abs(math.log(total)))
    return LatticeMeasure(
        first,
        step,
        masses / total,
        log_scale + math.log(total),
        rate,
        absolute_error / total + relative_error,
        slip=slip,
        closed=closed,
    )


def fitted(
    factors: Sequence[tuple[LatticeMeasure, int]],
    width: float,
    thetas: tuple[float, float],
    outside: float,
    largest: int,
) -> LatticeMeasure:
    """`convolve` on a window about as wide as `width`, wider where more than `outside` is missed.

    Measures on a coarse lattice spread further than what they stand for. No window is larger than
    `largest` points, nor than 4096 or the whole support need be.
    """
    reach, step = support(factors), factors[0][0].step
    for spread in (1.0, 2.0, 4.0, 8.0, 16.0):
        exact = min(max(_SMALL, 1.01 * spread * width / step + 8.0), reach)
        size = min(largest, fast_size(exact))
        tilts = (thetas[0] / spread, thetas[1] / spread)
        window = _window(factors, size, tilts)
        if window[1] <= outside or size == largest:
            break
    return _convolved(factors, size, window)


def fast_size(points: float) -> int:
    """The next larger power of two or three quarters of one."""
    size = 1 << math.ceil(math.log2(max(points, 16.0)))
    return 3 * size // 4 if points <= 3 * size // 4 else size


def convolve(
    factors: Sequence[tuple[LatticeMeasure, int]], size: int, thetas: tuple[float, float]
) -> LatticeMeasure:
    """The product of the measures, each to its power, on a window of `size` (a `fast_size`).

    `thetas` are the further tilts, right (> 0) and left (> 0), that bound the mass outside.
    """
    return _convolved(factors, size, _window(factors, size, thetas))


def _convolved(
    factors: Sequence[tuple[LatticeMeasure, int]], size: int, window: tuple[int, float]
) -> LatticeMeasure:
    step, rate = factors[0][0].step, factors[0][0].rate
    power, uniform, square = _power(factors, size)
    start, outside = window
    weights = np.roll(irfft(power, size, overwrite_x=True), -(start % size))[: support(factors)]
    np.maximum(weights, 0.0, out=weights)  # the true ones are not negative
    first = math.fsum(count * measure.first for measure, count in factors) + start * step
    ulps = abs(start * step) + size * step + sum(n * abs(m.first) for m, n in factors)
    log_scale = math.fsum(count * measure.log_scale for measure, count in factors)
    return LatticeMeasure(
        first,
        step,
        weights,
        log_scale,
        rate,
        expm1_or_inf(sum(n * m.error for m, n in factors))  # product of (1 + error)^n, less 1
        + 2.0 * outside
        + 4.0 * ULP * math.fsum(n * abs(m.log_scale) for m, n in factors),
        uniform,
        square,
        math.fsum(n * m.slip for m, n in factors) + 4.0 * ULP * ulps,
        all(m.closed for m, _ in factors) and start + size >= support(factors),
    )


def _power(
    factors: Sequence[tuple[LatticeMeasure, int]], size: int
) -> tuple[NDArray[np.complex128], float, float]:
    """The transform of the product, and the bounds on the error of each weight and of all."""
    unit = 5.0 * ULP * math.log2(size)
    transforms = []
    for measure, _ in factors:
        weights = measure.weights
        if len(weights) > size:  # folded; what is shorter is padded
            folded = np.bincount(np.arange(len(weights)) % size, weights, size)
            weights = np.asarray(folded, dtype=np.float64)
        transforms.append(rfft(weights, size))
    counts = [count for _, count in factors]
    power = np.zeros(size // 2 + 1, complex)
    sums = np.zeros(4)  # of both errors and of their squares
    for start in range(0, len(power), _CHUNK):
        part = slice(start, start + _CHUNK)
        some = [transform[part] for transform in transforms]
        power[part], forward, bound = _powers(some, counts, unit)
        backward = unit * bound
        sums += forward.sum(), backward.sum(), forward @ forward, backward @ backward
    uniform = 2.0 * float(sums[0] + sums[1]) / size
    square = math.sqrt(2.0 / size) * float(np.sqrt(sums[2:]).sum())
    return power, uniform + math.exp(_NEGLIGIBLE), square + math.exp(_NEGLIGIBLE)


def _powers(
    transforms: list[NDArray[np.complex128]], counts: list[int], unit: float
) -> tuple[NDArray[np.complex128], FloatArray, FloatArray]:
    """Some values of the transform of the product, the bounds on their errors and on them.

    The bounds leave out what is negligible.
    """
    # (a + u)^n - a^n <= n u (a + u)^(n-1), and the same for products
    moduli = [np.abs(transform) + unit for transform in transforms]
    log_bound = np.zeros(len(transforms[0]))
    for n, modulus in zip(counts, moduli, strict=True):
        log_bound += n * np.log(modulus)
    active = np.nonzero(log_bound > _NEGLIGIBLE)[0]
    log_power = np.zeros(len(active), complex)
    slope = np.zeros(len(active))
    for n, transform, modulus in zip(counts, transforms, moduli, strict=True):
        chosen = transform[active]
        chosen[chosen == 0.0] = unit
        log_power += n * np.log(chosen)
        slope += n / modulus[active]
    bound = np.exp(log_bound[active])
    power = np.zeros(len(transforms[0]), complex)
    power[active] = np.exp(log_power)
    # logarithms are off by an ulp of their modulus and of pi, times the count
    forward = bound * (unit * slope + 4.0 * ULP * (4.0 * sum(counts) - log_bound[active]))
    return power, forward, bound


def support(factors: Sequence[tuple[LatticeMeasure, int]]) -> int:
    """Points that the product can reach."""
    return 1 + sum(count * (len(measure.weights) - 1) for measure, count in factors)


def _window(
    factors: Sequence[tuple[LatticeMeasure, int]], size: int, thetas: tuple[float, float]
) -> tuple[int, float]:
    """First index of the window, and the Chernoff bound on the mass outside of it."""
    step = factors[0][0].step
    if support(factors) <= size:
        return 0, 0.0
    # steeper than this says nothing more: e^-40 on one step
    tilts = [min(theta, 40.0 / step) for theta in thetas]
    right, left = (
        sum(count * measure.log_moment(sign * tilt) for measure, count in factors)
        for sign, tilt in zip((1.0, -1.0), tilts, strict=True)
    )
    # right: exp(right - tilt0 step (start + size)); left: exp(left + tilt1 step (start - 1));
    # both are equal at this start, unless the support ends before
    start = round((right - left - tilts[0] * step * size) / (step * sum(tilts)))
    start = min(max(start, 0), support(factors) - size)
    ends = ((right, -tilts[0] * step * (start + size)), (left, tilts[1] * step * (start - 1)))
    outside = 0.0
    for end, cut_off in zip(ends, (start + size < support(factors), start > 0), strict=True):
        if cut_off:
            rounding = 4.0 * ULP * (abs(end[0]) + abs(end[1]))
            outside += math.exp(min(math.fsum(end) + rounding, 0.0))
    return start, outside


# ---- From masses shared between cell ends to a measure below in the convex order, on the same ----
# A measure of the variable r on r_i = r_0 e^{i h} is described by its call function
# C(k) = int (r - k)_+, a convex function. Sharing the mass of every cell between its ends turns C
# into the chords of C: an upper bound. Lowering the chords at r_i by c_i gives a piecewise linear
# function with its kinks on the lattice, the call function of the masses
#     low_i = up_i - [ (c_{i+1} - c_i)/(r_{i+1} - r_i) - (c_i - c_{i-1})/(r_i - r_{i-1}) ].
# It lies below C where the c interpolated on each cell cover the gap between chord and C. The gap
# at the share t of a cell of width w with shares (left, right) is at most min(t left, (1 - t)
# right) w: so either both ends drop by the largest gap, or, on steep cells, one end alone drops by
# the share of the other end times w. Both bounds are of second order in h. Where low_i < 0
# nevertheless, the kink is replaced by a chord; what is still negative is set to 0 and reported as
# clipped: an error.
#
# Everything is stored tilted: masses times e^{w i h}.
_SWEEPS = 20
_STEEP = 0.25  # ratio of the masses of two cells from which one end alone drops


def gathered(left: FloatArray, right: FloatArray, tilt: float) -> FloatArray:
    """Masses at the n+1 ends of n cells; `tilt` = w h moves a cell's factor to its right end."""
    masses = np.zeros(len(left) + 1)
    masses[:-1] += left
    masses[1:] += right * math.exp(tilt)
    return masses


def gap_bound(left: FloatArray, right: FloatArray, peak: FloatArray) -> FloatArray:
    """Largest gap over width, when `peak` bounds (density of r) * width in each cell.

    It is at most peak/8 and, whatever the density, left right/(left + right).
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        free = np.where(left + right > 0, left * right / (left + right), 0.0)
    return np.minimum(peak / 8.0, free)


def lowered(
    left: FloatArray,
    right: FloatArray,
    gap: FloatArray,
    step: float,
    tilt: float,
    core: float,
) -> tuple[FloatArray, float]:
    """Masses of the lower measure, and the mass clipped.

    `gap` bounds the largest gap in each cell, over the width of the cell. `core` is an atom one
    step left of the first cell (already in place, tilted there); 0 when there is none.
    """
    # a cell is covered by both ends at its gap, or by one end alone at the other end's share
    mass = left + right
    falling, rising = np.zeros(len(mass), bool), np.zeros(len(mass), bool)
    falling[:-1] = mass[1:] * math.exp(-tilt) < _STEEP * mass[:-1]
    rising[1:] = (mass[:-1] * math.exp(tilt) < _STEEP * mass[1:]) & ~falling[1:]
    if len(mass) > 3:  # so is the cell beside a last or first one that cannot bear its gap
        if gap[-2] * math.exp(tilt - step) > right[-1]:
            falling[-2], rising[-2] = True, False
        if core == 0.0 and gap[1] > left[0] * math.exp(tilt - step):
            falling[1], rising[1] = False, True
    at_left = np.where(falling, right, np.where(rising, 0.0, gap))
    at_right = np.where(rising, left, np.where(falling, 0.0, gap))
    drop = np.zeros(len(left) + 2)  # at core, first end, ..., last end, in units of the cell right
    drop[1:-1] = at_left
    drop[2:] = np.maximum(drop[2:], at_right * math.exp(tilt - step))
    # nothing may be taken left of the first or right of the last end: those lines are exact
    drop[-1] = 0.0
    if core == 0.0:
        drop[1] = 0.0
        if len(drop) > 3:
            drop[2] = max(drop[2], left[0] * math.exp(tilt - step))
    if len(drop) > 2:
        drop[-2] = max(drop[-2], right[-1]) if len(left) > 1 or core > 0.0 else 0.0
    masses = np.append(core, gathered(left, right, tilt))
    masses += (1.0 + math.exp(step)) * drop
    masses[:-1] -= math.exp(step - tilt) * drop[1:]
    masses[1:] -= math.exp(tilt) * drop[:-1]
    # differences that vanish exactly (at both ends they do) come out as a few ulp of their terms
    size = np.convolve(
        np.append(core, gathered(left, right, tilt)) + 4.0 * drop, np.ones(3), "same"
    )
    masses[np.abs(masses) <= 32.0 * ULP * size] = 0.0
    _repair(masses, step, tilt)
    clipped = float(-masses[masses < 0.0].sum())
    return np.maximum(masses, 0.0), clipped


def _repair(masses: FloatArray, step: float, tilt: float) -> None:
    """Replace concave kinks (negative masses) by the chord between the points beside, in place.

    The chord lies below, so the result stays a lower bound: the mass moves to both sides
    with the mean of r kept.
    """
    to_right = 1.0 / (1.0 + math.exp(step))
    for _ in range(_SWEEPS):
        kinks = np.nonzero(masses[1:-1] < 0.0)[0] + 1
        if len(kinks) == 0:
            return
        moved = masses[kinks]
        masses[kinks] = 0.0
        np.add.at(masses, kinks - 1, moved * (1.0 - to_right) * math.exp(-tilt))
        np.add.at(masses, kinks + 1, moved * to_right * math.exp(tilt))
