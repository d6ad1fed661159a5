"""One epoch in which a record joins one of t batches, chosen in secret (random allocation)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from numpy.typing import ArrayLike

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses
from tightrope.guarantee.loss.gaussian import Direction
from tightrope.validate import FloatArray, check_count, check_positive

__all__ = ["AllocationPair"]

_LARGEST_LOG = 700.0


@final
@dataclass(frozen=True)
class AllocationPair(AbstractLossPair):
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

    on_lattice: ClassVar[bool] = False
    has_closed_form: ClassVar[bool] = False

    @property
    def infinite_mass(self) -> float:
        return 0.0

    @property
    def support(self) -> tuple[float, float]:
        return (-float("inf"), float("inf"))

    @property
    def log_mean_square(self) -> float:
        return math.log1p(math.expm1(min(self.mu**2, _LARGEST_LOG)) / self.batches)

    def reversed(self) -> AllocationPair:
        other: Direction = "add" if self.direction == "remove" else "remove"
        return AllocationPair(self.batches, self.mu, other)

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        raise NotCertified(_NO_MASSES)

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        raise NotCertified(_NO_MASSES)

    def log_error(self, loss: ArrayLike) -> FloatArray:
        raise NotCertified(_NO_MASSES)


_NO_MASSES = (
    "The law of an epoch of balls in bins is known by its density, and the lattice method asks for "
    "masses of half-lines. Only the inversion integral answers here."
)
