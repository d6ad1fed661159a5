"""Operations that choose rows of the batch by numbers computed from the data.

A model may sort its batch. If the first batch came sorted, its rows were in their places, and the
plan made of it would give the gradients of later batches to the wrong examples. So batches whose
rows are moved are looked at, each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tightrope.train.gradients.graph import nodes_of, output_shape
from tightrope.train.gradients.recorder import reading_graphs

__all__ = ["moves_rows", "picks_rows"]

_ALONG = {"IndexSelectBackward0": "_saved_index", "GatherBackward0": "_saved_index",
          "SortBackward0": "_saved_indices", "TopkBackward0": "_saved_indices"}  # fmt: skip


def picks_rows(nodes: Iterable[Any], rows: int) -> bool:
    """Whether any of the nodes chooses among so many rows."""
    with reading_graphs():
        return any(_picks(node, rows) for node in nodes)


def moves_rows(losses: Tensor, rows: int) -> bool:
    """Whether a row is not where it was, in any operation that leads to the losses."""
    with reading_graphs():
        return any(_picks(node, rows) and _moves(node, rows) for node in nodes_of(losses))


def _picks(node: Any, rows: int) -> bool:
    name = node.name()
    if name != "IndexBackward0" and name not in _ALONG:
        return False
    before, after = output_shape(*node.next_functions[0]), output_shape(node)
    if before[:1] != (rows,) or after[:1] != (rows,):
        return False
    if name == "IndexBackward0":
        return node._saved_indices[0] is not None
    return (node._saved_dim - 2**64 * (node._saved_dim >= 2**63)) % len(before) == 0


def _moves(node: Any, rows: int) -> bool:
    along = _ALONG.get(node.name())
    index = node._saved_indices[0] if along is None else getattr(node, along)
    if index.dtype is torch.bool:
        return not bool(index.all())
    there = torch.arange(rows, device=index.device).view(-1, *(1,) * (index.dim() - 1))
    return index.shape[0] != rows or bool((index != there).any())
