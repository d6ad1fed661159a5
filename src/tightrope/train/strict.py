"""Strict mode: one example at a time, whole numbers added, discrete Gaussian noise.

Nothing that is released depends on the order of the batch, on how it is split over micro-batches
or ranks, or on who else is in it, but through the exact sum; docs/arithmetic.md has the argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.adaptive_clip import AdaptiveClip
from tightrope.train.arithmetic import Arithmetic, strict
from tightrope.train.deterministic import Deterministic
from tightrope.train.discrete_noise import DiscreteGaussianNoise
from tightrope.train.distributed import rank_and_size, sum_over_ranks_
from tightrope.train.gradients.alone import Alone
from tightrope.train.gradients.draws import start_draws
from tightrope.train.grid import BOUND, as_values, unit

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.gradients.batch import Engine
    from tightrope.train.noise import Noise

__all__ = ["Strict", "refuse"]


@final
class Strict:
    """Sums of whole numbers; the other kind is `sums.Rounded`."""

    exact = True

    def __init__(
        self, model: torch.nn.Module, clip: Clip, noise: Noise, gradients: Engine | None
    ) -> None:
        if gradients is not None:
            raise InvalidInput(
                'arithmetic="strict" computes every example alone and in no other way; got '
                f"gradients={type(gradients).__name__}(...). Leave `gradients` out."
            )
        if isinstance(clip, AdaptiveClip):
            raise InvalidInput(
                'arithmetic="strict" adds whole numbers in units of one clip norm; AdaptiveClip '
                "changes it. Use FlatClip."
            )
        self.gradients = Alone(model)
        self._noise = _discrete(noise)
        self._deterministic = Deterministic(self.gradients.parameters[0].device)
        self.arithmetic: Arithmetic = strict(unit(float(clip.sensitivity)))

    @staticmethod
    def examples_at_a_time(asked: int | None) -> int:
        """One, whatever was asked; more than that is refused."""
        if asked not in (None, 1):
            raise refuse(f"micro_batch={asked}", "every example is computed alone")
        return 1

    def begin(self) -> None:
        """An example is read next: what is random about it is so for no other example."""
        self._deterministic.check()
        self.gradients.begin()
        start_draws([self.gradients.parameters[0].device], self._noise.fresh_seed())

    @staticmethod
    def add(total: list[Tensor] | None, part: Sequence[Tensor]) -> list[Tensor]:
        """Whole numbers: the same in any order."""
        if total is None:
            return [whole.clone() for whole in part]
        torch._foreach_add_(total, list(part))
        return total

    def noisy(
        self, total: list[Tensor], noise: Noise, sensitivity: float, examples: int
    ) -> list[Tensor]:
        """What is released: the sum over all ranks with its noise, in the gradients' units."""
        self._deterministic.check()
        rank, ranks = rank_and_size()
        if rank == 0:
            _discrete(noise).add_whole_(total, BOUND)
        if ranks > 1:
            sum_over_ranks_(total)
        return as_values(total, sensitivity)


def _discrete(noise: Noise) -> DiscreteGaussianNoise:
    if not isinstance(noise, DiscreteGaussianNoise):
        raise InvalidInput(
            'arithmetic="strict" adds whole numbers, so its noise must be whole numbers too: '
            f"use noise=DiscreteGaussianNoise({noise.noise_multiplier:g}) instead of "
            f"{type(noise).__name__}."
        )
    return noise


def refuse(what: str, why: str) -> InvalidInput:
    """For what strict mode cannot do."""
    return InvalidInput(
        f"{what} cannot be used in strict mode: {why}. Loop over run.batches(...), which hands out "
        "one example at a time, or choose another arithmetic (docs/arithmetic.md)."
    )
