"""What every ordered dominating pair (P, Q) answers about its privacy loss.

L = ln dP/dQ (X). Under P, L may be +inf (mass `infinite_mass`); under Q it may be -inf.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

__all__ = ["AbstractLossPair", "Components", "LogMasses", "infinite_log_mass", "is_single"]
__all__ += ["largest_loss"]

# ln of a mass under P, and ln of the mass of the same event under Q
LogMasses = tuple[FloatArray, FloatArray]


class AbstractLossPair(ABC):
    """An ordered pair (P, Q) that dominates one release; frozen and hashable.

    Error: the log masses below have an absolute error of at most `log_error(l)`: the rounding of
    the map from l to the point where the loss passes l, times the slope of the log mass there.
    """

    on_lattice: ClassVar[bool] = True  # does the lattice method have a rule for it?
    has_closed_form: ClassVar[bool] = True  # is delta(epsilon) of one release at hand?

    @property
    def has_jumps(self) -> bool:
        """Is L unbounded above because a rare draw hits the record?"""
        return False

    @property
    def has_rare_losses(self) -> bool:
        """Are its largest losses so rare that a law may do without them (contour_rare)?"""
        return False

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
        """By how many units, relative, the ends of the support may be off."""
        return 8.0

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """(loss, mass under P) of every atom of L at a finite loss; Q has mass * e^-loss."""
        return ()

    @property
    def total_variation(self) -> float | None:
        """delta(0), right to a few ulp, where a formula is at hand."""
        return None

    @property
    def log_mean_square(self) -> float:
        """ln of E_Q e^{2L} or of E_P e^{-2L}, right to a few ulp; inf where none is at hand."""
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


# One ordered neighbouring pair of runs: the dominating pairs of its parts, with their counts.
Components = tuple[tuple[AbstractLossPair, int], ...]


def is_single(components: Components) -> bool:
    """One release, once, with a closed form."""
    return len(components) == 1 and components[0][1] == 1 and components[0][0].has_closed_form


def as_losses(loss: ArrayLike) -> FloatArray:
    return np.asarray(loss, dtype=np.float64)


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
