"""Searches that release the best of a secret number of private trials, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.process.adjacency import Adjacency, check_adjacency
from tightrope.validate import check_positive

__all__ = ["PoissonSelection"]


@final
@dataclass(frozen=True)
class PoissonSelection:
    """The best of Poisson(mean_trials) independent trials, each `trial_mu`-Gaussian DP.

    A trial draws its settings at random and releases a result with its score.
    """

    trial_mu: float
    mean_trials: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("trial_mu", "mean_trials"):
            object.__setattr__(self, name, float(check_positive(getattr(self, name), name)))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))
