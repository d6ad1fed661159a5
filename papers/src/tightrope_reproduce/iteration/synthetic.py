"""A convex learning problem whose population loss is an exact finite sum.

Rows are y s/sqrt(d), s in {-1, 1}^d with independent signs, P(s_j = 1) = (1 + bias)/2, and the loss
is logistic: 1-Lipschitz, 1/4-smooth on rows of norm 1. The population has 2^d rows, so the excess
population loss of any weights is a sum, not an estimate. By symmetry the minimiser over the ball
has equal weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from scipy.optimize import minimize_scalar

from tightrope.convex import ArrayData, Entropy, Logistic, Problem, Scaling
from tightrope.validate import FloatArray

__all__ = ["Population", "Measured", "measured"]

PLAIN_ROWS = Scaling(1.0, intercept=0.0)


@final
@dataclass(frozen=True)
class Population:
    dimension: int = 4
    bias: float = 0.8
    radius: float = 3.0

    @cached_property
    def rows(self) -> FloatArray:
        signs = (np.arange(2**self.dimension)[:, None] >> np.arange(self.dimension)) & 1
        return np.asarray((2.0 * signs - 1.0) / math.sqrt(self.dimension), dtype=np.float64)

    @cached_property
    def probabilities(self) -> FloatArray:
        chances = np.where(self.rows > 0.0, 1.0 + self.bias, 1.0 - self.bias) / 2.0
        return np.asarray(np.prod(chances, axis=1))

    @cached_property
    def least_loss(self) -> float:
        direction = np.full(self.dimension, 1.0 / math.sqrt(self.dimension))
        found = minimize_scalar(
            lambda size: self.loss(size * direction), bounds=(0.0, self.radius), method="bounded"
        )
        return min(float(found.fun), self.loss(self.radius * direction))

    def loss(self, weights: FloatArray) -> float:
        """Expected loss over the population."""
        targets = np.ones(len(self.rows))
        (block,) = ArrayData(self.rows, targets, PLAIN_ROWS).blocks()
        return float(self.probabilities @ Logistic().value(block.scores(weights), targets))

    def excess(self, weights: FloatArray) -> float:
        return self.loss(weights) - self.least_loss

    def sample(self, records: int, generator: np.random.Generator) -> ArrayData:
        drawn = generator.choice(len(self.rows), size=records, p=self.probabilities)
        return ArrayData(self.rows[drawn], np.ones(records), PLAIN_ROWS)

    def problem(self, records: int, generator: np.random.Generator, public: int = 0) -> Problem:
        """`records` rows in all, the last `public` of them public."""
        extra = self.sample(public, generator) if public else None
        return Problem(self.sample(records - public, generator), Logistic(), public=extra)


@final
@dataclass(frozen=True)
class Measured:
    """Mean excess population loss over independent runs, with its standard error."""

    mean: float
    error: float


def measured(
    population: Population,
    records: int,
    repeats: int,
    learn: Callable[[Problem, Entropy], FloatArray],
    public: int = 0,
) -> Measured:
    """Fresh data and fresh noise in every run; seeded, since made data need no privacy."""
    values: list[Any] = []
    for seed in range(repeats):
        problem = population.problem(records, np.random.default_rng((seed, records)), public)
        values.append(population.excess(learn(problem, Entropy(seed))))
    error = float(np.std(values, ddof=1)) / math.sqrt(repeats)
    return Measured(float(np.mean(values)), error)
