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
from torch import Tensor, nn

from tightrope.train.gradients.graph import nodes_of, output_shape
from tightrope.train.gradients.recorder import reading_graphs

__all__ = ["moves_rows", "picks_rows"]

# What is read from a node: numbers of rows, along a dimension or along the first ones.
_ALONG = {"IndexSelectBackward0": "_saved_index", "GatherBackward0": "_saved_index",
          "SortBackward0": "_saved_indices", "TopkBackward0": "_saved_indices",
          "IndexCopyBackward0": "_saved_index", "IndexAddBackward0": "_saved_index",
          "ScatterBackward0": "_saved_index", "ScatterAddBackward0": "_saved_index"}  # fmt: skip
_FLATTENED = ("MaskedSelectBackward0", "MaskedScatterBackward0", "TakeBackward0", "PutBackward0")
_FIRST = ("IndexBackward0", "UnsafeIndexBackward0", "IndexPutBackward0", "EmbeddingBackward0")


def picks_rows(nodes: Iterable[Any], rows: int, *, several: bool = False) -> bool:
    """Whether any of the nodes chooses among so many rows; several: or that many for each."""
    chooses = _picks_some if several else _picks
    with reading_graphs():
        return any(chooses(node, rows) for node in nodes)


def moves_rows(losses: Tensor, rows: int) -> bool:
    """Whether a row is not where it was, in any operation that leads to the losses."""
    with reading_graphs():
        return any(_picks(node, rows) and _moves(node, rows) for node in nodes_of(losses))


def _picks(node: Any, rows: int) -> bool:
    same = output_shape(node)[:1] == (rows,) and rows in _read(node)
    return same and _along_rows(node)


def _picks_some(node: Any, rows: int) -> bool:
    """Whether it chooses among rows of which each row of the batch has some, in whatever number."""
    some = any(length >= rows and length % rows == 0 for length in _read(node))
    return some and (node.name() in _FLATTENED or _along_rows(node))


def _read(node: Any) -> list[int]:
    """First dimensions of what an operation reads; a parameter has no rows of the batch."""
    slots = [slot for slot in node.next_functions if slot[0] is not None]
    shapes = [output_shape(*slot) for slot in slots if not _is_parameter(slot[0])]
    return [shape[0] for shape in shapes if shape]


def _is_parameter(node: Any) -> bool:
    return isinstance(getattr(node, "variable", None), nn.Parameter)


def _along_rows(node: Any) -> bool:
    name = node.name()
    if name in _FIRST:
        return _index(node) is not None
    if name not in _ALONG:
        return False
    dim = node._saved_dim - 2**64 * (node._saved_dim >= 2**63)
    return bool(dim % max(len(output_shape(node)), 1) == 0)


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
