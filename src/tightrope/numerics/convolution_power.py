"""The law of a sum of equal independent terms on a lattice, with the error of its arithmetic."""

from __future__ import annotations

import numpy as np

from tightrope.validate import FloatArray

__all__ = ["convolution_power"]

_UNIT = 2.0**-53


def convolution_power(base: FloatArray, count: int) -> tuple[FloatArray, float]:
    """`count` copies of non-negative masses convolved, and a bound on the relative error of each.

    Error: an inner product of m positive terms is right to m units; squaring doubles what came
    before. Stage j of log2(count) has m = size 2^j and is doubled log2(count) - j times more, so
    each stage adds at most size * count units, and so does the last product of all stages. Masses
    that underflow are lost: below 1e-290 nothing is claimed.
    """
    total: FloatArray = np.ones(1)
    power, left, stages = base, count, 2
    while left:
        if left & 1:
            total = np.asarray(np.convolve(total, power), dtype=np.float64)
            stages += 1
        left >>= 1
        if left:
            power = np.asarray(np.convolve(power, power), dtype=np.float64)
            stages += 1
    return total, 2.0 * stages * len(base) * count * _UNIT
