"""Discrete Gaussian noise on whole numbers is accounted as Gaussian noise.

The statement and its proof are in docs/theorems/discrete_gaussian.md. In short: let vectors of
whole numbers move by at most D between neighbours. Adding the discrete Gaussian with parameter s
to each coordinate is post-processing of adding N(0, s^2 - t^2), for any t < s, but for a share of
at most 2 exp(-2 pi^2 t^2) (1 + 10^-8) + 2 exp(-2 pi^2 s^2) (1 + 10^-8) of each draw (t >= 1). So
T adaptive releases of d coordinates, sampled in any way, have the trade-off functions and deltas of
Gaussian noise with multiplier sqrt(s^2 - t^2) / D, up to d T times that share in delta. With t = 8
and d T <= 2^100 this is below 2^-1700, while every certified end is rounded outwards by at least
one unit in the last place of a float64, which is 2^-1074 or more. It is charged by that rounding.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isqrt

__all__ = ["SMOOTHING", "discrete_scale"]

SMOOTHING = 8  # t


def discrete_scale(noise_multiplier: float, sensitivity: int) -> int:
    """The least whole s with sqrt(s^2 - t^2) >= noise_multiplier * sensitivity, exactly."""
    least = ceil((Fraction(noise_multiplier) * sensitivity) ** 2) + SMOOTHING**2
    root = isqrt(least)
    return root if root * root == least else root + 1
