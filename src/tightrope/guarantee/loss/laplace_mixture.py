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
from tightrope.guarantee.loss.cumulant_bounded import BoundedCumulant
from tightrope.guarantee.loss.cumulant_points import EqualPanels
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray, check_positive, check_probability

__all__ = ["LaplaceMixturePair", "LaplaceMixtureCumulant"]


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


# ---- The cumulant of sampled Laplace noise -------------------------------------------------------
# M(z) = int A_plus^{1+z} A_minus^{-z} d Lap over the points where L rises, and the two atoms.
#
# Error: Gauss-Legendre panels on either side of 0. With u = (2x - 1)/b, ln A = ln(1 - q + q e^u) has
# the derivative 1/(1 + (1-q) e^-u/q) in u, of size at most 1 where |Im u| <= pi/2; so on
# |Im x| <= pi b/4 the integrand's logarithm has a slope of at most (1 + 2 max(|1+z|, |z|))/b.


_CELLS = 256  # of the density of L, on either side of 0


@final
class LaplaceMixtureCumulant(BoundedCumulant):
    """K of one LaplaceMixturePair."""

    def __init__(self, pair: LaplaceMixturePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.pair = pair
        low, high = pair.support
        self.largest = max(high, -low)
        self.ends, masses = (np.array(column) for column in zip(*pair.atoms, strict=True))
        self.log_ends = np.log(masses)
        self.sides = [(low, low + 1.0) for low in (-1.0, 0.0) if pair.ends[0] <= low < pair.ends[1]]
        self.length, self.height = float(len(self.sides)), 0.25 * math.pi * pair.scale

    def _log_density(self, x: FloatArray) -> FloatArray:
        """Of P."""
        base = -np.abs(x) / self.pair.scale - math.log(2.0 * self.pair.scale)
        return np.asarray(base + self.pair.log_plus(x))

    def _points(self, panels: int, count: int) -> tuple[FloatArray, FloatArray]:
        losses, logs = [], []
        for low, high in self.sides:
            x, log_weight = EqualPanels(low, high, panels, count).points()
            losses.append(self.pair.loss(x))
            logs.append(self._log_density(x) + log_weight)
        return np.concatenate([*losses, self.ends]), np.concatenate([*logs, self.log_ends])

    def _rough(self, tilt: float) -> tuple[FloatArray, FloatArray]:
        return self._points(min(400, 2 + int(self._slope(tilt, 0.0) / 8.0)), 24)

    def _slope(self, tilt: float, frequency: float) -> float:
        return (3.0 + 2.0 * (abs(tilt) + frequency)) / self.pair.scale

    def _log_bound(self, tilt: float) -> float:
        """Lap <= 1/(2b), A_plus^{1+c} A_minus^{-c} by the extreme values of both."""
        at = np.array(self.pair.ends)
        plus, minus = self.pair.log_plus(at), self.pair.log_minus(at)
        most = np.max((1.0 + tilt) * plus) + np.max(-tilt * minus)
        return float(most) - math.log(2.0 * self.pair.scale)

    def _point_error(self, losses: FloatArray) -> FloatArray:
        arm = math.exp(float(self.pair.log_arm(np.zeros(1))[0]))  # the smallest A
        once = 16.0 / self.pair.scale + 8.0 * self.pair.rate / arm
        return np.asarray(UNIT * (16.0 * np.abs(losses) + 2.0 * once))

    def decay(self, tilt: float) -> Decay:
        """Layers of the tilted density of L, Lap A_plus e^{cL}/L', from below on cells of x.

        The slope of its logarithm in x is at most (5 + 2 |c|)/b: as 1/b, ln A and ln of the share.
        """
        scale, log_size = self.pair.scale, self._log_size(tilt)
        steepest = (5.0 + 2.0 * abs(tilt)) / scale
        edges, heights = [], []
        for low, high in self.sides:
            x = np.linspace(low, high, _CELLS + 1)
            log = self._log_density(x) - self.pair.log_share(x) + math.log(0.5 * scale)
            log += tilt * self.pair.loss(x) - log_size - LOG_MASS_SLACK
            edges.append(self.pair.loss(x))
            heights.append(np.exp(0.5 * (log[:-1] + log[1:]) - 0.5 * steepest / _CELLS))
        all_edges = np.concatenate([edges[0], *(more[1:] for more in edges[1:])])
        steps = np.concatenate(heights)
        layers = layers_of_steps(all_edges, steps, int(np.argmax(steps)))
        return Decay.of([layers], np.array([math.inf]), np.array([log_size]))
