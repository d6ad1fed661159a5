"""CUDA graphs as a CPU plays them, for machines without a GPU.

As with a CUDA graph, Python runs once. A replay runs the recorded operations again, on the same
memory, with new random numbers. What is computed while recording is not there before a replay:
it is garbage until then. To read a value, or to let a shape depend on one, breaks the recording,
which then leaves the allocator and the generator in the midst of it.

Not played: kernels, streams, and memory that is used again within a graph.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

_READS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_IN_PYTHON = ("tolist", "numpy", "__array__")
_FORBIDDEN = "CUDA error: operation not permitted when stream is capturing"
_BROKEN = "CUDA error: operation failed due to a previous error during capture"


class Device:
    """What CUDA remembers between calls."""

    def __init__(self) -> None:
        self.recording: CpuGraph | None = None
        self.allocating: set[int] = set()  # pools
        self.drawing = False  # whether the generator waits for the end of a capture
        self.graphs = self.failures = 0
        self.handles = itertools.count(1)

    def end_allocating(self, _: Any, pool: int) -> None:
        if pool not in self.allocating:
            raise RuntimeError("no such pool")
        self.allocating.remove(pool)


def _storage(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree.tree_leaves(values) if isinstance(leaf, Tensor)]


class CpuGraph:
    """In place of torch.cuda.CUDAGraph."""

    _device: Device

    def __init__(self) -> None:
        self.broken = False
        self._tape: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._made: dict[int, Tensor] = {}  # what lies in the graph's own memory
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what was written to, as it was

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.broken or _reads(func, args, kwargs):
            self.forbid()
        for value in _tensors((args, kwargs)) if func._schema.is_mutable else ():
            self._keep(value)
        found = func(*args, **kwargs)
        given = {_storage(value) for value in _tensors((args, kwargs))}
        fresh = [value for value in _tensors(found) if _storage(value) not in given]
        self._made.update({_storage(value): value.detach() for value in fresh})
        if func._schema.is_mutable or fresh:
            where = tree.tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))
            self._tape.append((func, *where, [v.detach() for v in _tensors(found)]))
        return found

    def forbid(self, *_: Any, **__: Any) -> Any:
        first, self.broken = not self.broken, True
        raise RuntimeError(_FORBIDDEN if first else _BROKEN)

    def _keep(self, value: Tensor) -> None:
        """Nothing is written before the first replay."""
        if _storage(value) not in self._made and _storage(value) not in self._before:
            whole = value.detach().as_strided((_length(value),), (1,), 0)
            self._before[_storage(value)] = whole, whole.clone()

    def end(self) -> None:
        for whole, copy in self._before.values():
            whole.copy_(copy)
        for value in self._made.values():
            garbage = torch.nan if value.is_floating_point() or value.is_complex() else 77
            value.as_strided((_length(value),), (1,), 0).fill_(garbage)
        self._device.graphs += 1

    def replay(self) -> None:
        assert self._tape and not self.broken
        if self._device.drawing:
            raise RuntimeError("the generator waits for the end of a capture")
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for func, args, kwargs, places in self._tape:
                for place, new in zip(places, _tensors(func(*args, **kwargs)), strict=True):
                    if _storage(place) != _storage(new):
                        place.copy_(new)


def _length(value: Tensor) -> int:
    return value.untyped_storage().nbytes() // value.element_size()


def _reads(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the processor would wait for the device."""
    if func._schema.name in _INDEXING:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if kwargs.get("output_size") is not None:
        return False
    return any(tag in func.tags for tag in _READS)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: CpuGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._graph.run(func, args, kwargs or {})


class _Capture:
    """In place of torch.cuda.graph."""

    def __init__(self, device: Device, graph: CpuGraph, pool: int | None = None) -> None:
        self._device, self._graph, self._pool = device, graph, pool or next(device.handles)
        self._mode, self._patch = _Recording(graph), pytest.MonkeyPatch()

    def __enter__(self) -> None:
        assert self._device.recording is None
        self._device.recording, self._device.drawing = self._graph, True
        self._device.allocating.add(self._pool)
        self._draws = torch.get_rng_state()
        for name in _IN_PYTHON:
            self._patch.setattr(Tensor, name, self._graph.forbid)
        self._mode.__enter__()

    def __exit__(self, *why: Any) -> None:
        self._mode.__exit__(*why)
        self._patch.undo()
        self._device.recording = None
        torch.set_rng_state(self._draws)
        if self._graph.broken:
            self._device.failures += 1
            raise RuntimeError(_BROKEN)
        self._graph.end()
        self._device.drawing = False
        self._device.allocating.remove(self._pool)


class _Stream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, _: Any) -> None: ...


def play(patch: pytest.MonkeyPatch) -> Device:
    """From here on steps are captured on the CPU."""
    device = Device()
    patch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (CpuGraph,), {"_device": device}))
    patch.setattr(torch.cuda, "graph", lambda *given: _Capture(device, *given))
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: next(device.handles))
    patch.setattr(torch.cuda, "device", lambda _: nullcontext())
    for name in ("Stream", "current_stream"):
        patch.setattr(torch.cuda, name, _Stream)
    patch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
        patch.setattr(torch.cuda, name, lambda _: 0)
    patch.setattr(torch.cuda, "is_initialized", lambda: device.recording is not None)
    now = "_cuda_isCurrentStreamCapturing"
    patch.setattr(torch.cuda.graphs, now, lambda: device.recording is not None)
    for name in ("_cuda_clearCublasWorkspaces", "_cuda_releasePool"):
        patch.setattr(torch._C, name, lambda *_: None, raising=False)
    for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):
        patch.setattr(torch._C, name, device.end_allocating, raising=False)
    return device
