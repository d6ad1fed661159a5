"""Operations that spread a value without batch dimension over the batch, and how to go back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from tightrope.train.gradients.forms.base import full_precision

__all__ = ["reads_rows", "way_back", "written_rows"]


def way_back(
    node: Node, operand: int, before: torch.Size, after: torch.Size
) -> Callable[[Tensor], Tensor] | None:
    """From the gradient (B, ...) of a node's output to (B, *before) of what entered as `operand`.

    None where the operation is not known to act on each example alone, and for complex numbers.
    """
    kind = None if _is_complex(node) else _KINDS.get(node.name())
    if kind is None or (len(before) == len(after) and before[0] != 1):
        return None
    scale = kind(node, operand)
    if scale is None:
        return None

    def backward(g: Tensor) -> Tensor:
        return _sum_to(g if isinstance(scale, int) else g * scale, before)

    return backward


def _is_complex(node: Any) -> bool:
    """Whether a node's output is: what a real number adds to it would have to be made real."""
    return bool(node._input_metadata[0].dtype.is_complex)


def _sum_to(g: Tensor, shape: torch.Size) -> Tensor:
    """(B, *) -> (B, *shape): undo the broadcasting of `shape` inside each example."""
    aligned = (1,) * (g.dim() - len(shape)) + tuple(shape)
    over = [i for i in range(1, g.dim()) if aligned[i] == 1 and g.shape[i] != 1]
    total = g.sum(over, keepdim=True) if over else g
    return total.reshape(g.shape[0], *shape)


def reads_rows(node: Any, parameter: Tensor) -> bool:
    """Whether the node is a plain embedding, the same for all examples: a table of positions."""
    if node.name() != "EmbeddingBackward0" or node._saved_scale_grad_by_freq or node._saved_sparse:
        return False
    return getattr(node.next_functions[0][0], "variable", None) is parameter


def written_rows(node: Any, table: Tensor, g: Tensor) -> Tensor:
    """(B, *table.shape) from the gradients (B, *ids.shape, d) of the rows that were read.

    In one operation; differentiated for each example apart, they would be there twice.
    """
    ids, padding = node._saved_indices.reshape(-1), node._saved_padding_idx
    g = full_precision(g).reshape(len(g), len(ids), -1)
    if padding < len(table):  # no row is told as 2**64 - 1
        g = g.masked_fill((ids == padding)[:, None], 0)
    total = torch.zeros(len(g), *table.shape, dtype=g.dtype, device=g.device)
    examples = torch.arange(len(g), device=g.device)[:, None]
    return total.index_put_((examples, ids), g, accumulate=True)


# Each kind gives the factor d output / d operand: 1, a number, a tensor, or None if not known.
def _one(node: Node, operand: int) -> Any:
    return 1


def _sum(node: Any, operand: int) -> Any:
    return 1 if operand == 0 or node._saved_alpha == 1 else float(node._saved_alpha)


def _difference(node: Any, operand: int) -> Any:
    return 1 if operand == 0 else -float(node._saved_alpha)


def _product(node: Any, operand: int) -> Any:
    return node._saved_other if operand == 0 else node._saved_self


def _quotient(node: Any, operand: int) -> Any:
    if operand == 0:
        return node._saved_other.reciprocal()
    return -node._saved_self / node._saved_other.square()


def _chosen(node: Any, operand: int) -> Any:
    return node._saved_condition if operand == 0 else ~node._saved_condition


_KINDS: dict[str, Callable[[Any, int], Any]] = {
    "ExpandBackward0": _one,
    "AddBackward0": _sum,
    "SubBackward0": _difference,
    "MulBackward0": _product,
    "DivBackward0": _quotient,
    "WhereBackward0": _chosen,
}
