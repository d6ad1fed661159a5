"""The interface of an ordered dominating pair (P, Q), with its privacy loss L = ln dP/dQ (X).

Under P, L may be +inf (mass `infinite_mass`); under Q it may be -inf. A mechanism is one module of
`pairs`: it answers with its law, the closed form of one release, its cumulant (for `contour`) and
its law on a lattice (for `lattice`). What those two packages need of a pair is asked here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, Self, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply, NotCertified
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import AbstractFamily, SumLaw
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray

# ln of a mass under P, and ln of the mass of the same event under Q
LogMasses = tuple[FloatArray, FloatArray]
Side = Literal["upper", "lower"]
# pairs that can be compared with each other, and how often each is released
Group = Sequence[tuple[Any, int]]
POINTS_BEYOND = 40.0  # deviations on either side of everything that counts


class AbstractLossPair(ABC):
    """An ordered pair (P, Q) that dominates one release; frozen and hashable.

    Error: the log masses below have an absolute error of at most `log_error(l)`: the rounding of
    the map from l to the point where the loss passes l, times the slope of the log mass there.
    """

    on_lattice: ClassVar[bool] = True  # does the lattice method have a rule for it?
    has_closed_form: ClassVar[bool] = True  # is delta(epsilon) of one release at hand?
    is_discrete: ClassVar[bool] = False  # does L take finitely many values only?
    is_costly: ClassVar[bool] = False  # does following very many kinds one by one take minutes?

    # ------------------------------------------------------------------------------------ its law
    @property
    @abstractmethod
    def infinite_mass(self) -> float:
        """P(L = +inf), with all that is counted so because it was cut off: never too small."""

    @property
    def least_infinite_mass(self) -> float:
        """P(L = +inf) of the release itself, without what was cut off: never too large."""
        return self.infinite_mass

    @property
    @abstractmethod
    def support(self) -> tuple[float, float]:
        """Infimum and supremum of the finite values of L."""

    @property
    def loss_units(self) -> float:
        """Relative error of the ends of the support, in units of rounding."""
        return 8.0

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """(loss, mass under P) of every atom of L at a finite loss; Q has mass * e^-loss."""
        return ()

    @property
    def parts(self) -> tuple[tuple[float, AbstractLossPair], ...]:
        """(weight, pair) of what it is a public mixture of: itself, where it is none."""
        return ((1.0, self),)

    @property
    def total_variation(self) -> float | None:
        """delta(0), right to a few ulp, where a formula is at hand."""
        return None

    @property
    def log_mean_square(self) -> float:
        """ln of E_Q e^{2L} or of E_P e^{-2L}, right to a few ulp; inf where none is at hand."""
        return math.inf

    @property
    def zero_concentrated(self) -> float:
        """A slope r with D_order(P||Q) <= r order, also for losses that were cut off, or inf."""
        return math.inf

    @abstractmethod
    def reversed(self) -> AbstractLossPair:
        """The pair (Q, P)."""

    @abstractmethod
    def log_survival(self, loss: ArrayLike) -> LogMasses:
        """ln P(L > loss), ln Q(L > loss); P's includes L = +inf."""

    @abstractmethod
    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        """ln P(L <= loss), ln Q(L <= loss); Q's includes L = -inf."""

    @abstractmethod
    def log_error(self, loss: ArrayLike) -> FloatArray:
        """Bound on the absolute error of the finite log masses at `loss`."""

    def log_delta_single(self, epsilon: float) -> Interval:
        """ln delta(epsilon) of one release, by its closed form; -inf when delta is 0."""
        raise DoesNotApply(
            f"No closed form of delta(epsilon) of one {type(self).__name__} is known. Ask for the "
            "profile of a composition: the inversion integral answers it."
        )

    # ----------------------------------------------------- its order among pairs of the same family
    @property
    def family(self) -> object:
        """Equal for pairs that can be ordered by `strength`; None where no order is known."""
        return None

    @property
    def strength(self) -> tuple[float, ...]:
        """One or two numbers with which every loss of the family grows."""
        return ()

    def dominating(self, group: Group, side: Side) -> AbstractLossPair:
        """A pair that dominates all of its family in the group, or that all of them dominate."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------- its cumulant
    @property
    def plain_mu(self) -> float | None:
        """mu, where the pair is an unsampled Gaussian."""
        return None

    @abstractmethod
    def cumulant(self, count: int = 1) -> AbstractFamily:
        """The loss of `count` releases, as a law of the inversion integral."""

    @property
    def joint(self) -> str | None:
        """Pairs of one type and the same word share a family of laws; None: one law each."""
        return None

    @classmethod
    def joint_cumulant(cls, pairs: Sequence[Self], counts: Sequence[int]) -> AbstractFamily:
        raise NotImplementedError

    @property
    def has_rare_losses(self) -> bool:
        """Are its largest losses so rare that a law may do without them (`cut_cumulant`)?"""
        return False

    @classmethod
    def cut_cumulant(
        cls, pairs: Sequence[Self], counts: Sequence[int], nats: float
    ) -> tuple[AbstractFamily, float]:
        """The law up to points that a step passes with probability about e^-nats.

        With ln of a bound on the probability that any of the steps passes them. One pair, or
        several that are `joint`.
        """
        raise NotImplementedError

    @property
    def reach(self) -> float:
        """Deviations that it moves a sum by where all records that may be drawn are drawn."""
        return 0.0

    # ---------------------------------------------------------------------- its law on a lattice
    @property
    def spacing(self) -> float | None:
        """The distance that the lattice step must divide, for pairs with several atoms."""
        return None

    @property
    def on_one_lattice(self) -> bool:
        """Are all losses whole multiples of `spacing` apart, as nearly as a lattice asks?"""
        return False

    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        """Losses in increasing order and ln of their masses under P, roughly: for plans only."""
        raise NotCertified(
            f"The lattice method needs masses of half-lines, and those of {self} are not at hand. "
            "Only the inversion integral answers for it."
        )

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        """L under P from above or below, tilted by e^{rate L}; endless losses up to a point."""
        raise NotCertified(f"The lattice method has no rule for {type(self).__name__}.")

    @property
    def jumps(self) -> Jumps | None:
        """Losses that are unbounded because a rare draw hits the record, followed one by one."""
        return None

    @property
    def has_jumps(self) -> bool:
        """Is L unbounded above because a rare draw hits the record?"""
        return False

    @property
    def is_endless(self) -> bool:
        """Have its losses no end, so that those too rare to matter count as infinite?"""
        return self.has_jumps or self.has_rare_losses

    def point_of(self, loss: float) -> float:
        """The point with this loss, or about there, for a law that is to end there."""
        return loss

    @property
    def far_point(self) -> float:
        """A point beyond all that counts, for pairs that are not endless."""
        return POINTS_BEYOND

    def largest_up_to(self, point: float) -> float:
        """The largest loss of a law that ends at this point."""
        return self.support[1]

    def log_beyond(self, point: float) -> float:
        """ln of the mass under P beyond a point: every endless pair has to state it."""
        raise NotImplementedError(f"{type(self).__name__}.log_beyond")

    @property
    def log_left_out(self) -> float:
        """ln of the mass far to the left that `measure` leaves out and does not charge itself."""
        return -math.inf

    # ------------------------------------------------------- its Renyi divergences by a second way
    def cell_edges(self, order: float, cells: int) -> FloatArray:
        """Losses between cells that show where e^{order L} counts."""
        return np.linspace(*self.support, cells + 1)

    def log_last_cell(self, order: float) -> float:
        """ln of a bound on E_Q[e^{order L}] beyond the last of these losses."""
        return -math.inf if math.isfinite(self.support[1]) else math.inf

    def divergence_terms(self, order: float, way: float) -> FloatArray | None:
        """ln of terms of e^{(order-1) D} - 1, each at its lower or upper end, if L is discrete."""
        return None


@final
@dataclass(frozen=True)
class JumpLaw:
    """Atoms of the sum of some jumps under P: losses in increasing order and ln masses."""

    losses: FloatArray
    log_masses: FloatArray
    relative_error: float
    fft: LatticeMeasure | None = None  # where they come from an FFT: tilt, scale, and its errors


class Jumps(Protocol):
    """Losses between two points of a pair, each many times larger than the others."""

    def measure(
        self, side: Side, step: float, rate: float, ends: tuple[float, float], anchor: float
    ) -> LatticeMeasure:
        """On a lattice with the point `anchor`, tilted."""

    def one(self, begin: float, end: float, cells: int, side: Side) -> JumpLaw:
        """One of them, on a grid of points."""

    def several(
        self, ends: tuple[float, float], cells: int, most: int, tilt: float, side: Side
    ) -> list[JumpLaw]:
        """The sums of 2, ..., `most` of them."""

    def log_moment(self, rate: float, end: float) -> float:
        """ln of an upper bound on E[e^{rate L}] of one step, losses up to the point `end`."""


# One ordered neighbouring pair of runs: the dominating pairs of its parts, with their counts.
Components = tuple[tuple[AbstractLossPair, int], ...]


def is_single(components: Components) -> bool:
    """One release, once, with a closed form."""
    return len(components) == 1 and components[0][1] == 1 and components[0][0].has_closed_form


def as_losses(loss: ArrayLike) -> FloatArray:
    return np.asarray(loss, dtype=np.float64)


def extreme(group: Group, side: Side, *names: str) -> Any:
    """The first pair of the group with the largest, or smallest, of each of these parameters."""
    pick = max if side == "upper" else min
    return replace(
        group[0][0], **{name: pick(getattr(pair, name) for pair, _ in group) for name in names}
    )


def mirrored(log_delta: Interval, epsilon: float) -> Interval:
    """ln(1 - e^eps + e^eps delta) for eps < 0, both terms positive."""

    def one(value: float, sign: float) -> float:
        total = -math.expm1(epsilon) + math.exp(epsilon + value)
        found = math.log(total)
        return min(0.0, found + sign * 8.0 * ULP * (1.0 + abs(found)))

    return Interval(one(log_delta.lower, -1.0), one(log_delta.upper, 1.0))


def largest_loss(components: Components) -> Interval:
    """Bounds on the supremum of the finite losses of a composition."""
    tops = [(n * pair.support[1], pair.loss_units) for pair, n in components if n > 0]
    total = math.fsum(top for top, _ in tops)
    if math.isinf(total):
        return Interval.exact(total)
    added = 0.0 if sum(n for _, n in components) <= 1 else 4.0  # units of products and their sum
    slack = UNIT * math.fsum((units + added) * abs(top) for top, units in tops)
    return Interval(total - slack, total + slack)


def infinite_log_mass(components: Components) -> Interval:
    """ln P(some loss is +inf), which no epsilon removes: ln(1 - prod (1 - P_i(L = inf))).

    Cut mass counts in the upper end only.
    """
    least = _log_any([(pair.least_infinite_mass, n) for pair, n in components])
    most = _log_any([(pair.infinite_mass, n) for pair, n in components])
    return Interval(least.lower, most.upper)


def _log_any(masses: list[tuple[float, int]]) -> Interval:
    """ln of the probability of at least one of independent events, each so often."""
    if any(mass >= 1.0 for mass, count in masses if count > 0):
        return Interval.exact(0.0)
    none = math.fsum(count * math.log1p(-mass) for mass, count in masses)
    if none == 0.0:
        return Interval.exact(-math.inf)
    value = math.log(-math.expm1(none))
    slack = 8.0 * UNIT * (2.0 + abs(value))  # a logarithm is rounded by units of its own size
    return Interval(value - slack, min(0.0, value + slack))


# ---- the sum of the losses, as a law of the inversion integral
_FAMILY = 32  # sampled Gaussians treated in one go


@lru_cache(maxsize=64)
def law_of(pair: AbstractLossPair, count: int = 1) -> AbstractFamily:
    """The loss of a pair that is not an unsampled Gaussian, as a law of the numerics."""
    return pair.cumulant(count)


def sum_law(components: tuple[tuple[AbstractLossPair, int], ...]) -> SumLaw:
    """The loss of a composition. An unsampled Gaussian has K(z) = mu^2 z (z + 1)/2."""
    variance = 0.0
    parts: dict[AbstractLossPair, int] = {}
    for pair, count in components:
        mu = pair.plain_mu
        if mu is not None:
            variance += count * mu * mu
        elif count > 0:
            parts[pair] = parts.get(pair, 0) + count
    # one law for each pair, or for several that are `joint`, those of like strength together
    families = [law_of(pair, n) for pair, n in parts.items() if pair.joint is None]
    for members in joint_members(parts.items()):
        members.sort(key=lambda member: member[0].strength[0])
        for first in range(0, len(members), _FAMILY):
            pairs, counts = zip(*members[first : first + _FAMILY], strict=True)
            if len(pairs) == 1:
                families.append(law_of(pairs[0], counts[0]))
            else:
                families.append(type(pairs[0]).joint_cumulant(pairs, counts))
    return SumLaw(tuple(families), 0.5 * variance, variance)


def joint_members(
    held: Iterable[tuple[AbstractLossPair, int]],
) -> list[list[tuple[AbstractLossPair, int]]]:
    """The pairs of each word, always in the same order of the words."""
    words: dict[str, list[tuple[AbstractLossPair, int]]] = {}
    for pair, n in held:
        if pair.joint is not None:
            words.setdefault(pair.joint, []).append((pair, n))
    return [words[word] for word in sorted(words, reverse=True)]
