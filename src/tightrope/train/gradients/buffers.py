"""Scratch memory on the CPU that is kept from step to step.

A fresh large tensor costs a page fault for every 4 kB written, which doubles the time of a product
that fills it; CUDA's allocator keeps its memory anyway and needs none of this.
"""

from __future__ import annotations

import threading
from functools import cache
from math import prod
from typing import final

import torch
from torch import Tensor

__all__ = ["keep_freed_memory", "scratch", "scratch_scope"]

_SMALLEST = 2**16  # values; below this a fresh tensor is as fast
_LARGEST_RAISE = 2**25 - 2**16  # bytes; larger blocks change nothing in the C library


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what one step has freed for the next one.

    It returns less to the system once a large block was freed (mallopt(3), M_MMAP_THRESHOLD). Once
    for all: later blocks would come from memory that is kept, and many runs would take 32 MB each.
    """
    torch.empty(_LARGEST_RAISE, dtype=torch.uint8, device="cpu")


class _Kept(threading.local):
    """Every thread has its own: what is free in one may hold another's gradients."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []
        self.open: list[scratch_scope] = []


_kept = _Kept()


@final
class scratch_scope:  # noqa: N801
    """Scratch tensors taken inside a `with scratch_scope():` may be overwritten after it ends.

    A scope that an exception has left open ends with the one around it, and its tensors are not
    used again: whoever closes it later (a generator that is thrown away) takes nobody's memory.
    """

    def __init__(self) -> None:
        self.taken: list[Tensor] = []

    def __enter__(self) -> None:
        _kept.open.append(self)

    def __exit__(self, *_: object) -> None:
        if self in _kept.open:
            del _kept.open[_kept.open.index(self) :]
            _kept.free.extend(self.taken)


def scratch(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor, from kept memory where a scope is open on the CPU."""
    size = prod(shape)
    if not _kept.open or device.type != "cpu" or size < _SMALLEST:
        return torch.empty(shape, dtype=dtype, device=device)
    fitting = [b for b in _kept.free if b.dtype is dtype and size <= b.numel() <= 4 * size]
    if fitting:
        buffer = min(fitting, key=Tensor.numel)
        _kept.free[:] = [b for b in _kept.free if b is not buffer]
    else:
        buffer = torch.empty(size, dtype=dtype, device=device)
    _kept.open[-1].taken.append(buffer)
    return buffer[:size].view(shape)
