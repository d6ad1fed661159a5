"""The techniques of Table I as functions: the least sigma of each for one (epsilon, delta).

sigma is the survey's: noise N(0, (2 sigma L)^2) on the sum over a batch, L the clip norm or the
Lipschitz constant, so that every row adds the same noise at the same sigma. Constants of the loss:
L = 1, smoothness 1, strong convexity 0.05 where the technique needs it, step size 1/2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tightrope.accounting import account
from tightrope.calibrate import Target
from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.roots import crossing
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.process.convex import (
    ConvexLoss,
    CyclicSGD,
    NoisyGradientDescent,
    SubsampledSGD,
)
from tightrope.process.training import noise_std_from_relative
from tightrope.theorems.catalog import ANALYSES
from tightrope.theorems.last_iterate.descent import HiddenCyclic, HiddenFullBatch
from tightrope.theorems.last_iterate.langevin import HiddenLangevinSampled
from tightrope.theorems.last_iterate.sampled import HiddenSampled, HiddenSampledComposition
from tightrope_reproduce.formulas.langevin import HiddenLangevin

__all__ = [
    "CONVEX",
    "STEP_SIZE",
    "STRONG",
    "TECHNIQUES",
    "Setup",
    "Technique",
    "cyclic",
    "full_batch",
    "least_sigma",
    "sampled",
]

CONVEX = ConvexLoss(1.0, 1.0)
STRONG = ConvexLoss(1.0, 1.0, 0.05)
STEP_SIZE = 0.5


@final
@dataclass(frozen=True)
class Setup:
    """n records in batches of b, so many epochs; the number of iterations T follows."""

    records: int
    batch: int
    epochs: int
    epsilon: float
    delta: float

    @property
    def batches(self) -> int:
        return self.records // self.batch

    @property
    def iterations(self) -> int:
        return self.epochs * self.batches

    @property
    def order_of_sampling(self) -> float:
        """sqrt(T ln(1/delta))/(n epsilon) of Table I, with q = b/n in place of 1/n."""
        log = math.log(1.0 / self.delta)
        return math.sqrt(self.iterations * log) / (self.batches * self.epsilon)

    @property
    def order_of_langevin(self) -> float:
        """sqrt(ln(1/delta))/epsilon of Table I."""
        return math.sqrt(math.log(1.0 / self.delta)) / self.epsilon


@final
@dataclass(frozen=True)
class Technique:
    key: str
    name: str
    sigma: Callable[[Setup], float]


def least_sigma(setup: Setup, guarantee: Callable[[float], Guarantee]) -> float:
    """The smallest sigma whose guarantee meets the budget, checked on its safe side."""
    target = Target.approx_dp(setup.epsilon, setup.delta)
    guess = 1.0 / float(profile.mu(setup.epsilon, setup.delta))
    found = crossing(
        lambda sigma: target.excess(guarantee(sigma)),
        guess,
        smallest=1e-3,
        largest=1e6,
        tolerance=1e-5,
    )
    return found.below


def _poisson(key: str) -> Callable[[Setup], float]:
    """Algorithm 1, every iterate released; accounted as sensitivity 1 against noise sigma."""
    (analysis,) = (each for each in ANALYSES if each.key == key)

    def guarantee(setup: Setup, sigma: float) -> Guarantee:
        run = NoisySGD(PoissonSampling(1.0 / setup.batches), sigma, setup.iterations)
        (finding,) = account(run, (analysis,)).certified
        assert isinstance(finding.outcome, Guarantee)
        return finding.outcome

    return lambda setup: least_sigma(setup, lambda sigma: guarantee(setup, sigma))


def _noise_std(sigma: float, batch: int) -> float:
    return noise_std_from_relative(sigma, 2.0 * CONVEX.lipschitz, batch)


def cyclic(setup: Setup, sigma: float, index: int | None = None) -> CyclicSGD:
    """Algorithm 2: fixed batches in a fixed order."""
    return CyclicSGD(
        loss=CONVEX,
        step_size=STEP_SIZE,
        noise_std=_noise_std(sigma, setup.batch),
        batch_size=setup.batch,
        batches_per_epoch=setup.batches,
        epochs=setup.epochs,
        index=index,
    )


def full_batch(setup: Setup, sigma: float) -> NoisyGradientDescent:
    """Section VII: one full-batch step an epoch, started as Theorem VII.1 asks."""
    noise = _noise_std(sigma, setup.records)
    return NoisyGradientDescent(
        loss=STRONG,
        step_size=STEP_SIZE,
        noise_std=noise,
        records=setup.records,
        steps=setup.epochs,
        start_std=noise * math.sqrt(STEP_SIZE / STRONG.strong_convexity),
    )


def sampled(setup: Setup, sigma: float) -> SubsampledSGD:
    """Theorem VII.2: batches of fixed size without replacement, strongly convex loss."""
    return SubsampledSGD(
        loss=STRONG,
        step_size=STEP_SIZE,
        noise_std=_noise_std(sigma, setup.batch),
        records=setup.records,
        batch_size=setup.batch,
        steps=setup.iterations,
    )


def _hidden(theorem: Any, process: Callable[[Setup, float], Any]) -> Callable[[Setup], float]:
    return lambda setup: least_sigma(setup, lambda s: theorem.guarantee(process(setup, s)))


TECHNIQUES = (
    # every iterate released, add-or-remove neighbours, sensitivity taken as 2 L (Algorithm 1)
    Technique("advanced", "advanced composition (III-A)", _poisson("composition")),
    Technique("ACG16", "moments accountant (ACG16, Mir17)", _poisson("moments")),
    Technique("exact", "exact, Poisson, every iterate", _poisson("exact")),
    # replace-one neighbours
    Technique("FMTT18", "iteration, fixed batches (FMTT18)", _hidden(HiddenCyclic, cyclic)),
    Technique("CYS21", "Langevin, full batch (CYS21)", _hidden(HiddenLangevin, full_batch)),
    Technique("hull", "last iterate, full batch, exact", _hidden(HiddenFullBatch, full_batch)),
    Technique("YS22", "Langevin, random batches (YS22)", _hidden(HiddenLangevinSampled, sampled)),
    Technique(
        "random", "random batches, every iterate", _hidden(HiddenSampledComposition, sampled)
    ),
    Technique("frontier", "random batches, last iterate", _hidden(HiddenSampled, sampled)),
)
