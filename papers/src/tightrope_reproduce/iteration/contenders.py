"""The algorithms of Table 1, each with the noise that gives every example the same privacy.

All neighbours replace one record. `noise(records, tasks)` is the noise multiplier (the loss is
1-Lipschitz, so it is the standard deviation on one gradient) for which `tasks` outputs together are
(EPSILON, DELTA)-DP for every record; `learn` runs one task with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np

from tightrope.convex import (
    Budget,
    CyclicDescent,
    Entropy,
    Logistic,
    PoissonDescent,
    Problem,
    SizeOnly,
    SkipDescent,
    StopDescent,
    calibrated,
)
from tightrope.convex.algorithms import project
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.gaussian import compose_mu
from tightrope.process.convex import ConvexLoss, LocalGradient
from tightrope.theorems.last_iterate.descent import HiddenLocal
from tightrope.validate import FloatArray
from tightrope_reproduce.formulas.gaussian_noise import analytic_noise
from tightrope_reproduce.iteration.synthetic import Population
from tightrope_reproduce.plan import many_tasks
from tightrope_reproduce.plan.utility import StepChoice, best_step

__all__ = ["CONTENDERS", "DELTA", "EPSILON", "LOSS", "POPULATION", "Contender", "local_epsilon"]

POPULATION = Population()
EPSILON, DELTA = 1.0, 1e-6
LOSS = ConvexLoss(Logistic().slope_bound, Logistic().curvature_bound)
Noise = Callable[[int, int], float]
Learn = Callable[[Problem, Entropy, float, float], FloatArray]


@final
@dataclass(frozen=True)
class Contender:
    """One row of Table 1. `sends` is how often a device sends its gradient; None: in the clear."""

    name: str
    one_task: str
    many_tasks: str
    local: str
    noise: Noise
    learn: Learn
    sends: Callable[[int], int | None]
    per_step: bool = True  # noise in every gradient, not on the output

    def step(self, records: int, noise: float) -> StepChoice:
        """The step size of the least excess-loss bound, by one rule for all."""
        second = LOSS.lipschitz**2
        if self.per_step:
            second += POPULATION.dimension * noise**2
        else:  # the output's noise, 2 L step_size noise in each direction, acts like variance
            second += 4.0 * LOSS.lipschitz**2 * math.sqrt(POPULATION.dimension) * noise
        limit = 2.0 / LOSS.smoothness
        return best_step(POPULATION.radius, second, records, steps=records, largest=limit)

    def weights(self, records: int, noise: float) -> Callable[[Problem, Entropy], FloatArray]:
        """The run of one task, as `measured` wants it."""
        step_size = self.step(records, noise).step_size
        return lambda problem, entropy: self.learn(problem, entropy, step_size, noise)


def local_epsilon(contender: Contender, records: int) -> float:
    """Local epsilon at DELTA of all that one device sends for one task."""
    sends = contender.sends(records)
    if sends is None:
        return math.inf
    noise = contender.noise(records, 1) * LOSS.lipschitz
    sent: Guarantee = HiddenLocal.guarantee(LocalGradient(LOSS, noise)) ** sends
    return sent.epsilon(DELTA).upper


@cache
def _sampled(records: int, tasks: int) -> float:
    """Secret Poisson batches of one record on average, `records` of them for each task."""
    public = Problem(SizeOnly(records, POPULATION.dimension), Logistic())
    run = PoissonDescent(1.0 / records, tasks * records, step_size=1.0)
    ready, _ = calibrated(run, public, Budget(EPSILON, DELTA))
    return float(ready.noise_multiplier)


def _composed(records: int, tasks: int) -> float:
    """A record is used once in each task and every gradient is seen."""
    return float(analytic_noise(EPSILON, DELTA, compose_mu([2.0], [tasks])))


def _on_output(records: int, tasks: int) -> float:
    """Noise on the output, in units of its sensitivity 2 L step_size."""
    return float(analytic_noise(EPSILON, DELTA, compose_mu([1.0], [tasks])))


@cache
def _stopped(records: int, tasks: int) -> float:
    """Theorem 32 with the least noise that its composed guarantee allows."""
    plan = many_tasks(
        LOSS,
        tasks=tasks,
        records=records,
        dimension=POPULATION.dimension,
        radius=POPULATION.radius,
        epsilon=EPSILON,
        delta=DELTA,
    )
    return plan.noise_std


def _poisson(problem: Problem, entropy: Entropy, step_size: float, noise: float) -> FloatArray:
    count = problem.records
    run = PoissonDescent(1.0 / count, count, step_size, noise, POPULATION.radius)
    return run.run(problem, entropy, _start()).weights


def _last(kind: Any) -> Learn:
    def learn(problem: Problem, entropy: Entropy, step_size: float, noise: float) -> FloatArray:
        weights: FloatArray = (
            kind(step_size, noise, POPULATION.radius).run(problem, entropy, _start()).weights
        )
        return weights

    return learn


def _perturbed(problem: Problem, entropy: Entropy, step_size: float, noise: float) -> FloatArray:
    clean = CyclicDescent(step_size, 0.0, POPULATION.radius).run(problem, entropy, _start())
    scale = 2.0 * LOSS.lipschitz * step_size * noise
    return project(clean.weights + scale * entropy.normal(clean.weights.shape), POPULATION.radius)


def _start() -> FloatArray:
    return np.zeros(POPULATION.dimension)


_ROOT, _ROOT_K = "O~(sqrt(d/(eps^2 n)))", "O~(sqrt(d k/(eps^2 n)))"
CONTENDERS = (
    Contender(
        "noisy SGD + sampling",
        "O~(sqrt(d/(eps n)))",
        "O~(sqrt(d/(eps n)))",
        "O~(n)",
        _sampled,
        _poisson,
        sends=lambda records: records,  # who takes part is secret, so all send in every step
    ),
    Contender("noisy SGD", _ROOT, _ROOT_K, "eps", _composed, _last(CyclicDescent), lambda _: 1),
    Contender(
        "output perturbation",
        _ROOT,
        _ROOT_K,
        "inf",
        _on_output,
        _perturbed,
        lambda _: None,
        per_step=False,
    ),
    Contender("Skip-PNSGD", _ROOT, _ROOT_K, "eps", _composed, _last(SkipDescent), lambda _: 1),
    Contender("Stop-PNSGD", _ROOT, _ROOT, "eps", _stopped, _last(StopDescent), lambda _: 1),
)
