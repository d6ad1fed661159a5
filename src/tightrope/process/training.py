"""Noisy iterative learning, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.correlated.strategies import Strategy, check_strategy
from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, OneRecord, check_adjacency
from tightrope.process.sampling import AbstractSampling, check_sampling
from tightrope.validate import check_count, check_non_negative, check_positive, one_number

__all__ = [
    "NoisySGD",
    "NoiseSchedule",
    "CorrelatedSGD",
    "noise_std_from_multiplier",
    "noise_std_from_relative",
    "noise_std_from_langevin",
    "langevin_std",
]


@final
@dataclass(frozen=True)
class NoisySGD(OneRecord):
    """`steps` noisy sums of clipped gradients, every one of them seen by the observer.

        >>> from tightrope import NoisySGD, PoissonSampling
        >>> NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1000).steps
        1000

    Each step releases (sum over the batch of clipped gradients) + N(0, (noise_multiplier *
    clip_norm)^2) divided by a PUBLIC constant. Whatever follows (SGD, momentum, Adam, AdaGrad) is
    post-processing. `noise_multiplier` is relative to the clip norm under every adjacency; the sum
    moves by one clip norm when a record is added, removed or zeroed, by two when one is replaced.
    """

    sampling: AbstractSampling
    noise_multiplier: float
    steps: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        noise = check_non_negative(self.noise_multiplier, "noise_multiplier")
        if not isinstance(noise, float):
            raise InvalidInput(
                f"noise_multiplier must be one number; got {len(noise)} of them. Noise that "
                "changes from step to step is a NoiseSchedule."
            )
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "steps", check_count(self.steps, "steps"))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))

    @property
    def step_mu(self) -> float:
        """Shift of one step's sum in units of its noise, when the record is in the batch."""
        none = self.noise_multiplier == 0
        return float("inf") if none else self.adjacency.moved / self.noise_multiplier


@final
@dataclass(frozen=True)
class NoiseSchedule(OneRecord):
    """Noisy SGD whose noise changes from step to step, by a schedule fixed in advance.

    Like `NoisySGD` otherwise, with one noise multiplier for each step.
    """

    sampling: AbstractSampling
    noise_multipliers: tuple[float, ...]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        noises = check_non_negative(self.noise_multipliers, "noise_multipliers")
        object.__setattr__(self, "noise_multipliers", tuple(np.atleast_1d(noises).tolist()))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))


@final
@dataclass(frozen=True)
class CorrelatedSGD(OneRecord):
    """Noisy SGD whose noise is correlated over the steps, by a strategy fixed in advance.

    Step i releases its sum of clipped gradients plus row i of C^-1 times Z, where Z has one
    independent draw of N(0, (noise_multiplier * clip_norm)^2 I) for each step, and C is the
    `strategy`. Like `NoisySGD` otherwise; with C = I it is one.
    """

    strategy: Strategy
    sampling: AbstractSampling
    noise_multiplier: float
    steps: int
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        noise = one_number(
            check_non_negative(self.noise_multiplier, "noise_multiplier"), "noise_multiplier"
        )
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "steps", check_count(self.steps, "steps"))
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))
        check_strategy(self.strategy, self.steps)


# ---- The noise conventions of papers, translated to one: `noise_std` on the mean gradient of a----
# | paper                                   | its sigma                                         |
# |-----------------------------------------|---------------------------------------------------|
# | Feldman et al. 2018 (PNSGD)             | noise on one gradient: noise_std itself           |
# | DP-SGD (Abadi et al. 2016)              | std on the batch sum / clip norm                  |
# | Boninsegna's survey, VI-A               | std on the batch sum / (2 * lipschitz)            |
# | Boninsegna's survey, VII                | std on the full sum / sensitivity of the sum      |
# | Chourasia, Ye, Shokri 2021 (Langevin)   | std on the iterate / sqrt(2 * step_size)          |


def noise_std_from_multiplier(noise_multiplier: float, lipschitz: float, batch_size: int) -> float:
    """DP-SGD: noise N(0, (noise_multiplier * lipschitz)^2) on the sum over the batch."""
    return noise_std_from_relative(noise_multiplier, lipschitz, batch_size)


def noise_std_from_relative(sigma: float, sensitivity: float, batch_size: int) -> float:
    """Noise N(0, (sigma * sensitivity)^2) on the sum over the batch."""
    sigma, sensitivity = check_positive(sigma, "sigma"), check_positive(sensitivity, "sensitivity")
    return float(sigma * sensitivity / check_count(batch_size, "batch_size", low=1))


def noise_std_from_langevin(diffusion_std: float, step_size: float) -> float:
    """Langevin: noise sqrt(2 step_size) N(0, diffusion_std^2) on the iterate."""
    diffusion_std = check_positive(diffusion_std, "diffusion_std")
    return float(diffusion_std * math.sqrt(2.0 / check_positive(step_size, "step_size")))


def langevin_std(noise_std: float, step_size: float) -> float:
    """The inverse: the survey's equation (6), s^2 = step_size * noise_std^2 / 2."""
    noise_std = check_positive(noise_std, "noise_std")
    return float(noise_std * math.sqrt(check_positive(step_size, "step_size") / 2.0))
