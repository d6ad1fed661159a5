"""A computation recorded as a CUDA graph, whose memory is its own and goes with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch.cuda.graphs import is_current_stream_capturing

__all__ = ["can_record", "record", "recording"]

T = TypeVar("T")

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # of the allocator


def can_record(device: torch.device) -> bool:
    return device.type == "cuda"


def recording() -> bool:
    """Whether what runs now is recorded, so that nobody may wait for a value."""
    return torch.cuda.is_initialized() and is_current_stream_capturing()


def record(
    compute: Callable[[], T], device: torch.device, room: int
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph, and where each replay leaves what `compute` returns; room: bytes that it takes."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.clear_autocast_cache()  # weights cast outside would never be cast again
    try:
        with torch.cuda.device(device), _own_workspaces(), torch.cuda.graph(graph, pool):
            _take_in_one_piece(room, device)
            return graph, compute()
    except RuntimeError:
        _end_capture(device, pool)
        raise
    finally:
        torch.clear_autocast_cache()


def _end_capture(device: torch.device, pool: Any) -> None:
    """A capture that failed ends neither for the allocator nor for the generator; here it does.

    The allocator would give no cached memory back any more. Every graph that was recorded before
    draws from the generator's state, so no other can take its place.
    """
    with suppress(RuntimeError):  # it has ended, where Python failed and not CUDA
        _end_allocating()(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    with torch.cuda.device(device), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device=device)


def _end_allocating() -> Callable[[int, Any], None]:
    of_torch: Any = torch._C
    if hasattr(of_torch, "_cuda_endAllocateToPool"):  # from PyTorch 2.8 on
        return of_torch._cuda_endAllocateToPool
    return of_torch._cuda_endAllocateCurrentStreamToPool


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """What cuBLAS works in while a graph runs belongs to this graph, and goes with it.

    A workspace made in a capture would be kept for others else, and with it all of the piece from
    which it was cut; and one that an earlier graph made may be gone when this one runs.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _take_in_one_piece(room: int, device: torch.device) -> None:
    """Let a graph's memory be one piece, from which all is cut; it is free again at once.

    Pieces taken one by one, as large as what is asked for, never grow together: what layers free
    is too short for what comes after them. Where large pieces are not cut this would be lost.
    """
    if not any("max_split_size" in os.environ.get(name, "") for name in _SETTINGS):
        torch.empty(room, dtype=torch.uint8, device=device)
