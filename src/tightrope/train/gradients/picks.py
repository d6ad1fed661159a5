"""Operations that choose rows of the batch by numbers computed from the data.

A model may sort its batch. If the first batch came sorted, its rows were in their places, and the
plan made of it would give the gradients of later batches to the wrong examples. So batches whose
rows are moved are looked at, each of them. Rows moved in ways that are not listed here (a product
with a permutation matrix) are found by chance, like other mixing that begins late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tightrope.train.gradients.graph import nodes_of, output_shape
from tightrope.train.gradients.recorder import reading_graphs

__all__ = ["moves_rows", "picks_rows"]

# What is read from a node: numbers of rows, along a dimension or along the first ones.
_ALONG = {"IndexSelectBackward0": "_saved_index", "GatherBackward0": "_saved_index",
          "SortBackward0": "_saved_indices", "TopkBackward0": "_saved_indices",
          "IndexCopyBackward0": "_saved_index", "IndexAddBackward0": "_saved_index",
          "ScatterBackward0": "_saved_index", "ScatterAddBackward0": "_saved_index"}  # fmt: skip
_FIRST = ("IndexBackward0", "UnsafeIndexBackward0", "IndexPutBackward0", "EmbeddingBackward0")


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
    if name not in _FIRST and name not in _ALONG:
        return False
    read = [output_shape(*slot)[:1] for slot in node.next_functions if slot[0] is not None]
    if output_shape(node)[:1] != (rows,) or (rows,) not in read:
        return False
    if name in _FIRST:
        return _index(node) is not None
    dim = node._saved_dim - 2**64 * (node._saved_dim >= 2**63)
    return bool(dim % len(output_shape(node)) == 0)


def _index(node: Any) -> Tensor | None:
    name = node.name()
    if name in _ALONG:
        return getattr(node, _ALONG[name])  # type: ignore[no-any-return]
    given = node._saved_indices
    return given if isinstance(given, Tensor) else given[0]  # type: ignore[no-any-return]


def _moves(node: Any, rows: int) -> bool:
    index = _index(node)
    assert index is not None
    if index.dtype is torch.bool:
        return not bool(index.all())
    if index.dim() == 0 or index.shape[0] != rows:
        return True
    there = torch.arange(rows, device=index.device).view(-1, *(1,) * (index.dim() - 1))
    return bool((index != there).any())
