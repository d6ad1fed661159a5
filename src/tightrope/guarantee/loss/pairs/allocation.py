"""One epoch in which a record joins one of t batches, chosen in secret (random allocation)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, cast, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Group, LogMasses, Side, extreme
from tightrope.guarantee.loss.pairs.normals import AbstractNormalPair
from tightrope.guarantee.loss.pairs.points import OneLaw, point_nodes
from tightrope.guarantee.loss.pairs.sampling import REVERSE, Direction
from tightrope.numerics.inversion_law import AbstractFamily, Decay, TiltedNodes, no_decay
from tightrope.numerics.lognormal_mean import log_mean
from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray, check_count, check_positive

_LARGEST_LOG = 700.0


@final
@dataclass(frozen=True)
class AllocationPair(AbstractNormalPair):
    """P = (1/t) sum_i N(mu e_i, I), Q = N(0, I) in t dimensions ("remove"), or the other way round.

    Under N(0, I), dP/dQ is S, the mean of t lognormals e^(mu g_i - mu^2/2). Its law is known by its
    density (numerics.lognormal_mean); masses of half-lines are not at hand.
    """

    batches: int
    mu: float
    direction: Direction

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", check_count(self.batches, "batches", low=2))
        object.__setattr__(self, "mu", check_positive(self.mu, "mu"))

    is_costly: ClassVar[bool] = True
    on_lattice: ClassVar[bool] = False
    has_closed_form: ClassVar[bool] = False

    @property
    def log_mean_square(self) -> float:
        return math.log1p(math.expm1(min(self.mu**2, _LARGEST_LOG)) / self.batches)

    def reversed(self) -> AllocationPair:
        return replace(self, direction=REVERSE[self.direction])

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        raise NotCertified(_NO_MASSES)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        raise NotCertified(_NO_MASSES)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        raise NotCertified(_NO_MASSES)

    @property
    def family(self) -> object:
        return (self.batches, self.direction)

    def dominating(self, group: Group, side: Side) -> AbstractLossPair:
        return cast(AbstractLossPair, extreme(group, side, "mu"))

    def cumulant(self, count: int = 1) -> AbstractFamily:
        return AllocationCumulant(self, count)


_NO_MASSES = (
    "The law of an epoch of balls in bins is known by its density, and the lattice method asks for "
    "masses of half-lines. Only the inversion integral answers here."
)


# ---- The cumulant, from the density of ln S (numerics.lognormal_mean)
# E e^(zL) = E S^w with w = 1 + z ("remove", L = ln S) or w = -z ("add", L = -ln S). ln S has a
# normal part of variance v, so the trapezoidal sum over points h apart is off by at most
#     M(c) (2 e^(-v (2 pi/h - y)^2/2) + further terms), all together below thrice the first,
# and |M(c + iy)/M(c)| <= e^(-v y^2/2) bounds the decay.
_LARGEST_TILT = 400.0


@final
class AllocationCumulant(OneLaw):
    def __init__(self, pair: AllocationPair, count: int) -> None:
        super().__init__(count)
        self.law = log_mean(pair.batches, pair.mu)
        self.sign, self.shift = (1.0, 1.0) if pair.direction == "remove" else (-1.0, 0.0)
        self.losses = self.sign * self.law.points
        self.log_weights = np.log(self.law.step * self.law.density)
        with np.errstate(divide="ignore"):
            self.log_errors = np.log(self.law.step * self.law.error)

    @property
    def max_tilt(self) -> float:
        return _LARGEST_TILT

    def _exponents(self, tilt: float) -> FloatArray:
        """Exponents of the tilted points: e^(shift ln S + tilt L)."""
        power = self.shift + self.sign * tilt
        return np.asarray(power * self.law.points + self.log_weights)

    def _rough(self, top: float) -> tuple[FloatArray, FloatArray]:
        return self.losses, self._exponents(0.0)

    def log_noise(self, tilts: FloatArray) -> FloatArray:
        powers = self.shift + self.sign * tilts
        errors = log_sum_exp(np.multiply.outer(powers, self.law.points) + self.log_errors)
        return np.asarray(errors - self.values(tilts) / self.counts[0])

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        exponents, power = self._exponents(tilt), self.shift + self.sign * tilt
        value = float(log_sum_exp(exponents))
        relative = UNIT * (16.0 + 4.0 * np.abs(power * self.law.points))
        rounding = float(np.exp(exponents - value) @ relative) + 24.0 * UNIT * (1.0 + abs(value))
        missed = self._missed(power, value)
        missed = missed / (1.0 - missed) if missed < 1.0 else math.inf  # in units of M itself
        missed += self._aliases(frequency)
        zero = np.zeros_like(exponents)
        return point_nodes(self.losses, exponents, (value, rounding), (relative, zero), missed)

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        """ln M between its bounds; E S = 1, so E S^w >= 1 for w >= 1 and for w <= 0."""
        power = self.shift + self.sign * tilt
        value = float(log_sum_exp(self._exponents(tilt)))
        missed = self._missed(power, value) + self._aliases(0.0)
        if missed == math.inf:  # nothing is known of this power
            return np.array([value]), np.array([math.inf])
        slack = 64.0 * UNIT * (4.0 + abs(value) + float(np.abs(power * self.law.points).max()))
        high = value + math.log1p(missed) + slack
        low = value + math.log1p(-missed) - slack if missed < 1.0 else -math.inf
        if power >= 1.0 or power <= 0.0:
            low = min(max(low, 0.0), high)
        return np.array([0.5 * (low + high)]), np.array([0.5 * (high - low) + slack])

    def _missed(self, power: float, value: float) -> float:
        """Errors of the densities and what lies outside of the grid, over e^value."""
        law = self.law
        exponents = power * law.points - value
        outside = float(np.logaddexp(*law.log_outside(power))) - value
        if max(float(exponents.max()), outside) > 700.0:
            return math.inf
        inside = law.step * float(np.exp(exponents) @ law.error)
        return 1.01 * inside + math.exp(outside)

    def _aliases(self, frequency: float) -> float:
        """The aliasing error of the trapezoidal sum, for all |y| up to this frequency."""
        room = 2.0 * math.pi / self.law.step - frequency
        if room <= 0.0:
            return math.inf
        return 3.0 * math.exp(-0.5 * self.law.variance * room * room)

    def decay(self, tilt: float) -> Decay:
        variance = self.law.variance * (1.0 - 1e-12)

        def normal_part(y: float) -> FloatArray:
            return np.array([math.exp(-0.5 * variance * y * y)])

        return replace(no_decay(), further=normal_part)
