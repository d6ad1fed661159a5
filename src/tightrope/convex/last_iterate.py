"""Private minimisers that release their last iterate only: the hidden-state theorems' processes.

The loss is convex and smooth, the step is at most 2/beta, and the iterates stay hidden; then the
privacy loss of early records fades (theory A40-A60, C.1). `noise_multiplier` is relative to the
Lipschitz constant, on the sum over a batch, as everywhere in this package.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, final

from tightrope.convex.algorithms import Solution, no_public_rows, project
from tightrope.convex.entropy import Entropy
from tightrope.convex.problem import Problem
from tightrope.convex.rows import Block, Data
from tightrope.errors import InvalidInput
from tightrope.process.convex import CyclicSGD, NoisyGradientDescent, SkipSGD, StopSGD
from tightrope.validate import FloatArray

__all__ = ["LastIterateDescent", "CyclicDescent", "SkipDescent", "StopDescent"]


@dataclass(frozen=True)
class _Hidden:
    step_size: float
    noise_multiplier: float = 1.0
    radius: float | None = None

    def with_noise(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def _described(self, problem: Problem, batch_size: int) -> dict[str, Any]:
        """What every hidden-state process says about its steps."""
        return {
            "loss": problem.constants,
            "step_size": self.step_size,
            "noise_std": self.noise_multiplier * problem.loss.slope_bound / batch_size,
            "diameter": None if self.radius is None else 2.0 * self.radius,
            "adjacency": problem.adjacency,
        }

    def _step(
        self, problem: Problem, batch: Block, size: int, weights: FloatArray, entropy: Entropy
    ) -> FloatArray:
        noise_std = self.noise_multiplier * problem.loss.slope_bound
        total = problem.block_gradient(batch, weights) + noise_std * entropy.normal(weights.shape)
        gradient = total / size + problem.strength * weights
        return project(weights - self.step_size * gradient, self.radius)


@final
@dataclass(frozen=True)
class LastIterateDescent(_Hidden):
    """Full-batch noisy gradient descent, only the last iterate released."""

    steps: int = 1

    def passes(self, problem: Problem) -> float:
        return float(self.steps)

    def process(self, problem: Problem) -> NoisyGradientDescent:
        described = self._described(problem, problem.records)
        return NoisyGradientDescent(**described, records=problem.records, steps=self.steps)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        noise_std = self.noise_multiplier * problem.loss.slope_bound
        weights = project(start, self.radius)
        for _ in range(self.steps):
            total = problem.gradient_sum(weights) + noise_std * entropy.normal(weights.shape)
            total += problem.public_sum(weights)
            gradient = total / problem.records + problem.strength * weights
            weights = project(weights - self.step_size * gradient, self.radius)
        return Solution(weights, problem.data.scaling)


@final
@dataclass(frozen=True)
class CyclicDescent(_Hidden):
    """Batches of `batch_size` rows in file order, the same in each epoch; public rows come last.

    batch_size = 1 is PNSGD (one epoch) and its multi-epoch form. A short last batch is divided by
    `batch_size` all the same: its map contracts no less and moves no more.
    """

    batch_size: int = 1
    epochs: int = 1

    def passes(self, problem: Problem) -> float:
        return float(self.epochs)

    def process(self, problem: Problem) -> CyclicSGD:
        last_private = math.ceil(problem.data.count / self.batch_size)
        public = problem.public.count if problem.public is not None else 0
        return CyclicSGD(
            **self._described(problem, self.batch_size),
            batch_size=self.batch_size,
            batches_per_epoch=last_private + math.ceil(public / self.batch_size),
            epochs=self.epochs,
            index=last_private if public else None,
        )

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        weights = project(start, self.radius)
        for _ in range(self.epochs):
            for data in (problem.data, problem.public):
                for batch in batches(data, self.batch_size) if data is not None else ():
                    weights = self._step(problem, batch, self.batch_size, weights, entropy)
        return Solution(weights, problem.data.scaling)


@final
@dataclass(frozen=True)
class SkipDescent(_Hidden):
    """PNSGD that skips a secret number of first records (theory A43)."""

    def passes(self, problem: Problem) -> float:
        return 1.0

    def process(self, problem: Problem) -> SkipSGD:
        no_public_rows(problem, "skip")
        return SkipSGD(**self._described(problem, 1), records=problem.data.count)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        skipped = entropy.whole_number(0, problem.data.count // 2)
        weights = project(start, self.radius)
        for position, row in enumerate(batches(problem.data, 1)):
            if position >= skipped:
                weights = self._step(problem, row, 1, weights, entropy)
        return Solution(weights, problem.data.scaling)


@final
@dataclass(frozen=True)
class StopDescent(_Hidden):
    """PNSGD that stops after a secret number of records (theory A45)."""

    def passes(self, problem: Problem) -> float:
        return 1.0

    def process(self, problem: Problem) -> StopSGD:
        no_public_rows(problem, "stop")
        return StopSGD(**self._described(problem, 1), records=problem.data.count)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        used = entropy.whole_number(1, problem.data.count)
        weights = project(start, self.radius)
        for position, row in enumerate(batches(problem.data, 1)):
            if position >= used:
                break
            weights = self._step(problem, row, 1, weights, entropy)
        return Solution(weights, problem.data.scaling)


def batches(data: Data, size: int) -> Iterator[Block]:
    """Consecutive batches of `size` rows; the last may be shorter."""
    part = getattr(data, "part", None)
    if part is not None:
        for at in range(0, data.count, size):
            yield part(slice(at, at + size))
        return
    if size != 1:
        raise InvalidInput(
            "A stream is read in its own blocks, which need not match the batches of the analysis. "
            "Use batch_size=1, a full-batch algorithm, or a memory-mapped array."
        )
    for block in data.blocks():
        for row in range(len(block.factors)):
            yield block.only(slice(row, row + 1))
