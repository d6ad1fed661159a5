"""How the clipped gradients of a batch are added up and get their noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.arithmetic import arithmetic_of, check_mode
from tightrope.train.distributed import rank_and_size, sum_over_ranks_
from tightrope.train.gradients import Gradients
from tightrope.train.scattered import Scattered, Shares
from tightrope.train.strict import Strict

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.gradients.batch import Engine
    from tightrope.train.noise import Noise

__all__ = ["Rounded", "sums_of"]


def sums_of(
    arithmetic: object,
    model: torch.nn.Module,
    clip: Clip,
    noise: Noise,
    gradients: Engine | None,
    examples: float,
    views: int,
    shares: Shares | None = None,
) -> Rounded | Strict | Scattered:
    """Whole numbers in strict mode, else floating point. examples: expected in a batch."""
    if check_mode(arithmetic) == "strict":
        return Strict(model, clip, noise, gradients)
    if shares is not None:
        engine: Engine = Gradients(model, method="auto", views=views, parts=shares)
        return Scattered(Rounded(engine, arithmetic, examples), shares, noise)
    engine = Gradients(model, method="auto", views=views) if gradients is None else gradients
    _check_views(engine, views)
    return Rounded(engine, arithmetic, examples)


def _check_views(engine: Engine, views: int) -> None:
    own = getattr(engine, "views", 1)
    if own not in (None, views):
        raise InvalidInput(
            f"The run has views={views}, and its {type(engine).__name__} was made for {own} rows "
            f"of each example, so it would clip something else. Make it with views={views}, or "
            "leave `gradients` out."
        )


@final
class Rounded:
    """Sums in floating point, whose rounding the arithmetic of the run bounds or leaves open."""

    exact = False

    def __init__(self, gradients: Engine, arithmetic: object, examples: float) -> None:
        self.gradients = gradients
        self.arithmetic = arithmetic_of(arithmetic, gradients, examples)
        self._rank, self._ranks = rank_and_size()
        self._wide = [torch.promote_types(p.dtype, torch.float32) for p in gradients.parameters]

    @staticmethod
    def examples_at_a_time(asked: int | None) -> int | None:
        return asked

    def begin(self) -> None:
        """Nothing has to be done before a forward pass."""

    @staticmethod
    def add(total: list[Tensor] | None, part: Sequence[Tensor]) -> list[Tensor]:
        """Parts of a batch are added in float64; half-precision sums are widened."""
        if total is None:
            return [s.float() if s.dtype.itemsize < 4 else s for s in part]
        return [t.double().add_(s) for s, t in zip(part, total, strict=True)]

    def noisy(
        self, total: list[Tensor], noise: Noise, sensitivity: float, examples: int
    ) -> list[Tensor]:
        """The sum over all ranks with its noise, of a batch of so many examples."""
        total = self._rounded(total, examples)
        if self._rank == 0:
            noise.add_(total, self.arithmetic.charged(sensitivity))
        if self._ranks > 1:
            sum_over_ranks_(total)
        return total

    def _rounded(self, total: list[Tensor], examples: int) -> list[Tensor]:
        """float64 to be added over the ranks, or where the batch is too large for float32."""
        if self._ranks > 1:
            return [t.double() for t in total]
        if [t.dtype for t in total] == self._wide or self.arithmetic.chain(examples, 1) == 0:
            return total
        more = [torch.float32] * (len(total) - len(self._wide))  # the count of an adaptive clip
        wanted = zip(total, [*self._wide, *more], strict=True)
        return [t if t.dtype is dtype else t.to(dtype) for t, dtype in wanted]
