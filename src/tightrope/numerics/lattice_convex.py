"""From masses shared between cell ends to a measure below in the convex order, on the same lattice.

A measure of the variable r on r_i = r_0 e^{i h} is described by its call function
C(k) = int (r - k)_+, a convex function. Sharing the mass of every cell between its ends turns C
into the chords of C: an upper bound. Lowering the chords at r_i by c_i gives a piecewise linear
function with its kinks on the lattice, the call function of the masses
    low_i = up_i - [ (c_{i+1} - c_i)/(r_{i+1} - r_i) - (c_i - c_{i-1})/(r_i - r_{i-1}) ].
It lies below C where the c interpolated on each cell cover the gap between chord and C. The gap at
the share t of a cell of width w with shares (left, right) is at most min(t left, (1 - t) right) w:
so either both ends drop by the largest gap, or, on steep cells, one end alone drops by the share of
the other end times w. Both bounds are of second order in h. Where low_i < 0 nevertheless, the kink
is replaced by a chord; what is still negative is set to 0 and reported as clipped: an error.

Everything is stored tilted: masses times e^{w i h}.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

__all__ = ["gathered", "gap_bound", "lowered"]

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
