"""Descent on rows centred at a privately released mean.

Rows of real tables have much in common: a large part of their norm is their mean, which tells
nothing about the label beyond an intercept but costs sensitivity. A small share of the budget buys
the mean u of the shortened rows and the mean of |u|^2 in one Gaussian release; rows are then
shortened again around that mean, and descent runs on what is left with the rest of the budget. It
also repairs a norm bound that was declared far too large.

Sensitivity of the sum of (u, |u|^2), |u| <= 1: replacing a by b moves it by at most
sqrt((a+b)^2 + (a^2-b^2)^2) for norms a, b, which increases in both, so by 2; adding or removing one
by sqrt(2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tightrope.convex.algorithms import AveragedDescent, Solution
from tightrope.convex.arithmetic import of_moments
from tightrope.convex.entropy import Entropy
from tightrope.convex.exact import CarriedTotal
from tightrope.convex.problem import Problem
from tightrope.convex.rows import Block, Scaling, SummedElsewhere
from tightrope.process import Adjacency, GaussianMechanism, Sequence
from tightrope.validate import FloatArray

_LEAST_SPREAD = 0.1  # in units of the norm bound: below it the released spread is mostly noise


@final
@dataclass(frozen=True)
class CentredDescent:
    """Release the mean with `share` of the budget (of mu^2), then `inner` on centred rows.

    Rows are shortened at `reach` root mean squared distances from the mean.
    """

    inner: AveragedDescent
    share: float
    reach: float

    @property
    def noise_multiplier(self) -> float:
        return self.inner.noise_multiplier

    @property
    def steps(self) -> int:
        return self.inner.steps

    def passes(self, problem: Problem) -> float:
        return self.inner.passes(problem) + 1.0

    def with_noise(self, noise_multiplier: float) -> CentredDescent:
        return replace(self, inner=self.inner.with_noise(noise_multiplier))

    def rounding(self, problem: Problem) -> float:
        """The larger one of the two releases'."""
        return max(self._descent.rounding(problem), of_moments(problem))

    @property
    def _descent(self) -> AveragedDescent:
        return replace(self.inner, rows_radius=min(self.reach * _LEAST_SPREAD, 1.0))

    def process(self, problem: Problem) -> Sequence:
        mean = GaussianMechanism(self._mean_noise(problem), problem.adjacency)
        return Sequence((mean, self.inner.process(problem)))

    def _mean_noise(self, problem: Problem) -> float:
        """Noise over sensitivity that makes the mean's mu^2 the `share` of the whole."""
        inner_mu = problem.moved * math.sqrt(self.inner.steps) / self.inner.noise_multiplier
        return math.sqrt((1.0 - self.share) / self.share) / inner_mu

    def run(self, problem: Problem, entropy: Entropy, start: FloatArray) -> Solution:
        scaling = self._centred(problem, entropy)
        public = None if problem.public is None else problem.public.rescaled(scaling)
        centred = replace(problem, data=problem.data.rescaled(scaling), public=public)
        return self._descent.run(centred, entropy, start)

    def _centred(self, problem: Problem, entropy: Entropy) -> Scaling:
        rho = of_moments(problem)
        noise_std = self._mean_noise(problem) * sensitivity(problem.adjacency) * (1.0 + rho)
        sums = moment_sums(problem)
        noisy = (sums + noise_std * entropy.normal(sums.shape)) / problem.counted
        mean, square = noisy[:-1], min(max(noisy[-1], 0.0), 1.0)
        # The noise lengthens the mean by a known amount; shrink it back (James and Stein).
        added = len(mean) * (noise_std / problem.counted) ** 2
        true_square = min(max(float(mean @ mean) - added, 0.0), 1.0)
        mean = mean * (true_square / max(float(mean @ mean), 1e-300))
        mean /= max(1.0, float(np.linalg.norm(mean)))  # no mean of such rows is longer
        spread = math.sqrt(max(square - true_square, _LEAST_SPREAD**2))
        # shortened rows have norm at most 1, so a larger radius would only waste sensitivity
        return problem.data.scaling.centred(mean, min(self.reach * spread, 1.0))


def sensitivity(adjacency: Adjacency) -> float:
    """Of the sum of (u, |u|^2) over rows with |u| <= 1."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else math.sqrt(2.0)


def moment_sums(problem: Problem) -> FloatArray:
    """Sum over the private rows of (u, |u|^2)."""
    plain = problem.data.rescaled(Scaling(problem.data.scaling.data_norm, 0.0))
    part = MomentSum(plain.width)
    if isinstance(plain, SummedElsewhere):
        return problem.sum_elsewhere(plain, part)
    return part(replace(problem, data=plain).private_blocks()).value


@final
@dataclass(frozen=True)
class MomentSum:
    """The sum of (u, |u|^2) over blocks of rows, wherever they are."""

    width: int

    def __call__(self, blocks: Iterable[Block]) -> CarriedTotal:
        total = CarriedTotal((self.width + 1,))
        for block in blocks:
            for piece in block.pieces():
                rows = piece.pull_back(np.ones(len(piece.factors)))
                total.add(np.append(rows, piece.squared_norms().sum()))
        return total
