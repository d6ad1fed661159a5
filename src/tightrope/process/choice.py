"""Releases of one candidate out of many, chosen by noisy scores, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.process.adjacency import Adjacency, check_adjacency
from tightrope.process.users import OneRecord
from tightrope.validate import check_epsilon

__all__ = ["ExponentialMechanism", "PermuteAndFlip"]


class _Choice(OneRecord):
    epsilon: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", float(check_epsilon(self.epsilon)))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class ExponentialMechanism(_Choice):
    """One candidate, with probability proportional to e^{epsilon * score / (2 sensitivity)}.

    `sensitivity` bounds the change of every score between neighbours of `adjacency`.
    """

    epsilon: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE


@final
@dataclass(frozen=True)
class PermuteAndFlip(_Choice):
    """The first candidate in random order whose coin of chance e^{epsilon (score - best)/(2 s)}
    shows heads, s being the sensitivity of the scores: report-noisy-max with exponential noise.
    """

    epsilon: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
