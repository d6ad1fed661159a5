"""From forms to the clipped sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from tightrope.train.clip import Clip
from tightrope.train.gradients.forms import Form
from tightrope.train.gradients.forms.base import full_precision

__all__ = ["ClippedBatch", "Engine", "Factors", "Parts", "empty_batch", "find_factors", "zero_sum"]

_MOST_IN_FLOAT32 = 2048  # see clip.NORM_ERROR


@final
class ClippedBatch(NamedTuple):
    """The sum of clipped per-example gradients, before any noise.

    sums: one tensor for each parameter of the engine, in float32 or wider.
    squared_norms: (B,) squares of the per-example norms as used for clipping (upper bounds, within
        rounding); inf for an example whose gradient was not finite.
    factors: what each example was multiplied by, (1 or parameters, B).
    nonfinite: examples with a non-finite gradient; they contribute exactly zero.
    health: of padded batches, a number on the device that is finite if and only if all gradients
        are. Where it is not, the sums are worthless and the batch must be done again without them.
    """

    sums: tuple[Tensor, ...]
    examples: int
    squared_norms: Tensor
    factors: Tensor
    nonfinite: int
    health: Tensor | None = None

    @property
    def norms(self) -> Tensor:
        """(B,) per-example norms."""
        return self.squared_norms.sqrt()

    @property
    def clipped_fraction(self) -> float:
        """Share of the examples that were scaled down."""
        return float((self.factors < 1).any(0).float().mean()) if self.examples else 0.0


class Engine(Protocol):
    """What computes the clipped sum of a batch: Gradients, OneByOne, or one of your own."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def parameters(self) -> Sequence[nn.Parameter]: ...

    @property
    def clipped_sum(self) -> Callable[..., ClippedBatch]: ...

    def forget(self) -> None: ...

    def detach(self) -> None: ...


class Parts(Protocol):
    """A model that is sharded and stays so: where its parameters and sums are (train.in_parts)."""

    @property
    def open(self) -> bool:
        """Whether forward passes belong to a batch that was drawn."""

    def check(self, losses: Tensor) -> None:
        """Refuse losses of a forward pass that went before."""

    def look_at(self, batch: ClippedBatch) -> None:
        """Say where a batch shows that parameters were not there."""

    def lent(self, module: nn.Module) -> AbstractContextManager[None]:
        """The parameters of a module are there inside."""

    def scatters(self, row: int) -> bool:
        """Whether the sum of a parameter is kept elsewhere."""

    def give(self, row: int, total: Tensor) -> Tensor:
        """Hand over the sum of a parameter; returned is what is left here."""


@final
class Factors:
    """The factors of a batch, which examples are dropped, and how many a float32 chain adds."""

    def __init__(
        self,
        rows: Tensor,
        squared_norms: Tensor,
        scale: float,
        *,
        chain: int,
        bad: Tensor | None = None,
        health: Tensor | None = None,
    ) -> None:
        self.rows, self.squared_norms, self.bad, self.health = rows, squared_norms, bad, health
        self.chain = chain
        self._scaled = rows if scale == 1.0 else rows / scale

    @cached_property
    def _each(self) -> tuple[Tensor, ...]:
        return self._scaled.unbind()

    def of(self, row: int) -> Tensor:
        """(B,) factors of one parameter, for gradients that carry the loss scale."""
        return self._each[row if len(self._each) > 1 else 0]

    @property
    def common(self) -> Tensor:
        """(1, B): the same where all parameters have common factors."""
        return self._scaled

    def sum(self, form: Form, row: int) -> Tensor:
        """The clipped sum of one parameter."""
        if self.bad is not None:
            form.zero(self.bad)
        return form.weighted_sum(self.of(row), self.chain)

    def batch(self, sums: Sequence[Tensor]) -> ClippedBatch:
        """Together with the sums."""
        nonfinite = 0 if self.bad is None else int(self.bad.sum())
        squared = self.squared_norms
        count = squared.shape[0]
        return ClippedBatch(tuple(sums), count, squared, self.rows, nonfinite, self.health)


def zero_sum(parameters: Sequence[nn.Parameter], row: int, parts: Parts | None) -> Tensor:
    """The sum of a parameter that nobody used."""
    if parts is not None and parts.scatters(row):
        return torch.zeros(0, device=parameters[row].device)
    return torch.zeros_like(full_precision(parameters[row].detach()))


def empty_batch(parameters: Sequence[nn.Parameter], parts: Parts | None = None) -> ClippedBatch:
    """No example: exactly zero, so that a step releases noise alone."""
    sums = tuple(zero_sum(parameters, row, parts) for row in range(len(parameters)))
    none = torch.zeros(0, device=sums[0].device)
    return ClippedBatch(sums, 0, none, none[None], 0)


def find_factors(
    squared: Tensor, clip: Clip, scale: float, chain: int, present: Tensor | None = None
) -> Factors:
    """squared: (parameters, B) squared norms of gradients multiplied by `scale`.

    Where all parameters have common factors, their sum (B,) is enough.
    present: (B,) where given, the rows that are examples; the factor of others is zero.
    """
    if scale != 1.0:
        squared = squared.mul_(1 / scale**2)
    total = squared if squared.dim() == 1 else _over_parameters(squared)
    wanted = squared if clip.per_parameter else total.unsqueeze(0)
    if present is not None:  # nothing may wait for the device: the health is checked later
        rows = clip.factors(wanted).masked_fill(~present, 0)
        return Factors(rows, total, scale, chain=chain, health=total.sum())
    if math.isfinite(total.sum().item()):
        return Factors(clip.factors(wanted), total, scale, chain=chain)
    bad = ~total.isfinite()
    rows = clip.factors(wanted.masked_fill(bad, 0)).masked_fill(bad, 0)
    return Factors(rows, total.masked_fill(bad, torch.inf), scale, chain=chain, bad=bad)


def _over_parameters(squared: Tensor) -> Tensor:
    """In float64 where there are more parameters than a chain of the norm's error allows for."""
    if squared.shape[0] <= _MOST_IN_FLOAT32:
        return squared.sum(0)
    return squared.sum(0, dtype=torch.float64).to(squared.dtype)
