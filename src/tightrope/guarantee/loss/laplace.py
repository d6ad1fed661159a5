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
from tightrope.guarantee.loss.cumulant_bounded import BoundedCumulant
from tightrope.guarantee.loss.cumulant_points import EqualPanels
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.quadrature import FloatArray, log_sum_exp
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray, check_positive

__all__ = ["LaplacePair", "BoundedRangePair", "LaplaceCumulant"]


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


# ---- The cumulants of Laplace noise and of the exponential mechanism -----------------------------
# Error: Gauss-Legendre panels; the entire integrand is bounded on a Bernstein ellipse around each.


@final
class LaplaceCumulant(BoundedCumulant):
    """L = top (1 - 2x) with density 2 top inner e^{-top x} for x in [0, 1], and atoms."""

    def __init__(self, pair: LaplacePair | BoundedRangePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.top = self.largest = pair.top
        self.log_inner = math.log(pair.inner)
        self.ends = np.array([loss for loss, _ in pair.atoms])
        # ln of their masses, the first of which may be too small for a double
        self.log_ends = np.minimum(self.ends, 0.0) - math.log(2.0)

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        """The atoms, and 2 inner e^{z top} (1 - e^{-(1+2z) top})/(1 + 2z) where nothing cancels."""
        z, top = tilt, self.top
        if (1.0 + 2.0 * z) * top < 2.0:
            return super().real(tilt, nats)
        within = math.log(-2.0 * math.expm1(-(1.0 + 2.0 * z) * top) / (1.0 + 2.0 * z))
        logs = np.append(z * self.ends + self.log_ends, z * top + within + self.log_inner)
        value = float(log_sum_exp(logs))
        return np.array([value]), np.array([UNIT * (32.0 + 8.0 * abs(z * top) + 4.0 * top)])

    def _points(self, panels: int, count: int) -> tuple[FloatArray, FloatArray]:
        x, log_weight = EqualPanels(0.0, 1.0, panels, count).points()
        inner = math.log(2.0 * self.top) + self.log_inner - self.top * x + log_weight
        losses = np.append(self.top * (1.0 - 2.0 * x), self.ends)
        return losses, np.append(inner, self.log_ends)

    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        return self._points(min(400, 2 + int(self.top * abs(1.0 + 2.0 * tilt) / 8.0)), 24)

    def _slope(self, tilt: float, frequency: float) -> float:
        return self.top * (abs(1.0 + 2.0 * tilt) + 2.0 * frequency + 2.0)

    def _log_bound(self, tilt: float) -> float:
        ends = max(self.top * tilt, -self.top * (1.0 + tilt), 0.0)
        return ends + math.log(2.0 * self.top) + self.log_inner

    def _point_error(self, losses: FloatArray) -> FloatArray:
        return np.asarray(8.0 * UNIT * (np.abs(losses) + self.top))

    def decay(self, tilt: float) -> Decay:
        """The density of L under the tilted law is proportional to e^{(tilt + 1/2) L}."""
        edges = np.linspace(-self.top, self.top, 65)
        log_size = self._log_size(tilt)
        g = (tilt + 0.5) * edges - 0.5 * self.top + self.log_inner - log_size - LOG_MASS_SLACK
        heights = np.exp(np.minimum(g[:-1], g[1:]))
        layers = layers_of_steps(edges, heights, int(np.argmax(heights)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))
