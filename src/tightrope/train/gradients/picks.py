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

__all__ = ["moves_rows", "picks_rows", "regroups"]

# What is read from a node: numbers of rows, along a dimension or along the first ones.
_ALONG = {"IndexSelectBackward0": "_saved_index", "GatherBackward0": "_saved_index",
          "SortBackward0": "_saved_indices", "TopkBackward0": "_saved_indices",
          "IndexCopyBackward0": "_saved_index", "IndexAddBackward0": "_saved_index",
          "ScatterBackward0": "_saved_index", "ScatterAddBackward0": "_saved_index"}  # fmt: skip
_SHAPES = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "CloneBackward0",
           "TransposeBackward0", "PermuteBackward0", "TBackward0", "UnsqueezeBackward0",
           "SqueezeBackward1", "SqueezeBackward2", "ViewAsBackward0")  # fmt: skip
_FLATTENED = ("MaskedSelectBackward0", "MaskedScatterBackward0", "TakeBackward0", "PutBackward0")
_FIRST = ("IndexBackward0", "UnsafeIndexBackward0", "IndexPutBackward0", "EmbeddingBackward0")


def picks_rows(nodes: Iterable[Any], rows: int, *, several: bool = False) -> bool:
    """Whether any of the nodes chooses among so many rows; several: or that many for each."""
    chooses = _picks_some if several else _picks
    with reading_graphs():
        return any(chooses(node, rows) for node in nodes)


def regroups(nodes: Iterable[Any], lengths: set[int], batched: set[Any]) -> bool:
    """Whether rows, so many, become others or come from others by more than another shape.

    batched: nodes whose outputs have the batch.

    Sequences that are cut and put together, each as long as the data say, may happen to have as
    many rows for each example in one batch, and not in the next.
    """
    return any(
        node.name() not in _SHAPES and _carries(child, batched)
        for node in nodes if lengths
        for child, number in node.next_functions if child is not None
        if _differ(output_shape(node), output_shape(child, number), lengths)
    )  # fmt: skip


def _differ(after: torch.Size, before: torch.Size, lengths: set[int]) -> bool:
    """Whether one has such rows, and the other something else that is not spread over them."""
    if not after or not before or after[0] == before[0] or not {after[0], before[0]} & lengths:
        return False
    return len(before) >= len(after) and before[0] != 1


def _carries(node: Any, batched: set[Any]) -> bool:
    """Whether the batch is behind it: else it is made of parameters."""
    stack, seen = [node], {node}
    while stack:
        if (one := stack.pop()) in batched:
            return True
        below = {child for child, _ in one.next_functions if child is not None} - seen
        seen |= below
        stack += below
    return False


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
    if some and node.name() == "RollBackward0":
        return any(dim in (0, 2**64 - len(output_shape(node))) for dim in node._saved_dims)
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
