"""Private minimisers that release their last iterate only: the hidden-state theorems' processes.

The loss is convex and smooth, the step is at most 2/beta, and the iterates stay hidden; then the
privacy loss of early records fades. `noise_multiplier` is relative to the
Lipschitz constant, on the sum over a batch, as everywhere in this package. Iterates stay in a ball
(`radius`, or a wide one where none is given), so that the rounding of a step is bounded; what it
takes from the contraction is charged as sensitivity (see `arithmetic`). Strong convexity is claimed
only where the last step before the release may use the record: elsewhere it would make the
record's own part smaller than the rounding that is charged in proportion to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, final

from tightrope.convex.algorithms import Solution, charged, no_public_rows, project
from tightrope.convex.arithmetic import BALL, of_iterates
from tightrope.convex.entropy import Entropy
from tightrope.convex.problem import Problem
from tightrope.convex.rows import Block, Data
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency
from tightrope.process.convex import CyclicSGD, NoisyGradientDescent, SkipSGD, StopSGD
from tightrope.validate import FloatArray


@dataclass(frozen=True)
class _Hidden:
    step_size: float
    noise_multiplier: float = 1.0
    radius: float | None = None

    def with_noise(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    @property
    def _ball(self) -> float:
        return BALL if self.radius is None else self.radius

    def _rounding(self, problem: Problem, steps: int, size: int) -> float:
        return of_iterates(
            problem, steps=steps, size=size, step_size=self.step_size, radius=self.radius
        )

    def rounding(self, problem: Problem) -> float:
        """One row a step, one pass."""
        return self._rounding(problem, problem.records, 1)

    def _described(
        self, problem: Problem, batch_size: int, used_last: bool = True
    ) -> dict[str, Any]:
        """What every hidden-state process says about its steps."""
        if problem.adjacency is not Adjacency.REPLACE_ONE:
            raise InvalidInput(
                "The theorems about last iterates compare data of one public size, row by row: "
                "they need adjacency='replace-one'. Under add-or-remove use 'descent' or 'poisson'."
            )
        sensitivity = charged(self, problem)
        return {
            "loss": problem.constants(sensitivity, contracting=used_last),
            "step_size": self.step_size,
            "noise_std": self.noise_multiplier * sensitivity / batch_size,
            "diameter": None if self.radius is None else 2.0 * self.radius,
            "adjacency": problem.adjacency,
        }

    def _step(
        self, problem: Problem, batch: Block, size: int, weights: FloatArray, noise: FloatArray
    ) -> FloatArray:
        total = problem.block_gradient(batch, weights) + noise
        gradient = total / size + problem.regulariser(weights)
        return project(weights - self.step_size * gradient, self._ball)


@final
@dataclass(frozen=True)
class LastIterateDescent(_Hidden):
    """Full-batch noisy gradient descent, only the last iterate released."""

    steps: int = 1

    def passes(self, problem: Problem) -> float:
        return float(self.steps)

    def rounding(self, problem: Problem) -> float:
        return self._rounding(problem, self.steps, problem.records)

    def process(self, problem: Problem) -> NoisyGradientDescent:
        described = self._described(problem, problem.records)
        return NoisyGradientDescent(**described, records=problem.records, steps=self.steps)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        noise_std = self.noise_multiplier * charged(self, problem)
        weights = project(start, self._ball)
        for _ in range(self.steps):
            total = problem.gradient_sum(weights) + noise_std * entropy.normal(weights.shape)
            total += problem.public_sum(weights)
            gradient = total / problem.records + problem.regulariser(weights)
            weights = project(weights - self.step_size * gradient, self._ball)
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

    def rounding(self, problem: Problem) -> float:
        steps = self.epochs * (math.ceil(problem.records / self.batch_size) + 1)
        return self._rounding(problem, steps, self.batch_size)

    def process(self, problem: Problem) -> CyclicSGD:
        _check_batches(problem.data, self.batch_size)
        last_private = math.ceil(problem.counted / self.batch_size)
        public = problem.public.count if problem.public is not None else 0
        return CyclicSGD(
            **self._described(problem, self.batch_size, used_last=not public),
            batch_size=self.batch_size,
            batches_per_epoch=last_private + math.ceil(public / self.batch_size),
            epochs=self.epochs,
            index=last_private if public else None,
        )

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        noise_std = self.noise_multiplier * charged(self, problem)
        weights = project(start, self._ball)
        for _ in range(self.epochs):
            for data in (problem.data, problem.public):
                for batch in batches(data, self.batch_size) if data is not None else ():
                    noise = noise_std * entropy.normal(weights.shape)
                    weights = self._step(problem, batch, self.batch_size, weights, noise)
        return Solution(weights, problem.data.scaling)


@final
@dataclass(frozen=True)
class SkipDescent(_Hidden):
    """PNSGD that skips a secret number of first records."""

    def passes(self, problem: Problem) -> float:
        return 1.0

    def process(self, problem: Problem) -> SkipSGD:
        no_public_rows(problem, "skip")
        return SkipSGD(**self._described(problem, 1), records=problem.counted)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        skipped = entropy.whole_number(0, problem.counted // 2)
        noise_std = self.noise_multiplier * charged(self, problem)
        weights = project(start, self._ball)
        for position, row in enumerate(batches(problem.data, 1)):
            if position >= skipped:
                noise = noise_std * entropy.normal(weights.shape)
                weights = self._step(problem, row, 1, weights, noise)
        return Solution(weights, problem.data.scaling)


@final
@dataclass(frozen=True)
class StopDescent(_Hidden):
    """PNSGD that stops after a secret number of records."""

    def passes(self, problem: Problem) -> float:
        return 1.0

    def process(self, problem: Problem) -> StopSGD:
        no_public_rows(problem, "stop")
        described = self._described(problem, 1, used_last=False)
        return StopSGD(**described, records=problem.counted)

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        used = entropy.whole_number(1, problem.counted)
        noise_std = self.noise_multiplier * charged(self, problem)
        weights = project(start, self._ball)
        for position, row in enumerate(batches(problem.data, 1)):
            if position >= used:
                break
            noise = noise_std * entropy.normal(weights.shape)
            weights = self._step(problem, row, 1, weights, noise)
        return Solution(weights, problem.data.scaling)


def _check_batches(data: Data, size: int) -> None:
    if size != 1 and not data.divisible:
        raise InvalidInput(
            "A stream is read in its own blocks, which need not match the batches of the analysis. "
            "Use batch_size=1, a full-batch algorithm, or a memory-mapped array."
        )


def batches(data: Data, size: int) -> Iterator[Block]:
    """Consecutive batches of `size` rows; the last may be shorter."""
    _check_batches(data, size)
    if data.divisible:
        for at in range(0, data.count, size):
            yield data.part(slice(at, at + size))
        return
    for block in data.blocks():
        for row in range(len(block.factors)):
            yield block.only(slice(row, row + 1))
