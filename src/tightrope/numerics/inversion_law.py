"""Independent sums of random variables, known through the cumulants of their parts.

A part is a law F on the real line with mass at most 1 and K(z) = ln int e^{zx} dF(x).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.numerics.inversion_decay import Decay
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import UNIT, FloatArray

__all__ = ["AbstractLaw", "SumLaw"]


class AbstractLaw(ABC):
    """K on the real line (quick or proved), and the law tilted by e^{cx} as points."""

    @abstractmethod
    def values(self, tilts: FloatArray) -> FloatArray:
        """K at several real tilts; an estimate, for searching only."""

    @abstractmethod
    def moments(self, tilt: float) -> tuple[float, float, float]:
        """K, K' and K'' at a real tilt; an estimate, for searching only."""

    @abstractmethod
    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        """The tilted law as points, right to e^-nats up to the given frequency (proved)."""

    @abstractmethod
    def decay(self, tilt: float) -> Decay:
        """A proved bound on |M(tilt + iy)/M(tilt)|, M = e^K."""

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        """K at a real tilt and a proved bound on its error."""
        at = self.nodes(tilt, 0.0, nats)
        return at.log_mass, at.log_mass_error


@final
@dataclass(frozen=True)
class SumLaw:
    """Parts with their counts, plus a normal part of the given mean and variance."""

    parts: tuple[tuple[AbstractLaw, int], ...]
    mean: float = 0.0
    variance: float = 0.0

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.parts)

    def values(self, tilts: FloatArray) -> FloatArray:
        total = self.mean * tilts + 0.5 * self.variance * tilts * tilts
        for law, count in self.parts:
            total = total + count * law.values(tilts)
        return total

    def moments(self, tilt: float) -> tuple[float, float, float]:
        total = np.array(
            [
                self.mean * tilt + 0.5 * self.variance * tilt * tilt,
                self.mean + self.variance * tilt,
                self.variance,
            ]
        )
        for law, count in self.parts:
            total += count * np.array(law.moments(tilt))
        return float(total[0]), float(total[1]), float(total[2])

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        """The cumulant of the sum and a bound on its error; nats is the precision of a part."""
        value = self.mean * tilt + 0.5 * self.variance * tilt * tilt
        error = 4.0 * UNIT * (abs(self.mean * tilt) + self.variance * tilt * tilt)
        for law, count in self.parts:
            k, k_error = law.real(tilt, nats)
            value += count * k
            error += count * (k_error + 4.0 * UNIT * abs(k))
        return value, error + len(self.parts) * UNIT * abs(value)
