"""The compiled program recorded as one CUDA graph: passes, norms, factors and sums in one launch.

A small network's step is hundreds of short kernels, and starting each from Python takes longer than
running it. Inside a graph nothing can react to a value. If any gradient is not finite, which is
read off one number after the replay, the graph runs again with the same draws, and an example whose
gradient is finite stands where those are that are not, with factor zero: all others stay in their
places, so that neither their values nor their rounding changes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, final

import torch
from torch import Tensor, fx

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.executors.compiled import TracedPasses
from tightrope.train.executors.plain import Parameters, Plain, nothing, tensors_in
from tightrope.train.gradients.batch import ClippedBatch, empty_batch
from tightrope.train.gradients.sums import losses_of
from tightrope.train.program.capture import Program

T = TypeVar("T")
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # of the allocator
_WARM_UPS = 3
_MOST_RUNS = 100


@final
class CudaGraph(Plain):
    """As `Compiled`, with all that follows recorded too, for one clip and one length of chains.

    compiled: whether torch's compiler sees the passes first; those of recurrent layers never do.
    """

    how = "cuda graph"

    def __init__(
        self,
        program: Program,
        labels: dict[fx.Node, Any],
        size: int,
        parameters: Parameters,
        *,
        compiled: bool = True,
    ) -> None:
        super().__init__(program, labels, size, parameters)
        self._device = device = self.parameters[0].device
        traced = compiled and not self.sums.has_recurrent
        self._traced = TracedPasses(self.sums, compiled=True) if traced else None
        self._leaves = self.sums.blank_leaves()
        self._numbers = torch.arange(size, device=device)
        self._present = torch.zeros(size, dtype=torch.bool, device=device)
        self._generator = torch.default_generator
        if device.type == "cuda":
            self._generator = torch.cuda.default_generators[device.index or 0]
        self._recorded: tuple[Clip, float, int, list[int]] | None = None
        self._graph: Any = None
        self._found: Any = None

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        leaves, rows = tensors_in(batch, self.size)
        if rows == 0:
            return nothing(self.parameters, leaves)
        self._load(leaves, rows)
        self._record(clip, chain)
        draws = self._generator.get_state()
        self._graph.replay()
        found, losses = self._found
        losses = losses[:rows].clone()
        dropped = torch.zeros(self.size, dtype=torch.bool, device=self._device)
        for _ in range(_MOST_RUNS):
            bad = ~found.squared_norms.isfinite()
            if math.isfinite(float(found.health)) or not bool(bad.any()):
                return _copied(found, dropped, rows), losses
            dropped |= bad & self._present
            self._present &= ~bad
            left = self._present.nonzero()
            if len(left) == 0:  # all examples were dropped
                squares = torch.full((rows,), torch.inf, device=self._device)
                factors = torch.zeros_like(found.factors[:, :rows])
                sums = empty_batch(self.parameters).sums
                return ClippedBatch(sums, rows, squares, factors, rows), losses
            for mine in self._leaves:  # of one that is finite
                mine[bad] = mine[left[0, 0]].clone()
            self._generator.set_state(draws)
            self._graph.replay()
        raise InvalidInput(
            "By chance (dropout) a gradient is not finite in nearly every run of this batch. Fix "
            "the model, or use the plain executor."
        )

    def _load(self, leaves: list[Tensor], rows: int) -> None:
        for mine, new in zip(self._leaves, leaves, strict=True):
            mine[:rows].copy_(new)
            if rows < len(mine):
                mine[rows:].copy_(new[:1].expand_as(mine[rows:]))
        torch.lt(self._numbers, rows, out=self._present)

    def _compute(self, clip: Clip, chain: int) -> tuple[ClippedBatch, Tensor]:
        passed = (self._traced or self.passes)(self._leaves)
        losses = losses_of(passed)
        return self.sums.total(passed, self._present, clip, chain, waits=False), losses

    def _record(self, clip: Clip, chain: int) -> None:
        """Recorded anew where the clip is another one, or a weight lies elsewhere."""
        program = self.sums.program
        tensors = [program.tensor(place) for place in program.places if place.kind != "batch"]
        wanted = clip, float(clip.sensitivity), chain, [t.data_ptr() for t in tensors]
        if wanted == self._recorded:
            return
        self._graph = self._found = self._recorded = None  # their memory is free for the next
        side, here = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                torch.cuda.reset_peak_memory_stats(self._device)
                before = torch.cuda.memory_allocated(self._device)
                self._compute(clip, chain)
            most = torch.cuda.max_memory_allocated(self._device)
        here.wait_stream(side)
        self._graph, self._found = record(
            lambda: self._compute(clip, chain), self._device, most - before
        )
        self._recorded = wanted


def _copied(found: ClippedBatch, dropped: Tensor, rows: int) -> ClippedBatch:
    """Copies: the next replay writes where this one wrote."""
    squares = found.squared_norms[:rows].masked_fill(dropped[:rows], torch.inf)
    return ClippedBatch(
        tuple(total.clone() for total in found.sums),
        rows,
        squares,
        found.factors[:, :rows].clone(),
        int(dropped[:rows].sum()),
    )


def record(
    compute: Callable[[], T], device: torch.device, room: int
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph, and where each replay leaves what `compute` returns; room: bytes that it takes."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.clear_autocast_cache()  # weights cast outside would never be cast again
    # What cuBLAS works in while a graph runs belongs to this graph, and goes with it. A workspace
    # made in a capture would otherwise be kept for others, and with it all of the piece from which
    # it was cut; and one that an earlier graph made may be gone when this one runs.
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, pool):
            # Memory in one piece, from which all is cut; it is free again at once. Pieces taken one
            # by one never grow together: what layers free is too short for what comes after them.
            # Where large pieces are not cut this would be lost.
            if not any("max_split_size" in os.environ.get(name, "") for name in _SETTINGS):
                torch.empty(room, dtype=torch.uint8, device=device)
            return graph, compute()
    except RuntimeError:
        _end_capture(device, pool)
        raise
    finally:
        torch._C._cuda_clearCublasWorkspaces()
        torch.clear_autocast_cache()


def _end_capture(device: torch.device, pool: Any) -> None:
    """A capture that failed ends neither for the allocator nor for the generator; here it does.

    The allocator would give no cached memory back any more. Every graph that was recorded before
    draws from the generator's state, so no other can take its place.
    """
    with suppress(RuntimeError):  # it has ended, where Python failed and not CUDA
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    with torch.cuda.device(device), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device=device)
