"""Layers that ran once for each example: the gradient is one outer product g a^T.

Weight and bias share the output gradient, so its squares and its scaled copy are found once.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.chains import chained_product, chained_sum
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    by_kernel,
    full_precision,
    short_row_squares,
    zero_examples,
)
from tightrope.train.gradients.forms.dense import Dense
from tightrope.train.gradients.forms.outer import Outer
from tightrope.train.gradients.owners import Owners

__all__ = ["RankOne", "Shift", "Signal"]


def _column(factors: Tensor, dtype: torch.dtype) -> Tensor:
    column = factors.unsqueeze(1)
    return column if factors.dtype is dtype else column.to(dtype)


@final
class Signal:
    """An output gradient (B, p), with what its users have asked for already."""

    def __init__(self, values: Tensor) -> None:
        self.values = full_precision(values)
        self._squares: Tensor | None = None
        self._scaled: tuple[Tensor, Tensor] | None = None  # (factors, result)

    def squares(self) -> Tensor:
        if self._squares is None:
            self._squares = blocked_squares(self.values)
        return self._squares

    def scaled(self, factors: Tensor) -> Tensor:
        if self._scaled is None or self._scaled[0] is not factors:
            self._scaled = (factors, self.values * _column(factors, self.values.dtype))
        return self._scaled[1]

    def zero(self, examples: Tensor) -> None:
        self.values, self._scaled = zero_examples(self.values, examples), None


@final
class RankOne(Form):
    """a: (B, d) inputs, signal: (B, p); a gradient is (p, d)."""

    def __init__(self, a: Tensor, signal: Signal) -> None:
        self.a, self.signal = full_precision(a), signal

    def squared_norms(self) -> Tensor:
        if by_kernel(self.a, self.signal.values):
            return short_row_squares(self.a, self.signal.values)
        return blocked_squares(self.a).mul_(self.signal.squares())

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return chained_product(self.signal.scaled(factors), self.a, chain)

    def outer(self) -> Outer:
        """The same as a form that can be joined with others."""
        return Outer(self.a[:, None], self.signal.values[:, None])

    def together(self, owners: Owners) -> Outer:
        return self.outer().together(owners)

    def dense(self) -> Tensor:
        return self.signal.values[:, :, None] * self.a[:, None, :]

    def zero(self, examples: Tensor) -> None:
        self.a = zero_examples(self.a, examples)
        self.signal.zero(examples)


@final
class Shift(Form):
    """A bias that was added once: its gradient is the signal itself."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal

    @property
    def values(self) -> Tensor:
        """(B, p)."""
        return self.signal.values

    def squared_norms(self) -> Tensor:
        return self.signal.squares()

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return chained_sum(self.signal.scaled(factors), chain)

    def together(self, owners: Owners) -> Dense:
        return Dense(owners.total(self.signal.values))

    def dense(self) -> Tensor:
        return self.signal.values

    def zero(self, examples: Tensor) -> None:
        self.signal.zero(examples)
