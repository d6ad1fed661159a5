"""Whose rows are these? An example may have several: views of an image, records of a user.

The model computes one row at a time, and clipping is about examples. So the gradients of an
example's rows are added before anything is clipped, inside the example (docs/arithmetic.md): what a
form holds for rows, it then holds for examples, whose rows lie side by side like positions.
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput

__all__ = ["Owners"]


@final
class Owners:
    """examples: how many; each: rows of every example, once shorter ones are filled up with zeros.

    rows: how many rows the model ran on, example by example where all have `each`.
    plain: whether every row is an example.
    """

    def __init__(self, examples: int, each: int, of_rows: Tensor | None = None) -> None:
        self.examples, self.each, self._given = examples, each, of_rows
        self.rows = examples * each if of_rows is None else len(of_rows)
        self.plain = of_rows is None and each == 1

    def of_layer(self, rows: int) -> Owners:
        """Those of a layer that ran on so many: on several for each row of the model, side by side.

        All rows of a batch of one example are its own.
        """
        if rows == self.rows:
            return self
        if self.examples == 1:
            return Owners(1, rows)
        times = rows // self.rows
        given = None if self._given is None else self._given.repeat_interleave(times)
        return Owners(self.examples, self.each * times, given)

    @classmethod
    def of(cls, rows: Tensor, examples: int) -> Owners:
        """rows: (R,) the number of the example that each row belongs to, in any order."""
        if rows.dim() != 1 or rows.dtype is not torch.int64:
            raise InvalidInput(
                "owners must be a vector of int64, one number for each row of the model; got "
                f"{rows.dtype} of shape {tuple(rows.shape)}."
            )
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < examples:
            raise InvalidInput(
                f"owners has numbers from {int(rows.min())} to {int(rows.max())}; there are "
                f"{examples} examples, numbered from 0."
            )
        counts = torch.bincount(rows, minlength=examples)
        return cls(examples, int(counts.max()) if len(counts) else 1, rows)

    def spread(self, values: Tensor) -> Tensor:
        """(R,) what each row's example has, from (B,)."""
        if self._given is not None:
            return values[self._given.to(values.device)]
        return values if self.each == 1 else values.repeat_interleave(self.each)

    def fill(self, values: Tensor) -> Tensor:
        """(R, *) as (B * each, *), example by example, with zeros where an example has no row."""
        if self._given is None:
            return values
        whole = values.new_zeros((self.examples * self.each, *values.shape[1:]))
        return whole.index_copy_(0, self._places.to(values.device), values)

    def fold(self, values: Tensor) -> Tensor:
        """(R, T, *) as (B, each * T, *): the positions of an example's rows side by side."""
        rows = self.fill(values)
        return rows.reshape(self.examples, self.each * values.shape[1], *values.shape[2:])

    def total(self, values: Tensor) -> Tensor:
        """(R, *) as (B, *): the rows of each example added."""
        return self.fill(values).unflatten(0, (self.examples, self.each)).sum(1)

    @cached_property
    def _places(self) -> Tensor:
        """(R,) where `fill` puts each row: at its number among the rows of its example."""
        owners = self._given
        assert owners is not None
        order = owners.argsort(stable=True)
        first = torch.bincount(owners, minlength=self.examples).cumsum(0).roll(1)
        first[:1] = 0
        number = torch.empty_like(owners)
        number[order] = torch.arange(len(owners), device=owners.device) - first[owners[order]]
        return owners * self.each + number
