"""A privacy region between two polygons, from a few exact values of the profile.

With x = e^epsilon the profile delta is convex and falls to 0. Each value gives a line that the
trade-off function stays above: the lower polygon. Between two values delta lies above its two
neighbouring chords, drawn on; where they meet it can be lowest: the lines there give the upper
polygon. For epsilon < 0 a symmetric profile is 1 - e^epsilon (1 - delta(-epsilon)).
"""

from __future__ import annotations

import numpy as np

from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray
from tightrope_reproduce.tradeoff.bracket import TradeoffBracket
from tightrope_reproduce.tradeoff.hull import intersection

__all__ = ["region_of", "area_of"]

_TAIL = 1e-9
_ROUNDING = 1e-12


def region_of(guarantee: Guarantee, count: int) -> TradeoffBracket:
    """Certified polygons around the trade-off function, from `count` values of the profile."""
    end = guarantee.epsilon(_TAIL).upper
    epsilons = end * np.linspace(0.0, 1.0, count) ** 1.5
    known = [guarantee.delta(float(epsilon)) for epsilon in epsilons]
    above = np.array([delta.upper for delta in known])
    below = np.array([delta.lower for delta in known])
    lower = intersection(list(zip(epsilons, above, strict=True)))
    upper = intersection(_lowest(np.exp(epsilons), below, above))
    return TradeoffBracket(lower, upper)


def area_of(region: TradeoffBracket) -> Interval:
    """The area between the curve and the line of guessing."""
    return Interval(region.upper.area(), region.lower.area())


def _lowest(x: FloatArray, below: FloatArray, above: FloatArray) -> list[tuple[float, float]]:
    """(epsilon, delta) pairs that together allow less than the profile does."""
    mirrored = 1.0 - (1.0 - above[1]) / x[1], 1.0 - (1.0 - below[1]) / x[1]
    x = np.concatenate([[1.0 / x[1]], x])
    below, above = np.append(mirrored[1], below), np.append(mirrored[0], above)
    pairs = [(float(np.log(x[-1])), 0.0)]
    for i in range(1, x.size - 1):
        left = (below[i] - above[i - 1]) / (x[i] - x[i - 1])  # the steepest that the values allow
        right = (above[i + 2] - below[i + 1]) / (x[i + 2] - x[i + 1]) if i + 2 < x.size else 0.0
        meet = (below[i + 1] - below[i] + left * x[i] - right * x[i + 1]) / (left - right)
        meet = min(max(meet, x[i]), x[i + 1])
        delta = max(below[i] + left * (meet - x[i]), below[i + 1] + right * (meet - x[i + 1]), 0.0)
        pairs += [(float(np.log(x[i])), below[i]), (float(np.log(meet)), delta * (1 - _ROUNDING))]
    return pairs
