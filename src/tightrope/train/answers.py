"""Two answers of a model to one example, in different company: are they the same but for rounding?

Between batches of one size they are: the same kernels run, row by row. Batches of other sizes take
other kernels, which round otherwise. In half precision that is no small matter: a sum of products
that are stored in bfloat16 is off by 1/256 of the products, and an answer that is small by
cancellation, as one number for each example is now and then, may be off by more than itself.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["alike", "any_half", "difference", "resized", "same"]

_ROUNDING, _HALF_ROUNDING = 1e-4, 3e-2  # relative to the example's own values, at one size
# At another size; of halves, relative to all examples. In a batch half as large again (2 and 3
# examples: one more) what follows the size moves by a quarter and more, its root by an eighth.
_RESIZED, _HALF_RESIZED = 1e-3, 1e-1
_WIDE = 1e-2  # between float32, or tf32, and float64, relative to all examples


def same(a: object, b: object) -> bool:
    """Whether two values that a model wrote are equal; what is no number may hide a difference."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return type(a) is type(b) and (a == b if isinstance(a, (set, float)) else repr(a) == repr(b))


def any_half(tensors: list[Tensor]) -> bool:
    """Is one of them in half precision, or was it computed so? The graph also knows the latter."""
    queue = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen, kinds = set(queue), {t.dtype for t in tensors}
    for node in queue:
        kinds.update(data.dtype for data in getattr(node, "_input_metadata", ()))
        fresh = {child for child, _ in node.next_functions if child is not None} - seen
        queue += fresh
        seen |= fresh
    return any(kind.is_floating_point and kind.itemsize < 4 for kind in kinds)


def resized(before: list[Tensor], after: list[Tensor], *, half: bool = False) -> float:
    """The largest change of a row when the batch has others besides, relative to rounding.

    Halves round the numbers that a small answer is the difference of, so that one row tells
    nothing about them: what follows the size changes all rows, which are taken together.
    """
    largest = 0.0
    for a, b in zip(before, after, strict=True):
        if len(b) <= len(a) or a.shape[1:] != b.shape[1:]:
            continue
        a, b = (t[: len(a)].double().nan_to_num(0.0, 0.0, 0.0).reshape(len(a), -1) for t in (a, b))
        whole, rows = (a - b).norm() / (a.norm() + 1e-30), _largest(a, b)
        largest = max(largest, float(whole) / _HALF_RESIZED if half else rows / _RESIZED)
    return largest


def alike(short: list[Tensor], wide: list[Tensor]) -> bool:
    """Whether answers in float64 are those of float32 but for rounding, all rows taken together.

    Else they are those of another computation, and tell nothing of the one that is trained.
    """
    for a, b in zip(short, wide, strict=True):
        if a.shape != b.shape:
            return False
        a, b = (t.double().nan_to_num(0.0, 0.0, 0.0) for t in (a, b))
        if not (a - b).norm() <= _WIDE * b.norm() + 1e-30:
            return False
    return True


def _largest(a: Tensor, b: Tensor) -> float:
    """Change of a row, relative to its own values."""
    scale = a.abs().amax(1) + 1e-3 * a.abs().max() + 1e-30
    return float(((a - b).abs().amax(1) / scale).max())


def difference(before: list[Tensor], after: list[Tensor], rows: list[int]) -> float:
    """The largest change of one of the rows (all, if none is named), relative to rounding."""
    largest = 0.0
    for a, b in zip(before, after, strict=True):
        if a.shape != b.shape or (rows and len(a) <= max(rows)):
            continue
        half = a.dtype.itemsize < 4 and a.is_floating_point()
        # an example that is no number to begin with stays so in both answers
        a, b = (t.double().nan_to_num(0.0, 0.0, 0.0).reshape(len(t), -1) for t in (a, b))
        a, b = (a[rows], b[rows]) if rows else (a, b)
        largest = max(largest, _largest(a, b) / (_HALF_ROUNDING if half else _ROUNDING))
    return largest
