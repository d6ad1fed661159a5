"""Laplace noise on a Poisson sample: a record that is removed, added, or replaced by its opposite.

P has the density A_plus(x), Q the density A_minus(-x), relative to Laplace noise of scale b at 0.
A(x) = 1 - q + q e^{(|x| - |x - 1|)/b} where the record is there, otherwise 1. So A rises from x = 0
to x = 1 and is constant elsewhere, and L(x) = ln A_plus(x) - ln A_minus(-x) rises from -1 (or 0) to
1 (or 0); the noise beyond these points is an atom of L at each end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses, as_losses
from tightrope.guarantee.loss.by_chance import above_infimum, log_sampled
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_positive, check_probability

__all__ = ["LaplaceMixturePair"]


@final
@dataclass(frozen=True)
class LaplaceMixturePair(AbstractLossPair):
    """P = (1-q) Lap(0) + q Lap(1) if `plus`, Q = (1-q) Lap(0) + q Lap(-1) if `minus`, else Lap(0).

    Removed: plus; added, and mirrored: minus; replaced by its opposite: both.
    """

    rate: float
    scale: float
    plus: bool
    minus: bool

    def __post_init__(self) -> None:
        rate = check_probability(self.rate, "rate")
        object.__setattr__(self, "scale", check_positive(self.scale, "scale"))
        if not 0.0 < rate < 1.0 or not (self.plus or self.minus):
            raise InvalidInput(
                f"A sampled Laplace pair has a rate between 0 and 1 and a record in P, Q or both; "
                f"got rate {rate!r}, plus {self.plus}, minus {self.minus}. LaplacePair has rate 1."
            )

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """The points between which L rises."""
        return (-1.0 if self.minus else 0.0, 1.0 if self.plus else 0.0)

    @property
    def support(self) -> tuple[float, float]:
        low, high = self.loss(np.array(self.ends)).tolist()
        return low, high

    @property
    def loss_units(self) -> float:
        """1/b is off by one, and what is rare beside 1 by as many as its exponent's size."""
        return 16.0 + 2.0 / self.scale

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        ends = np.array(self.ends)
        beyond = 0.5 * np.exp(-np.abs(ends) / self.scale + self.log_plus(ends))
        return tuple(zip(self.support, beyond.tolist(), strict=True))

    def reversed(self) -> LaplaceMixturePair:
        return LaplaceMixturePair(self.rate, self.scale, self.minus, self.plus)

    # ------------------------------------------------------------------------ points and losses
    def log_arm(self, x: FloatArray) -> FloatArray:
        """ln A(x) with the record."""
        u = (2.0 * np.clip(x, 0.0, 1.0) - 1.0) / self.scale
        return log_sampled(u, self.rate)

    def log_plus(self, x: FloatArray) -> FloatArray:
        return self.log_arm(x) if self.plus else np.zeros_like(x)

    def log_minus(self, x: FloatArray) -> FloatArray:
        """ln A_minus(-x)."""
        return self.log_arm(-x) if self.minus else np.zeros_like(x)

    def loss(self, x: FloatArray) -> FloatArray:
        return self.log_plus(x) - self.log_minus(x)

    def log_share(self, x: FloatArray) -> FloatArray:
        """ln of L'(x) b/2: the record's share q e^u/A at this point, inside."""
        side = np.abs(x)
        u = (2.0 * side - 1.0) / self.scale
        return np.asarray(math.log(self.rate) + u - self.log_arm(side))

    def point(self, loss: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """The x with this loss, and 1/b times a bound on its error."""
        x = np.clip(as_losses(loss), *self.support)
        up = x > 0.0 if self.plus and self.minus else np.full(x.shape, self.plus)
        least = float(self.log_arm(np.zeros(1))[0]) if self.plus and self.minus else 0.0
        wanted = np.where(up, x, -x) + least
        excess, size = above_infimum(wanted, self.rate)
        size = 4.0 * ULP * (size + self.rate * (1.0 + abs(least)))
        with np.errstate(divide="ignore"):
            u = np.log(np.maximum(excess, 1e-320)) - math.log(self.rate)
        found = np.clip(0.5 * (self.scale * u + 1.0), 0.0, 1.0)
        smallest = self.rate * math.exp(-1.0 / self.scale)
        error = size / np.maximum(excess - size, 0.5 * smallest) + 8.0 * ULP * (np.abs(u) + 1.0)
        return np.where(up, found, -found), np.minimum(error, 2.0 / self.scale)

    # -------------------------------------------------------------------------------- half-lines
    def _log_above(self, x: FloatArray, centre: float) -> FloatArray:
        """ln of the mass of Laplace noise at 0, or with the rate at `centre`, above x."""
        one = _log_tail(x / self.scale)
        if centre == 0.0:
            return one
        other = _log_tail((x - centre) / self.scale)
        return np.logaddexp(math.log1p(-self.rate) + one, math.log(self.rate) + other)

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        low, high = self.support
        given, (x, _) = as_losses(loss), self.point(loss)
        logs = self._log_above(x, self.ends[1]), self._log_above(x, self.ends[0])
        p, q = (np.where(given >= high, -np.inf, np.where(given < low, 0.0, v)) for v in logs)
        return p, q

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        low, high = self.support
        given, (x, _) = as_losses(loss), self.point(loss)
        logs = self._log_above(-x, -self.ends[1]), self._log_above(-x, -self.ends[0])
        p, q = (np.where(given >= high, 0.0, np.where(given < low, -np.inf, v)) for v in logs)
        return p, q

    def log_error(self, loss: ArrayLike) -> FloatArray:
        return np.asarray(self.point(loss)[1] + 16.0 * ULP * (1.0 + 1.0 / self.scale))


def _log_tail(x: FloatArray) -> FloatArray:
    """ln P(X > x) of Laplace noise of scale 1; its slope is at most 1."""
    right = -math.log(2.0) - np.maximum(x, 0.0)
    return np.where(x >= 0.0, right, np.log1p(-0.5 * np.exp(np.minimum(x, 0.0))))
