"""Bounds on |E e^{iyX}| for ALL y beyond a given one, without evaluating it there.

Every unimodal density is a mixture of uniform laws on its level sets (the layer cake), and the
transform of a uniform law of length l is at most sup_{x >= yl/2} |sin x / x|, which decreases in y.
What the layers do not cover counts with its full mass (docs/certificate_argument.md, 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import UNIT

__all__ = ["Decay", "Layers", "layers_of_steps", "no_decay", "LOG_MASS_SLACK"]

LOG_MASS_SLACK = 1e-6
_SIDE_LOBE = 0.2172337  # > the largest |sin x/x| beyond its first zero

Layers = tuple[FloatArray, FloatArray]  # lengths and masses of uniform laws


def layers_of_steps(edges: FloatArray, heights: FloatArray, peak: int) -> Layers:
    """Layers of a density known to be >= heights[k] between edges[k] and edges[k+1].

    The step function is first lowered to one that falls away on both sides of cell `peak`.
    """
    left = np.minimum.accumulate(heights[: peak + 1][::-1])[::-1]
    right = np.minimum.accumulate(heights[peak:])
    levels = np.sort(np.concatenate([left, right[1:]]))[::-1]
    first = np.searchsorted(left, levels, side="left")  # left rises towards the peak
    last = peak + np.searchsorted(-right, -levels, side="right")
    lengths = edges[last] - edges[first]
    drops = levels - np.append(levels[1:], 0.0)
    return lengths, drops * lengths


@final
@dataclass(frozen=True)
class Decay:
    """For each law of a family, sup over y' >= y of |transform(y')|: the smallest of three bounds.

    layers: uniform laws inside it; variation/y: one integration by parts, where the total variation
    of the density is known; further: any other decreasing bound. All hold when ln M(c) is log_mass
    within LOG_MASS_SLACK.
    """

    lengths: FloatArray  # the layers of all laws, one after the other
    masses: FloatArray
    starts: NDArray[np.intp]
    variation: FloatArray
    log_mass: FloatArray | None = None
    further: Callable[[float], FloatArray] | None = None

    @classmethod
    def of(
        cls,
        layers: list[Layers],
        variation: FloatArray,
        log_mass: FloatArray | None = None,
        further: Callable[[float], FloatArray] | None = None,
    ) -> Decay:
        sizes = [len(lengths) for lengths, _ in layers]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp)
        lengths = np.concatenate([part[0] for part in layers])
        masses = np.concatenate([part[1] for part in layers])
        return cls(lengths, masses, starts, variation, log_mass, further)

    def bound(self, y: float) -> FloatArray:
        return np.asarray(self.bounds(np.array([y]))[0])

    def bounds(self, y: FloatArray) -> FloatArray:
        """The bound from each of several y on, (frequencies, laws)."""
        half = np.maximum(0.5 * y[:, None] * self.lengths, 1e-8)
        wave = np.sin(np.minimum(half, math.pi)) / half
        envelope = np.maximum(wave, np.minimum(_SIDE_LOBE, 1.0 / half))
        # 1 - sum m (1 - envelope): the uncovered mass counts fully
        covered = np.add.reduceat(self.masses * (1.0 - envelope), self.starts, axis=1)
        value = 1.0 - covered * (1.0 - 1e-12) + 8.0 * UNIT
        with np.errstate(over="ignore"):  # an infinite bound is one
            value = np.minimum(value, self.variation / y[:, None])
        if self.further is not None:
            for row, frequency in zip(value, y.tolist(), strict=True):
                if bool((row > 1e-3).any()):
                    np.minimum(row, self.further(frequency), out=row)
        return np.asarray(np.clip(value, 1e-300, 1.0))


def no_decay(laws: int = 1) -> Decay:
    """Nothing known but |transform| <= 1."""
    return Decay.of([(np.zeros(1), np.zeros(1))] * laws, np.full(laws, math.inf))
