"""Laplace noise, and the exponential mechanism: losses with an exponential density.

Both have the density inner * e^{(l - top)/2} of L under P for |l| < top; Laplace noise has an atom
at each end, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses, as_losses
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_positive

__all__ = ["LaplacePair", "BoundedRangePair"]


@final
@dataclass(frozen=True)
class LaplacePair(AbstractLossPair):
    """Laplace noise of `scale` (in units of the sensitivity): P = Lap(0), Q = Lap(1)."""

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_positive(self.scale, "scale"))

    @cached_property
    def top(self) -> float:
        """The largest loss; rounded up, for a pair with a larger one dominates."""
        found = 1.0 / self.scale
        if math.isinf(found) or Fraction(found) * Fraction(self.scale) >= 1:
            return found
        return math.nextafter(found, math.inf)

    @property
    def loss_units(self) -> float:
        exact = math.isinf(self.top) or Fraction(self.top) * Fraction(self.scale) == 1
        return 0.0 if exact else 2.0

    @property
    def inner(self) -> float:
        """Between its ends L has the density inner * e^{(l - top)/2} under P."""
        return 0.25

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        return (-self.top, self.top)

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        top = self.top
        return ((-top, 0.5 * math.exp(-top)), (top, 0.5))

    def reversed(self) -> LaplacePair:
        return self

    def _clipped(self, loss: ArrayLike) -> tuple[FloatArray, float]:
        return as_losses(loss), self.top

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        x, top = self._clipped(loss)
        inner = np.clip(x, -top, top)
        with np.errstate(divide="ignore"):
            # P(L > l) = 1 - e^{-(top - l)/2}/2 and Q(L > l) = e^{-(top + l)/2}/2 for |l| < top
            log_p = np.log1p(-0.5 * np.exp(-0.5 * (top - inner)))
            log_q = -math.log(2.0) - 0.5 * (top + inner)
        below, above = x < -top, x >= top
        return (
            np.where(above, -np.inf, np.where(below, 0.0, log_p)),
            np.where(above, -np.inf, np.where(below, 0.0, log_q)),
        )

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        # by symmetry P(L <= l) = Q(L >= -l); the law is continuous strictly inside
        x, top = self._clipped(loss)
        inner = np.clip(x, -top, top)
        log_p = -math.log(2.0) - 0.5 * (top - inner)
        log_q = np.log1p(-0.5 * np.exp(-0.5 * (top + inner)))
        below, above = x < -top, x >= top
        return (
            np.where(above, 0.0, np.where(below, -np.inf, log_p)),
            np.where(above, 0.0, np.where(below, -np.inf, log_q)),
        )

    def log_error(self, loss: ArrayLike) -> FloatArray:
        return 8.0 * ULP * (1.0 + np.abs(as_losses(loss)) + self.top)


@final
@dataclass(frozen=True)
class BoundedRangePair(AbstractLossPair):
    """The pair with delta(l) = (e^{top/2} - e^{l/2})^2/(e^top - 1), |l| <= top.

    It dominates every release whose log-likelihood ratios span at most `top`, such as the
    exponential mechanism, and is its own mirror image.
    """

    top: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", check_positive(self.top, "top"))

    @property
    def inner(self) -> float:
        return -0.5 / math.expm1(-self.top)

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        return (-self.top, self.top)

    def reversed(self) -> BoundedRangePair:
        return self

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        # P(L > l) = (1 - e^{(l - top)/2})/(1 - e^-top), Q(L > l) = e^{-(l+top)/2} of that
        x = np.clip(as_losses(loss), -self.top, self.top)
        with np.errstate(divide="ignore"):
            log_p = np.log(-np.expm1(0.5 * (x - self.top))) - math.log(-math.expm1(-self.top))
        return log_p, log_p - 0.5 * (x + self.top)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        q, p = self.log_survival(-as_losses(loss))
        return p, q

    def log_error(self, loss: ArrayLike) -> FloatArray:
        x = np.clip(as_losses(loss), -self.top, self.top)
        gap = np.maximum(np.minimum(self.top - x, self.top + x), ULP * self.top)
        return 8.0 * ULP * (4.0 + self.top + self.top / gap)
