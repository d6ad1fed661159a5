"""What of a traced graph does not stay in its row: values from elsewhere, and rows that move.

A recorded step takes the place of a loss for that of its row, since rows that only fill up a batch
are known by their places. A graph of gradients does not show what happens to the data before the
first parameter; a trace does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CannotTrace", "refuse_moves"]

aten = torch.ops.aten
# Position of the dimension among the arguments; what is read there by number is the next one.
_ALONG = {aten.index_select.default: 1, aten.gather.default: 1, aten.sort.default: 1,
          aten.sort.stable: None, aten.scatter.src: 1, aten.index_add.default: 1}  # fmt: skip
_ORDERED = (aten.flip.default, aten.roll.default)


class CannotTrace(Exception):
    """Says why the passes are no graph."""


def refuse_moves(graph: Any, rows: int, held: set[int]) -> None:
    """rows: those of the batch which the trace was made with; held: addresses of the buffers."""
    data: set[Any] = set()
    for node in graph.graph.nodes:
        if node.op == "placeholder" or data & set(node.all_input_nodes):
            data.add(node)
        if node.op == "get_attr" and _is_constant(getattr(graph, node.target, None), rows, held):
            raise CannotTrace("a part of the batch is computed where no trace can see it")
        if node.op == "call_function" and node in data and _moves(node, data, rows):
            raise CannotTrace("rows of the batch are put in other places, by numbers of the data")


def _is_constant(value: object, rows: int, held: set[int]) -> bool:
    """A tensor from nowhere that has a row for each of the batch was computed from it."""
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter) or value.requires_grad:
        return False
    return value.dim() > 0 and len(value) == rows and value.data_ptr() not in held


def _moves(node: Any, data: set[Any], rows: int) -> bool:
    read = node.args[0] if node.args else None
    shape = getattr(getattr(read, "meta", {}).get("tensor_meta"), "shape", ())
    if read not in data or not shape or shape[0] == 0 or shape[0] % rows:
        return False
    if node.target is aten.index.Tensor:
        return bool(node.args[1]) and node.args[1][0] in data
    if node.target in _ORDERED:
        dims = node.args[-1] or [0]
        return any(dim % len(shape) == 0 for dim in dims)
    place = _ALONG.get(node.target)
    given = node.args[place] if place is not None and len(node.args) > place else None
    return node.target in _ALONG and isinstance(given, int) and given % len(shape) == 0
