"""What the contour method asks of the loss of one pair: its cumulant K(z) = ln E_P[e^{zL}; L < inf].
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from tightrope.numerics.inversion_decay import Decay
from tightrope.numerics.inversion_nodes import TiltedNodes
from tightrope.numerics.quadrature import FloatArray

__all__ = ["AbstractCumulant"]


class AbstractCumulant(ABC):
    """K on the real line (quick or proved), and the law tilted by e^{cL} as points."""

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
        """A proved bound on |M(tilt + iy)/M(tilt)|."""

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        """K at a real tilt and a proved bound on its error."""
        at = self.nodes(tilt, 0.0, nats)
        return at.log_mass, at.log_mass_error
