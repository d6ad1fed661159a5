"""phi A_plus^{1+c} A_minus^{-c} of a mixture pair on cells of the line, bounded from above.

ln A_plus is convex and ln A_minus(-x) is, with second derivative at most mu^2 times the variance
of k; so F = -x^2/2 + (1+c) ln A_plus - c ln A_minus exceeds the larger end of a cell by at most
width^2/8 (1 + c mu^2 v), v a bound on the variance in the cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.numerics.quadrature import FloatArray, log_sum_exp

__all__ = ["Scan", "scan", "furthest_peak", "LOG_ROOT_2PI"]

LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_MAX_CELLS = 20_000
_ROUNDS, _AT_ONCE = 4, 256


def furthest_peak(pair: GaussianMixturePair, tilt: float) -> float:
    """A point from which F falls at least like -x^2/2, for tilts from 0 up to this one.

    F' = -x + (1+c) mu m_plus(x) + c mu m_minus(-x); m_plus <= plus, and m_minus(-x) falls.
    """
    low, high = 0.0, tilt * pair.mu * pair.minus
    for _ in range(_ROUNDS):
        at = np.linspace(low, high, _AT_ONCE + 1)
        falls = at >= tilt * pair.mu * pair.arms[1].mean(-at)
        falls[-1] = True
        first = int(np.argmax(falls))
        low, high = float(at[max(first - 1, 0)]), float(at[first])
    return (1.0 + tilt) * pair.mu * pair.plus + high


@final
@dataclass(frozen=True)
class Scan:
    """Points, a fixed width apart, with both arms at each."""

    pair: GaussianMixturePair
    x: FloatArray

    @property
    def width(self) -> float:
        return float(self.x[1] - self.x[0])

    @cached_property
    def logs(self) -> tuple[FloatArray, FloatArray]:
        """ln A_plus(x) and ln A_minus(-x)."""
        plus, minus = self.pair.arms
        return plus.log(self.x), minus.log(-self.x)

    @cached_property
    def means(self) -> tuple[FloatArray, FloatArray]:
        """m_plus(x), which rises, and m_minus(-x), which falls."""
        plus, minus = self.pair.arms
        return plus.mean(self.x), minus.mean(-self.x)

    @cached_property
    def losses(self) -> FloatArray:
        return self.logs[0] - self.logs[1]

    def exponent(self, tilt: float) -> FloatArray:
        """F at the points."""
        return -0.5 * self.x * self.x + self.logs[0] + tilt * self.losses

    @cached_property
    def spread(self) -> FloatArray:
        """A bound on the variance of k of A_minus in each cell."""
        return np.minimum(self.means[1][:-1], 0.25 * self.pair.minus) + 1e-12

    def cells(self, tilt: float) -> FloatArray:
        """ln of bounds on the integral of e^F over each cell."""
        f, square = self.exponent(tilt), 0.125 * self.width**2
        bend = square * (1.0 + tilt * self.pair.mu**2 * self.spread)
        return np.maximum(f[:-1], f[1:]) + bend + math.log(self.width) + 1e-9

    def ends(self, tilt: float, log_enough: float) -> tuple[int, int, float, float]:
        """First and last edge with all but about e^log_enough of M; ln of what lies beyond each.

        Beyond the first and the last point e^F falls at least like e^{-x^2/2}.
        """
        cells, f = self.cells(tilt), self.exponent(tilt)
        left = np.logaddexp.accumulate(np.append(f[0] + math.log(1.2534), cells))
        right = np.logaddexp.accumulate(np.append(cells, f[-1] + math.log(1.2534))[::-1])[::-1]
        goal = log_enough + LOG_ROOT_2PI - 1.0
        first = min(max(int(np.searchsorted(left, goal)) - 1, 0), len(cells) - 1)
        last = min(max(int(np.searchsorted(-right, -goal)), first + 1), len(cells))
        return first, last, float(left[first]) - LOG_ROOT_2PI, float(right[last]) - LOG_ROOT_2PI

    def log_sum(self, tilt: float) -> float:
        """ln M(tilt), a trapezoidal estimate."""
        return float(log_sum_exp(self.exponent(tilt))) + math.log(self.width) - LOG_ROOT_2PI


def scan(pair: GaussianMixturePair, low: float, high: float, width: float) -> Scan:
    cells = max(4, math.ceil((high - low) / width))
    if cells > _MAX_CELLS:
        raise NotCertified(f"A scan of {cells} cells takes too much work; use the lattice method.")
    return Scan(pair, np.linspace(low, high, cells + 1))  # ends exactly where asked
