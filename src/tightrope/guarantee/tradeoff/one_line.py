"""One line under a trade-off curve: a proof that an attack finds few.

Statement: an attack with false positive rate a finds at most t of the members if
    delta(eps) <= t - e^eps a for one eps >= 0, or the same of a' = 1 - t, t' = 1 - a (a trade-off
    function for both orders of the neighbours is its own mirror image).
Validity: bound for every eps; exact for the best one.
Source: Wasserman and Zhou 2010; Dong, Roth and Su 2019 (arXiv:1905.02383), Proposition 2.5.
Error: none; a search that stops early only asks for more noise than needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from scipy.special import ndtri

__all__ = ["HitRate"]

_NO_ROOM = 1e6


class HitRate(NamedTuple):
    """At most `hits` at this rate of false alarms; 0 < alarms < hits < 1."""

    alarms: float
    hits: float

    def lower_half(self) -> HitRate:
        """The mirror image whose line falls steeply, eps >= 0."""
        mirrored = HitRate(1.0 - self.hits, 1.0 - self.alarms)
        return mirrored if self.alarms > mirrored.alarms else self

    @property
    def mu(self) -> float:
        """The Gaussian curve through it."""
        return float(ndtri(self.hits) - ndtri(self.alarms))

    def excess(self, epsilon: float, delta: float) -> float:
        """ln(delta/(t - e^eps a)): at most 0 where this line proves it."""
        room = self.hits - math.exp(epsilon) * self.alarms if epsilon >= 0.0 else 0.0
        if room <= 0.0:
            return _NO_ROOM + abs(epsilon)
        return math.log(max(delta, 1e-300) / room)

    def best_line(self, delta: Callable[[float], float], tolerance: float = 1e-4) -> float:
        """The epsilon of the least excess, which is quasi-convex in e^eps.

        The search starts where a Gaussian curve has its line; any epsilon is on the safe side.
        """
        from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

        last = math.log(self.hits / self.alarms)

        def excess(epsilon: float) -> float:
            inside = 0.0 <= epsilon < last
            return self.excess(epsilon, delta(epsilon)) if inside else _NO_ROOM + abs(epsilon)

        near = -self.mu * float(ndtri(self.alarms)) - 0.5 * self.mu * self.mu
        guess = min(max(near, 0.01 * last), 0.9 * last)
        found = minimize_scalar(
            excess, bracket=(0.95 * guess, guess), method="brent", tol=tolerance
        )
        best = float(found.x)
        return best if excess(best) <= excess(0.0) else 0.0
