"""Gradients that touch a few rows of a large table: embeddings, without a dense tensor each."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.chains import slices
from tightrope.train.gradients.forms.base import (
    Form,
    blocked_squares,
    full_precision,
    scale_examples,
    zero_examples,
)
from tightrope.train.gradients.owners import Owners

__all__ = ["TableRows"]

_LARGEST_TABLE = 2**27  # entries of the scratch table of one chunk of examples


@final
class TableRows(Form):
    """ids: (B, T) rows read at each position; g: (B, T, d) their output gradients.

    A row read twice by one example has the sum of both gradients, so equal ids are merged first:
    each position writes its number into a scratch table at its id and reads back the number of the
    one that won. Nothing is sorted and the table needs no clearing.
    """

    def __init__(self, ids: Tensor, g: Tensor, rows: int, padding_idx: int | None = None) -> None:
        self.ids, self.rows = ids, rows
        # A duplicate must not be merged by its rounded value: ids stay integers throughout.
        self.g = g if padding_idx is None else g.masked_fill((ids == padding_idx)[..., None], 0)
        self._merged: Tensor | None = None

    def together(self, owners: Owners) -> TableRows:
        return TableRows(owners.fold(self.ids), owners.fold(self.g), self.rows)

    def merged(self) -> Tensor:
        """(B, T, d) with the gradients of equal ids summed into one of their positions."""
        if self._merged is None and self.g.shape[1] == 1:
            self._merged = full_precision(self.g)
        if self._merged is None:
            batch, positions, width = self.g.shape
            offset = torch.arange(batch, device=self.ids.device)[:, None] * positions
            target = (self._representatives() + offset).view(-1)
            g = full_precision(self.g).reshape(-1, width)
            # CUDA adds in an order of its own each time, which float64 makes all but invisible.
            sum_type = torch.float64 if g.is_cuda else g.dtype
            total = torch.zeros(g.shape, dtype=sum_type, device=g.device)
            total.index_add_(0, target, g.to(sum_type))
            self._merged = total.to(g.dtype).view(batch, positions, width)
        return self._merged

    def _representatives(self) -> Tensor:
        batch, positions = self.ids.shape
        dtype = torch.int16 if positions < 2**15 else torch.int32
        numbers = torch.arange(positions, dtype=dtype, device=self.ids.device)
        chunk = max(1, _LARGEST_TABLE // max(1, self.rows))
        found = []
        for start in range(0, batch, chunk):
            ids = self.ids[start : start + chunk]
            table = torch.empty(ids.shape[0], self.rows, dtype=dtype, device=ids.device)
            table.scatter_(1, ids, numbers.expand(ids.shape))
            found.append(table.gather(1, ids))
        return torch.cat(found).long() if len(found) > 1 else found[0].long()

    def squared_norms(self) -> Tensor:
        return blocked_squares(self.merged())

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        """Merged, a row of the table gets at most one summand from each example."""
        values = scale_examples(self.merged(), factors.to(self.merged().dtype))
        if len(values) <= chain:
            return self._table(values, slice(None))
        if values.is_cuda or self.rows > chain * self.ids.shape[1]:  # no table for each chain
            total = self._table(values.double(), slice(None))
        else:
            tables = (self._table(values[part], part) for part in slices(len(values), chain))
            total = sum(tables, start=torch.zeros((), dtype=torch.float64, device="cpu"))
        return total if chain == 0 else total.to(values.dtype)

    def _table(self, values: Tensor, examples: slice) -> Tensor:
        ids, width = self.ids[examples].reshape(-1), values.shape[2]
        total = torch.zeros(self.rows, width, dtype=values.dtype, device=values.device)
        values = values.reshape(-1, width)
        if values.is_cuda and values.dtype is torch.float64:  # in any order, see `merged`
            return total.index_add_(0, ids, values)
        return total.index_put_((ids,), values, accumulate=True)

    def dense(self) -> Tensor:
        g = full_precision(self.g)
        total = torch.zeros(len(g), self.rows, g.shape[2], dtype=g.dtype, device=g.device)
        return total.scatter_add_(1, self.ids[..., None].expand(g.shape), g)

    def zero(self, examples: Tensor) -> None:
        self.g = zero_examples(self.g, examples)
        if self._merged is not None:
            self._merged = zero_examples(self._merged, examples)
