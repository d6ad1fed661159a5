"""Several equal Laplace releases: dots above the law of one, convolved without any rounding.

The loss of a Laplace release is bounded and sits with half its mass on its largest value, so a few
of them have a law that neither the contour (slow decay) nor a tilted lattice (all weight at the
edge) follows. On a lattice of its own the sum of n is a plain convolution of positive numbers.

Error: connecting the dots only raises the profile; the rounding of masses (bounded by
`convolution_power`), positions and the final sum is added. There is no lower end.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.closed_form import log_delta_single
from tightrope.guarantee.loss.discrete import LaplacePair
from tightrope.numerics.convolution_power import convolution_power
from tightrope.validate import FloatArray

__all__ = ["delta_upper", "epsilon_upper"]

_MOST_POINTS = 40_000
_MARGIN = 1e-12


def delta_upper(pair: LaplacePair, count: int, epsilon: float) -> float:
    """An upper bound on delta(epsilon) of `count` releases, epsilon >= 0."""
    losses, masses = _sum(pair, count)
    over = losses > epsilon
    value = float(np.sum(masses[over] * -np.expm1(epsilon - losses[over])))
    return min(1.0, value * (1 + _MARGIN))


def epsilon_upper(pair: LaplacePair, count: int, delta: float) -> float:
    """The smallest epsilon whose bound is at most delta; never above pure composition."""
    low, high = 0.0, count * pair.support[1] * (1 + 1e-15)
    if delta_upper(pair, count, 0.0) <= delta:
        return 0.0
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        above = delta_upper(pair, count, middle) > delta
        low, high = (middle, high) if above else (low, middle)
    return high


@lru_cache(maxsize=16)
def _sum(pair: LaplacePair, count: int) -> tuple[FloatArray, FloatArray]:
    """Losses and masses of the sum of `count` equal releases, both rounded up."""
    cells = min(256, _MOST_POINTS // (2 * count))
    if cells < 8:
        raise NotCertified(
            f"{count} Laplace releases are too many to convolve directly. Declare each as "
            "DeclaredApproxDP(1/noise_multiplier), or compose fewer."
        )
    base = _dots(pair, cells)
    total, error = convolution_power(base, count)
    step = pair.support[1] / cells
    losses = step * np.arange(-cells * count, cells * count + 1, dtype=np.float64)
    # rounding of the positions moves the losses up; that of the masses raises them
    losses += 4e-16 * count * pair.support[1]
    return np.asarray(losses, dtype=np.float64), total * (1.0 + error)


def _dots(pair: LaplacePair, cells: int) -> FloatArray:
    """Masses under P on the losses k * top / cells, k = -cells..cells (theory C.7).

    The profile is joined by chords in x = e^loss; slopes give the tails under Q. A Laplace pair is
    its own mirror image, so delta(-eps) = 1 - e^-eps + e^-eps delta(eps).
    """
    losses = pair.support[1] / cells * np.arange(-cells, cells + 1)
    half = [math.exp(min(log_delta_single(pair, float(e)).upper, 0.0)) for e in losses[cells:-1]]
    right = np.append(half, 0.0)
    left = (right[1:] - (1.0 - right[1:]) * np.expm1(-losses[cells + 1 :]))[::-1]
    deltas, x = np.concatenate([left, right]), np.exp(losses)
    slopes = np.maximum.accumulate(np.diff(deltas) / np.diff(x))
    tails = np.concatenate([[1.0], np.clip(-slopes, 0.0, 1.0), [0.0]])
    masses = np.maximum(-np.diff(tails), 0.0) * x
    masses[-1] += max(0.0, 1.0 - float(masses.sum())) + 1e-15  # what is missing, at the worst loss
    return np.asarray(masses, dtype=np.float64)
