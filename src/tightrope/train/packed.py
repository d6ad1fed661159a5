"""Many small tensors side by side in one, so that one operation serves them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["neighbours", "pack", "unpack", "whole"]

# Values that are worth copying: 64 MiB of float32.
_LARGEST = 2**24


def pack(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same values as consecutive views of one new tensor.

    Where that costs more than it saves (several dtypes, large tensors), the tensors themselves.
    """
    sizes = [tensor.numel() for tensor in tensors]
    if len(tensors) < 2 or sum(sizes) > _LARGEST or len({t.dtype for t in tensors}) > 1:
        return list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    return unpack(flat, tensors)


def unpack(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive views of `flat` in the shapes of other tensors."""
    parts = torch.split_with_sizes(flat, [tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


def whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The one tensor whose consecutive views they are, if they fill it; else they themselves."""
    base = tensors[0]._base if len(tensors) > 1 else None
    if base is None or base.dim() != 1:
        return list(tensors)
    start = 0
    for tensor in tensors:
        follows = tensor._base is base and tensor.storage_offset() == start
        if not follows or not tensor.is_contiguous():
            return list(tensors)
        start += tensor.numel()
    return [base] if start == base.numel() else list(tensors)


def neighbours(tensors: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Neighbouring tensors of one kind, up to a size: few launches, little extra memory."""
    group: list[Tensor] = []
    size = 0
    for tensor in tensors:
        other_kind = group and (tensor.device, tensor.dtype) != (group[0].device, group[0].dtype)
        if other_kind or size > most:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.numel()
    if group:
        yield group
