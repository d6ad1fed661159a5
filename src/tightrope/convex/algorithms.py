"""Private minimisers whose every noisy gradient may be seen, and what all minimisers share.

`noise_multiplier` is always relative to the Lipschitz constant L of the loss: the SUM of gradients
receives N(0, (noise_multiplier * L (1 + rho))^2) before it is divided by a public number, where
rho bounds what rounding adds to the sensitivity (see `arithmetic`).

An algorithm says what it is (`process`) and does it (`run`) from the same fields, so what runs is
what is accounted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, final

import numpy as np

from tightrope.convex import arithmetic
from tightrope.convex.entropy import Entropy
from tightrope.convex.problem import Problem
from tightrope.convex.rows import Scaling
from tightrope.errors import InvalidInput
from tightrope.process import FullBatch, NoisySGD, PoissonSampling
from tightrope.validate import FloatArray


class Solution(NamedTuple):
    """Weights, and the scaling of the rows they belong to."""

    weights: FloatArray
    scaling: Scaling


class Algorithm(Protocol):
    """A private minimiser with all its numbers."""

    @property
    def noise_multiplier(self) -> float: ...
    def passes(self, problem: Problem) -> float: ...
    def with_noise(self, noise_multiplier: float) -> Self: ...
    def rounding(self, problem: Problem) -> float: ...
    def process(self, problem: Problem) -> Any: ...
    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution: ...


def project(weights: FloatArray, radius: float | None) -> FloatArray:
    """The nearest point of the ball; None is the whole space."""
    if radius is None:
        return weights
    size = float(np.linalg.norm(weights))
    return weights if size <= radius else weights * (radius / size)


class Rounding(Protocol):
    """Whatever knows what rounding adds to its sensitivity."""

    def rounding(self, problem: Problem) -> float: ...


def charged(algorithm: Rounding, problem: Problem) -> float:
    """The sensitivity of a sum of gradients to one record that noise and account are made for."""
    return problem.loss.slope_bound * (1.0 + algorithm.rounding(problem))


def no_public_rows(problem: Problem, name: str) -> None:
    if problem.public is not None:
        raise InvalidInput(
            f"algorithm {name!r} cannot use public rows. Use 'descent', "
            "which pools them, or 'cyclic', which visits them last."
        )


@final
@dataclass(frozen=True)
class AveragedDescent:
    """Accelerated full-batch gradient descent; the last three quarters of the iterates averaged.

    Every noisy gradient is accounted for, so acceleration and averaging are free. For a quadratic
    with Hessian H the averaged error is close to H^-1 N(0, s^2) with s = 2L/(n mu): the noise of
    ONE release of the gradient at the minimum with the whole budget, whatever the number of steps.
    The last iterate alone with a hidden-state bound has s / sqrt(h m) in a direction of curvature
    h >= m, never less. `rows_radius`: rows are shortened to no less than this around a centre.
    """

    steps: int
    step_size: float
    noise_multiplier: float = 1.0
    radius: float | None = None
    rows_radius: float = 1.0

    def passes(self, problem: Problem) -> float:
        return float(self.steps)

    def with_noise(self, noise_multiplier: float) -> AveragedDescent:
        return replace(self, noise_multiplier=noise_multiplier)

    def rounding(self, problem: Problem) -> float:
        return arithmetic.of_sums(problem, self.rows_radius)

    def process(self, problem: Problem) -> NoisySGD:
        self.rounding(problem)  # refuses what it cannot bound
        return NoisySGD(FullBatch(), self.noise_multiplier, self.steps, problem.adjacency)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        noise_std = self.noise_multiplier * charged(self, problem)
        current, previous, average = start, start, start
        kept = 0
        for step in range(self.steps):
            ahead = current + step / (step + 3.0) * (current - previous)  # Nesterov's schedule
            total = problem.gradient_sum(ahead) + noise_std * entropy.normal(ahead.shape)
            total += problem.public_sum(ahead)
            gradient = total / problem.records + problem.regulariser(ahead)
            previous, current = current, project(ahead - self.step_size * gradient, self.radius)
            if 4 * (step + 1) > self.steps:
                kept += 1
                average = average + (current - average) / kept if kept > 1 else current
        return Solution(average, problem.data.scaling)


@final
@dataclass(frozen=True)
class PoissonDescent:
    """DP-SGD: independent coins choose each batch; sums are divided by the expected batch size."""

    rate: float
    steps: int
    step_size: float
    noise_multiplier: float = 1.0
    radius: float | None = None

    def passes(self, problem: Problem) -> float:
        return self.rate * self.steps

    def with_noise(self, noise_multiplier: float) -> PoissonDescent:
        return replace(self, noise_multiplier=noise_multiplier)

    def rounding(self, problem: Problem) -> float:
        return arithmetic.of_sums(problem)

    def process(self, problem: Problem) -> NoisySGD:
        no_public_rows(problem, "poisson")
        self.rounding(problem)
        sampling = PoissonSampling(self.rate)
        return NoisySGD(sampling, self.noise_multiplier, self.steps, problem.adjacency)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        noise_std = self.noise_multiplier * charged(self, problem)
        expected = self.rate * problem.counted
        current, average, kept = start, start, 0
        for step in range(self.steps):
            total = problem.gradient_sum(current, lambda size: entropy.included(size, self.rate))
            total += noise_std * entropy.normal(current.shape)
            gradient = total / expected + problem.regulariser(current)
            current = project(current - self.step_size * gradient, self.radius)
            if 2 * (step + 1) > self.steps:
                kept += 1
                average = average + (current - average) / kept if kept > 1 else current
        return Solution(average, problem.data.scaling)
