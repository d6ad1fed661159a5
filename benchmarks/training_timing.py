"""Timing steps of several variants side by side, and what they keep in memory."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from training_models import Case, optimizer_of

Step = Callable[[], None]


def precision(case: Case, device: str) -> AbstractContextManager[object]:
    if case.half and device == "cuda":
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


def fresh(case: Case, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The same model and data for every variant."""
    torch.manual_seed(0)
    gpu = device == "cuda"
    x, y = case.data(case.sizes[gpu], gpu)
    return case.build(gpu).to(device).train(), x.to(device), y.to(device)


def plain_step(case: Case, device: str, *, compiled: bool = False) -> Step:
    model, x, y = fresh(case, device)
    optimizer = optimizer_of(case, model)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad()
        with precision(case, device):
            loss = case.losses(run, x, y).mean()
        loss.backward()
        optimizer.step()

    return step


def captured_plain_step(case: Case, device: str) -> Step:
    """Forward and backward pass as one CUDA graph; the update follows, as in the private step."""
    model, x, y = fresh(case, device)
    optimizer = optimizer_of(case, model)

    def gradients() -> None:
        with precision(case, device):
            loss = case.losses(model, x, y).mean()
        loss.backward()

    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            gradients()
    here.wait_stream(side)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients()

    def step(read_by_the_graph: object = (model, x, y)) -> None:
        graph.replay()
        optimizer.step()

    return step


def milliseconds(step: Step, device: str) -> float:
    """Of the GPU, or of the processor: with one thread what other programs take does not count."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end))
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    step()
    return 1e3 * (clock() - begin)


def measure(steps: dict[str, Step], device: str, seconds: float) -> dict[str, dict[str, float]]:
    """Median step times, interleaved so that a busy moment hits all variants alike.

    Short steps come in turns of several: training repeats one step, and a
    variant should not be charged for the caches that another one has filled.
    """
    for step in steps.values():
        for _ in range(3):
            step()
    turns = {name: _turn(step, device) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(next(iter(times.values()))) < 5:
        for name, step in steps.items():
            times[name] += [milliseconds(step, device) for _ in range(turns[name])]
    return {
        n: {"ms": statistics.median(t), "least": min(t), "steps": float(len(t))}
        for n, t in times.items()
    }


def _turn(step: Step, device: str) -> int:
    """Steps that take about ten milliseconds together, at least one."""
    fastest = min(milliseconds(step, device) for _ in range(5))
    return max(1, round(10 / max(1e-3, fastest)))


Ready = tuple[Step, dict[str, float]]


def warm(make: Callable[[], Step]) -> Ready:
    """Two steps ahead: plans, kernels and compiled code are made."""
    step = make()
    step()
    step()
    return step, {}


def measured(make: Callable[[], Step]) -> Ready:
    """The same, and the MB of CUDA memory that a step takes, model and optimizer state included.

    allocated: the most that tensors took at one time; nothing of a captured graph counts.
    reserved: the most that the allocator reserved, a graph's own memory and all fragments included.
    """
    gc.collect()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    step, _ = warm(make)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    taken = {
        "allocated": (torch.cuda.max_memory_allocated() - allocated) / 2**20,
        "reserved": (torch.cuda.max_memory_reserved() - reserved) / 2**20,
    }
    torch.cuda.empty_cache()
    return step, taken


def print_json(value: object) -> None:
    print(json.dumps(value))
