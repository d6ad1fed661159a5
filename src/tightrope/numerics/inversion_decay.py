"""Bounds on |E e^{iyX}| for ALL y beyond a given one, without evaluating it there.

Every unimodal density is a mixture of uniform laws on its level sets (the layer cake), and the
transform of a uniform law of length l is at most sup_{x >= yl/2} |sin x / x|, which decreases in y.
What the layers do not cover counts with its full mass. Statement and proof: three lines, no paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.numerics.quadrature import FloatArray

__all__ = ["Decay", "layers_of_steps", "NO_DECAY", "LOG_MASS_SLACK"]

LOG_MASS_SLACK = 1e-6
_SIDE_LOBE = 0.2172337  # > the largest |sin x/x| beyond its first zero


@final
@dataclass(frozen=True)
class Decay:
    """sup over y' >= y of |transform(y')| is at most the smallest of three bounds.

    lengths, masses: the uniform layers; variation/y: one integration by parts, where the total
    variation of the density is known; further: any other decreasing bound.
    """

    lengths: FloatArray
    masses: FloatArray
    variation: float = math.inf
    further: Callable[[float], float] | None = None
    log_mass: float | None = None  # the bounds hold when ln M(c) is this within LOG_MASS_SLACK

    def bound(self, y: float) -> float:
        half = 0.5 * y * self.lengths
        with np.errstate(invalid="ignore", divide="ignore"):
            wave = np.where(half > 0, np.sin(np.minimum(half, math.pi)) / half, 1.0)
            envelope = np.maximum(wave, np.minimum(_SIDE_LOBE, 1.0 / half))
        # 1 - sum m (1 - envelope): the uncovered mass counts fully
        value = 1.0 - float(np.sum(self.masses * (1.0 - envelope))) * (1.0 - 1e-12)
        value = min(value, self.variation / y if y > 0 else math.inf, 1.0)
        if self.further is not None and value > 1e-3:
            value = min(value, self.further(y))
        return max(value, 1e-300)


NO_DECAY = Decay(np.zeros(0), np.zeros(0))


def layers_of_steps(edges: FloatArray, heights: FloatArray, peak: int) -> Decay:
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
    return Decay(lengths, drops * lengths)
