"""Laplace noise, whole or sampled, and the exponential mechanism.

Laplace noise and the exponential mechanism have the density inner * e^{(l - top)/2} of L under P
for |l| < top; Laplace noise has an atom at each end, too.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import cast, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.loss.abstract import (
    AbstractLossPair,
    Group,
    LogMasses,
    Side,
    as_losses,
    extreme,
    largest_loss,
    mirrored,
)
from tightrope.guarantee.loss.pairs.points import (
    BoundedCumulant,
    EqualPanels,
    atoms_measure,
    to_ends,
)
from tightrope.guarantee.loss.pairs.sampling import (
    NEVER,
    above_infimum,
    below_support,
    log_sampled,
    sampled_added,
    sampled_removed,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import LOG_MASS_SLACK, AbstractFamily, Decay
from tightrope.numerics.lattice import LatticeMeasure, check_size, gap_bound, gathered, lowered
from tightrope.numerics.quadrature import gauss_legendre, log_sum_exp
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray, check_positive, check_probability


class AbstractBoundedPair(AbstractLossPair):
    """Losses of a bounded range, laid out on a lattice that holds both ends and the middle."""

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def spacing(self) -> float:
        low, high = self.support
        return 0.5 * (high - low)

    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        edges = np.linspace(*self.support, 402)
        losses = np.clip(0.5 * (edges[:-1] + edges[1:]), *self.support)
        losses[0], losses[-1] = self.support
        below = np.exp(self.log_cdf(edges)[0])
        below[0] = 0.0
        return losses, np.log(np.maximum(np.diff(below), 1e-320))

    def _within(self, loss: FloatArray, above: float, below: float, *logs: FloatArray) -> LogMasses:
        """ln masses of half-lines under P and Q, with their values beyond the support."""
        low, high = self.support
        p, q = (np.where(loss >= high, above, np.where(loss < low, below, v)) for v in logs)
        return p, q


class AbstractExponentialPair(AbstractBoundedPair):
    """Losses with the density inner * e^{(l - top)/2} under P for |l| < top; its own mirror."""

    top: float

    @property
    @abstractmethod
    def inner(self) -> float: ...

    @property
    def support(self) -> tuple[float, float]:
        return (-self.top, self.top)

    def reversed(self) -> AbstractLossPair:
        return self

    def cumulant(self, count: int = 1) -> AbstractFamily:
        return LaplaceCumulant(self, count)

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        return atoms_measure(*laplace_atoms(self, side, step), side, step, rate, 16.0 * ULP)


@final
@dataclass(frozen=True)
class LaplacePair(AbstractExponentialPair):
    """Laplace noise of `scale` (in units of the sensitivity): P = Lap(0), Q = Lap(1)."""

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_positive(self.scale, "scale"))

    @cached_property
    def top(self) -> float:  # type: ignore[override]
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
        return 0.25

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        top = self.top
        return ((-top, 0.5 * math.exp(-top)), (top, 0.5))

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        x, top = as_losses(loss), self.top
        inner = np.clip(x, -top, top)
        # P(L > l) = 1 - e^{-(top - l)/2}/2 and Q(L > l) = e^{-(top + l)/2}/2 for |l| < top
        log_p = np.log1p(-0.5 * np.exp(-0.5 * (top - inner)))
        return self._within(x, -np.inf, 0.0, log_p, -math.log(2.0) - 0.5 * (top + inner))

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        # by symmetry P(L <= l) = Q(L >= -l); the law is continuous strictly inside
        x, top = as_losses(loss), self.top
        inner = np.clip(x, -top, top)
        log_q = np.log1p(-0.5 * np.exp(-0.5 * (top + inner)))
        return self._within(x, 0.0, -np.inf, -math.log(2.0) - 0.5 * (top - inner), log_q)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        return 8.0 * ULP * (1.0 + np.abs(as_losses(loss)) + self.top)

    def log_delta_single(self, epsilon: float) -> Interval:
        return _log_laplace_delta(epsilon, self.top)

    @property
    def family(self) -> object:
        return LaplacePair

    @property
    def strength(self) -> tuple[float, ...]:
        return (1.0 / self.scale,)

    def dominating(self, group: Group, side: Side) -> AbstractLossPair:
        smallest: Side = "lower" if side == "upper" else "upper"
        return cast(AbstractLossPair, extreme(group, smallest, "scale"))


@final
@dataclass(frozen=True)
class BoundedRangePair(AbstractExponentialPair):
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

    def log_delta_single(self, epsilon: float) -> Interval:
        """(1 - e^{(eps - top)/2})^2/(1 - e^-top), |eps| <= top."""
        if epsilon >= self.top:
            return NEVER
        if epsilon <= -self.top:
            return below_support(epsilon)
        half = _log_laplace_delta(epsilon, self.top)
        scale = -math.log(-math.expm1(-self.top))
        slack = 8.0 * ULP * (1.0 + abs(scale))
        return Interval(
            2.0 * half.lower + scale - slack, min(0.0, 2.0 * half.upper + scale + slack)
        )


def _log_laplace_delta(epsilon: float, top: float) -> Interval:
    """1 - e^{(eps - top)/2}, |eps| <= top."""
    if epsilon >= top:
        return NEVER
    gap = epsilon if epsilon <= -top else 0.5 * (epsilon - top)
    value = math.log(-math.expm1(gap))
    error = 4.0 * ULP * (1.0 + (abs(epsilon) + top) / abs(gap) + abs(value))
    return Interval(value - error, min(0.0, value + error))


# ---- The cumulants of Laplace noise and of the exponential mechanism
# Error: Gauss-Legendre panels; the entire integrand is bounded on a Bernstein ellipse around each.
@final
class LaplaceCumulant(BoundedCumulant):
    """L = top (1 - 2x) with density 2 top inner e^{-top x} for x in [0, 1], and atoms."""

    def __init__(self, pair: AbstractExponentialPair, count: int) -> None:
        super().__init__(count)
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
        g = (tilt + 0.5) * edges - 0.5 * self.top + self.log_inner
        g = g - self._log_size(tilt) - LOG_MASS_SLACK
        return self._layered(edges, np.exp(np.minimum(g[:-1], g[1:])), tilt)


# ---- Laplace noise on a Poisson sample: a record is removed, added, or replaced by its opposite
# P has the density A_plus(x), Q the density A_minus(-x), relative to Laplace noise of scale b at 0.
# A(x) = 1 - q + q e^{(|x| - |x - 1|)/b} where the record is there, otherwise 1. So A rises from
# x = 0 to x = 1 and is constant elsewhere, and L(x) = ln A_plus(x) - ln A_minus(-x) rises from -1
# (or 0) to 1 (or 0); the noise beyond these points is an atom of L at each end.
@final
@dataclass(frozen=True)
class LaplaceMixturePair(AbstractBoundedPair):
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
        x, (low, high) = self.point(loss)[0], self.ends
        logs = self._log_above(x, high), self._log_above(x, low)
        return self._within(as_losses(loss), -np.inf, 0.0, *logs)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        x, (low, high) = self.point(loss)[0], self.ends
        logs = self._log_above(-x, -high), self._log_above(-x, -low)
        return self._within(as_losses(loss), 0.0, -np.inf, *logs)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        return np.asarray(self.point(loss)[1] + 16.0 * ULP * (1.0 + 1.0 / self.scale))

    def log_delta_single(self, epsilon: float) -> Interval:
        """Both: P - e^eps Q = q (Lap(1) - kappa Lap(0)) for x >= 0, kappa that of eps + ln A(0)."""
        base = partial(_log_laplace_delta, top=1.0 / self.scale)
        both = self.plus and self.minus
        if both and epsilon < 0.0:
            return mirrored(self.log_delta_single(-epsilon), epsilon)
        if epsilon >= largest_loss(((self, 1),)).upper:
            return NEVER
        if not self.plus:
            return sampled_added(self.rate, epsilon, base)
        if not both:
            return sampled_removed(self.rate, epsilon, base)
        moved = epsilon + float(self.log_arm(np.zeros(1))[0])
        slack = 8.0 * ULP * (1.0 + abs(epsilon) + abs(moved))
        low, high = (sampled_removed(self.rate, moved + way * slack, base) for way in (1.0, -1.0))
        return Interval(low.lower, high.upper)

    def cumulant(self, count: int = 1) -> AbstractFamily:
        return LaplaceMixtureCumulant(self, count)

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        atoms = sampled_laplace_atoms(self, side, step)
        return atoms_measure(*atoms, side, step, rate, 64.0 * ULP, self.loss_units)


def _log_tail(x: FloatArray) -> FloatArray:
    """ln P(X > x) of Laplace noise of scale 1; its slope is at most 1."""
    right = -math.log(2.0) - np.maximum(x, 0.0)
    return np.where(x >= 0.0, right, np.log1p(-0.5 * np.exp(np.minimum(x, 0.0))))


# ---- The cumulant of sampled Laplace noise
# M(z) = int A_plus^{1+z} A_minus^{-z} d Lap over the points where L rises, and the two atoms.
#
# Error: Gauss-Legendre panels on either side of 0. With u = (2x - 1)/b, ln A = ln(1 - q + q e^u)
# has the derivative 1/(1 + (1-q) e^-u/q) in u, of size at most 1 where |Im u| <= pi/2; so on
# |Im x| <= pi b/4 the integrand's logarithm has a slope of at most (1 + 2 max(|1+z|, |z|))/b.
_CELLS = 256  # of the density of L, on either side of 0


@final
class LaplaceMixtureCumulant(BoundedCumulant):
    """K of one LaplaceMixturePair."""

    def __init__(self, pair: LaplaceMixturePair, count: int) -> None:
        super().__init__(count)
        self.pair = pair
        low, high = pair.support
        self.largest = max(high, -low)
        self.ends, masses = (np.array(column) for column in zip(*pair.atoms, strict=True))
        self.log_ends = np.log(masses)
        self.sides = [(low, low + 1.0) for low in (-1.0, 0.0) if pair.ends[0] <= low < pair.ends[1]]
        self.length, self.height = float(len(self.sides)), 0.25 * math.pi * pair.scale

    def _log_density(self, x: FloatArray) -> FloatArray:
        """ln of the density of P."""
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
        return self._layered(all_edges, np.concatenate(heights), tilt)


# ---- All of them on a lattice of their own
# The lattice ends at both atoms. Above, the mass of each cell goes to its ends so that P and Q keep
# theirs; below, the chords are lowered (numerics.lattice).
_FEWEST, _MOST = 4, 200_000
_PANEL = 0.25  # of b: 8 points have an error below 1e-15 there
_NODES = 8


def laplace_atoms(
    pair: AbstractExponentialPair, side: str, step: float
) -> tuple[FloatArray, FloatArray]:
    """Losses and masses under P, above or below; the density is inner * e^{(l - top)/2}."""
    top = pair.top
    check_size(2.0 * top / step)
    cells = max(3, round(2.0 * top / step))
    own = 2.0 * top / cells
    loss = -top + own * np.arange(cells + 1, dtype=np.float64)
    density = pair.inner * np.exp(0.5 * (loss[:-1] - top))
    right = density * 8.0 * math.sinh(0.25 * own) ** 2 / -math.expm1(-own)
    whole = density * 2.0 * math.expm1(0.5 * own)
    # in units of Q times e^{l_i}: the right end holds its P mass times e^-own
    left, right = whole - right, right * math.exp(-own)
    masses = _masses(left, right, density * math.expm1(own), side, own)
    return loss, _with_atoms(masses, pair.atoms)


def sampled_laplace_atoms(
    pair: LaplaceMixturePair, side: str, step: float
) -> tuple[FloatArray, FloatArray]:
    """Losses and masses under P; where both sides of 0 count, 0 is on the lattice: L' jumps."""
    low, high = pair.support
    cells = 2 * max(_FEWEST, round(0.5 * (high - low) / step))
    while cells > _MOST:  # every other point, or about so many; what is off the lattice is moved
        cells = 2 * (cells // 4)
    own = (high - low) / cells
    loss = low + own * np.arange(cells + 1, dtype=np.float64)
    x = pair.point(loss)[0]
    x[0], x[-1] = pair.ends
    left, right = _shares(pair, x, loss, own)
    # the density of e^L under Q is largest at an end of each cell: its logarithm is convex in x
    at = np.exp(pair.log_plus(x) - np.abs(x) / pair.scale - pair.log_share(x)) / 4.0
    peak = np.maximum(at[:-1], at[1:] * math.exp(-2.0 * own)) * math.expm1(own) * (1.0 + 1e-9)
    masses = _masses(left, right * math.exp(-own), peak, side, own)
    return loss, _with_atoms(masses, pair.atoms)


def _shares(
    pair: LaplaceMixturePair, x: FloatArray, loss: FloatArray, own: float
) -> tuple[FloatArray, FloatArray]:
    """P given to the left and to the right end of each cell, on panels short against b."""
    widest = float(np.max(np.diff(x)))
    panels = math.ceil(widest / (_PANEL * pair.scale)) or 1
    at, weights = gauss_legendre(_NODES)
    width = np.diff(x)[:, None, None] / panels
    s = x[:-1, None, None] + width * (np.arange(panels)[:, None] + 0.5 * (at + 1.0))
    density = np.exp(pair.log_plus(s) - np.abs(s) / pair.scale) / (2.0 * pair.scale)
    mass = density * (0.5 * weights) * width
    to_left, to_right = to_ends(np.clip(pair.loss(s) - loss[:-1, None, None], 0.0, own), own)
    return (mass * to_left).sum(axis=(1, 2)), (mass * to_right).sum(axis=(1, 2))


def _masses(
    left: FloatArray, right: FloatArray, peak: FloatArray, side: str, own: float
) -> FloatArray:
    """At the ends of the cells, from shares in units of Q times e^{l_i}."""
    if side == "upper":
        return gathered(left, right, own)
    low, clipped = lowered(left, right, gap_bound(left, right, peak), own, own, 0.0)
    if clipped > 0.0 or low[0] > 0.0:  # too coarse for chords: every loss falls to its cell's left
        return np.append(left + right * math.exp(own), 0.0)
    return low[1:]


def _with_atoms(masses: FloatArray, atoms: tuple[tuple[float, float], ...]) -> FloatArray:
    if atoms:
        masses[0] += atoms[0][1]
        masses[-1] += atoms[1][1]
    return masses
