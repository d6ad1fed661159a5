"""Asymptotic answers: useful to look at, never a guarantee.

`Estimate` shares no base class with `Guarantee`: nothing that certifies, composes or calibrates
accepts one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.guarantee.base import Validity
from tightrope.guarantee.gaussian import profile
from tightrope.process import Adjacency
from tightrope.validate import check_delta, check_epsilon, check_probability

__all__ = ["Estimate"]


@final
@dataclass(frozen=True)
class Estimate:
    """A Gaussian curve that the truth approaches in a limit; its error here is unknown."""

    mu: float
    adjacency: Adjacency
    why: str

    @property
    def validity(self) -> Validity:
        return Validity.ESTIMATE

    def epsilon(self, delta: float) -> float:
        return float(profile.epsilon(check_delta(delta), self.mu))

    def delta(self, epsilon: float) -> float:
        return float(profile.delta(check_epsilon(epsilon), self.mu))

    def tradeoff(self, type_i: float) -> float:
        return float(profile.tradeoff(check_probability(type_i, "type_i"), self.mu))
