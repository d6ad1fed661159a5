"""The constants that losses were multiplied or divided by, as they stand in the graph."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Factor", "factors_of"]

_DEPTH = 200  # nodes from the losses down
_ALIKE = ("StackBackward0", "CatBackward0")  # whose operands may be as many as the examples
_NUMBERS = (torch.float64, torch.int64, torch.bool, torch.complex128)


class Factor(NamedTuple):
    """A constant operand.

    value: NaN, where it is not one number. tensor: it came as a tensor.
    each: with a number for each example.
    """

    value: float
    tensor: bool
    each: bool


def factors_of(losses: Tensor) -> dict[int, Factor]:
    """By place: the operations that lead to it from the losses, however many examples there are."""
    found: dict[int, Factor] = {}
    queue: list[tuple[Any, int]] = [(losses.grad_fn, 0)]
    seen = {losses.grad_fn}
    for number, (node, above) in enumerate(queue):
        if number >= _DEPTH:
            break
        place = hash((above, node.name()))
        if node.name() in ("MulBackward0", "DivBackward0"):
            for factor in _constants(node, len(losses)):
                found[place] = _merged(found.get(place, factor), factor)
        for k, (child, _) in enumerate(node.next_functions):
            if child is not None and child not in seen:
                seen.add(child)
                queue.append((child, hash((place, 0 if node.name() in _ALIKE else k))))
    return found


def _merged(one: Factor, other: Factor) -> Factor:
    """At one place of several examples."""
    return one if one.value == other.value else one._replace(value=math.nan)


def _constants(node: Any, size: int) -> list[Factor]:
    """The operands without gradient, of up to one dimension.

    A Python number stands in the graph as a tensor of 64 bits on the CPU.
    """
    found = []
    for (child, _), name in zip(node.next_functions, ("_saved_self", "_saved_other"), strict=False):
        value = getattr(node, name, None) if child is None else None
        if isinstance(value, Tensor) and value.dim() <= 1 and value.numel():
            number = value.dim() == 0 and not value.is_cuda and value.dtype in _NUMBERS
            each = value.dim() == 1 and len(value) == size
            first = math.nan if each and size == 1 else float(value.reshape(-1)[0])
            alike = bool((value == first).all())
            found.append(Factor(first if alike else math.nan, not number, each))
    return found
