"""Scratch memory on the CPU that is kept from step to step.

A fresh large tensor costs a page fault for every 4 kB written, which doubles the time of a product
that fills it; CUDA's allocator keeps its memory anyway and needs none of this.
"""

from __future__ import annotations

from math import prod
from typing import final

import torch
from torch import Tensor

__all__ = ["scratch", "scratch_scope"]

_SMALLEST = 2**16  # values; below this a fresh tensor is as fast

_free: list[Tensor] = []
_scopes: list[list[Tensor]] = []


@final
class scratch_scope:  # noqa: N801
    """Scratch tensors taken inside a `with scratch_scope():` may be overwritten after it ends."""

    def __enter__(self) -> None:
        _scopes.append([])

    def __exit__(self, *_: object) -> None:
        _free.extend(_scopes.pop())


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor, from kept memory where a scope is open on the CPU."""
    size = prod(shape)
    if not _scopes or device.type != "cpu" or size < _SMALLEST:
        return torch.empty(shape, dtype=dtype, device=device)
    fitting = [b for b in _free if b.dtype is dtype and size <= b.numel() <= 4 * size]
    if fitting:
        buffer = min(fitting, key=Tensor.numel)
        _free[:] = [b for b in _free if b is not buffer]
    else:
        buffer = torch.empty(size, dtype=dtype)
    _scopes[-1].append(buffer)
    return buffer[:size].view(shape)
