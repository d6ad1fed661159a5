"""Noisy iterative learning, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, OneRecord, check_adjacency
from tightrope.process.sampling import AbstractSampling, check_sampling
from tightrope.validate import check_count, check_non_negative

__all__ = ["NoisySGD", "NoiseSchedule"]


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
