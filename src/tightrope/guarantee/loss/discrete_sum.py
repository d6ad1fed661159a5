"""The same discrete release many times, when its losses lie on one lattice: a plain convolution.

Error: the rounding of the convolution (bounded by `convolution_power`) and of the final sum; how
far the losses are off the lattice is added to them (upper) or taken off (lower). The mass of an
infinite loss is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.lattice_step import on_one_lattice, spacing
from tightrope.numerics.convolution_power import convolution_power
from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray

__all__ = ["serves", "delta", "epsilon"]

_MOST_POINTS = 20_000
_MARGIN = 1e-12


def serves(pair: AbstractLossPair, count: int) -> bool:
    """Few enough points to convolve directly?"""
    if not isinstance(pair, DiscretePair) or not on_one_lattice(pair):
        return False
    reach = (pair.losses[-1] - pair.losses[0]) / (spacing(pair) or math.inf)
    return reach * count <= _MOST_POINTS


def delta(pair: DiscretePair, count: int, epsilon: float) -> Interval:
    """delta(epsilon) of `count` releases."""
    losses, masses, slack, error = _sum(pair, count)
    margin = _MARGIN + error
    infinite = -math.expm1(count * math.log1p(-pair.infinite_mass))
    ends = []
    for side in (-1.0, 1.0):
        gain = -np.expm1(np.minimum(epsilon - losses - side * slack, 0.0))
        ends.append((float(np.sum(masses * gain)) + infinite) * (1 + side * margin))
    return Interval(max(ends[0], 0.0), min(ends[1], 1.0))


def epsilon(pair: DiscretePair, count: int, target: float) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= target, by bisection on each side."""
    top = count * pair.losses[-1]
    top += 1e-9 * abs(top) + 1e-300
    if delta(pair, count, max(top, 0.0)).lower > target:
        return Interval.exact(math.inf)
    if delta(pair, count, 0.0).upper <= target:
        return Interval.exact(0.0)
    upper = _first(lambda e: delta(pair, count, e).upper > target, top)[1]
    lower = _first(lambda e: delta(pair, count, e).lower > target, top)[0]
    return Interval(min(lower, upper), upper)


def _first(above: Callable[[float], bool], top: float) -> tuple[float, float]:
    """The last point found above and the first found not above, of a falling function."""
    low, high = 0.0, max(top, 0.0)
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if above(middle) else (low, middle)
    return low, high


@lru_cache(maxsize=32)
def _sum(pair: DiscretePair, count: int) -> tuple[FloatArray, FloatArray, float, float]:
    """Losses and masses under P of the sum, and how far off they may be."""
    grid = spacing(pair)
    assert grid is not None
    each = np.array(pair.losses, dtype=np.float64)
    place = (each - each[0]) / grid
    index = np.round(place).astype(np.int64)
    base: FloatArray = np.zeros(int(index[-1]) + 1)
    base[index] = pair.masses
    total, error = convolution_power(base, count)
    losses = count * each[0] + grid * np.arange(len(total), dtype=np.float64)
    off = count * (grid * float(np.abs(place - index).max()) + 1e-15 * float(np.abs(each).max()))
    return np.asarray(losses, dtype=np.float64), total, off, error
