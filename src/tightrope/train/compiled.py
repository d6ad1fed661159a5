"""Forward and backward pass of a run's step, compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tightrope.train.aside import Calm
from tightrope.train.gradients import ClippedBatch, Gradients
from tightrope.train.gradients.draws import python_draws
from tightrope.train.gradients.traced import CannotTrace, Traced, said_to_compile
from tightrope.train.padded import AskAgain, PaddedBatch

if TYPE_CHECKING:
    from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["check_told", "compiled_passes"]

# By which the same operations may differ when they run again, in float32 and in half precision.
_ROUNDING, _HALF_ROUNDING = 2e-3, 2e-2

Clipped = tuple[ClippedBatch, Tensor]
Compute = Callable[[Any, Tensor], Clipped]


def compiled_passes(
    run: PrivateOptimizer, losses: Callable[..., Tensor], compute: Compute, batch: PaddedBatch
) -> Traced:
    """compute: the eager step on the padded batch, which the trace must reproduce.

    The same random numbers are drawn for both: the trace has the model's own operations.
    Raises anything that a compiler may raise.
    """
    engine = run.gradients
    if not isinstance(engine, Gradients):
        raise CannotTrace(f"{type(engine).__name__} does not go by layers")
    if any(isinstance(module, nn.RNNBase) for module in run.model.modules()):
        raise CannotTrace(
            "a recurrent layer is one operation after another for every position, which a compiler "
            "takes minutes over"
        )
    try:
        traced = _traced(run, engine, losses, compute, batch)
        _check_on_others(run, engine, traced, compute, batch)
    except (CannotTrace, RuntimeError):  # a model may do what a trace can follow once it is told
        engine.forget()
        check_told(run, lambda: compute(batch.values, batch.present))
        with said_to_compile(), engine.anew():
            traced = _traced(run, engine, losses, compute, batch)
            _check_on_others(run, engine, traced, compute, batch)
    traced.compile()
    return traced


def _traced(
    run: PrivateOptimizer,
    engine: Gradients,
    losses: Callable[..., Tensor],
    compute: Compute,
    batch: PaddedBatch,
) -> Traced:
    compute(batch.values, batch.present)  # plans are made
    before = python_draws()
    with _same_draws(run.device):
        traced = engine.traced(losses, batch.values)
    if python_draws() != before:
        raise CannotTrace("Python's or NumPy's random numbers would be the same in every step")
    return traced


def _others(batch: PaddedBatch) -> Iterator[Any]:
    """The batch, and what else its rows can be: what a trace has read off them must not stay."""
    size = len(batch.present)
    numbers = torch.arange(size, device="cpu")
    chance = torch.Generator(device="cpu").manual_seed(size)
    some = torch.randint(size, (size,), generator=chance, device="cpu")
    for rows in (numbers, numbers.roll(1), some, torch.full_like(numbers, size // 2)):
        yield batch.rearranged(rows)


def _check_on_others(
    run: PrivateOptimizer, engine: Gradients, traced: Traced, compute: Compute, batch: PaddedBatch
) -> None:
    how: Any = {"present": batch.present, "chain": run.chain()}
    for values in _others(batch):
        with _same_draws(run.device):
            truth = compute(values, batch.present)
        with _same_draws(run.device):
            found = engine.clipped_sum_of(traced, values, run.clip, **how)
        _check_same(truth, found, half=engine.half_inside)


def check_told(run: PrivateOptimizer, once: Callable[[], Clipped]) -> None:
    """Said to be compiled, the model must give what it gives else: without dropout, both times.

    once: the eager step. What the model does then is looked at as if it were another one.
    """
    engine, calm = run.gradients, Calm(run.model)
    new = engine.anew if isinstance(engine, Gradients) else nullcontext
    try:
        with new(), _same_draws(run.device):
            truth = once()
        with new(), said_to_compile(), _same_draws(run.device):
            found = once()
        _check_same(truth, found, half=getattr(engine, "half_inside", False))
    finally:
        calm.end()


def _same_draws(device: torch.device) -> AbstractContextManager[None]:
    """Random numbers are drawn as if nothing had been drawn inside."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _check_same(truth: Clipped, found: Clipped, *, half: bool) -> None:
    """Losses, norms and sums of the same batch. half: is anything computed in half precision?"""
    (batch, losses), (other, seen) = truth, found
    assert batch.health is not None
    if not math.isfinite(float(batch.health)):
        raise AskAgain
    rounding = _HALF_ROUNDING if half else _ROUNDING
    norms = [batch.squared_norms], [other.squared_norms]
    for mine, theirs in (([losses], [seen]), norms, (batch.sums, other.sums)):
        pairs = list(zip(mine, theirs, strict=True))
        off = sum(float((a - b).double().square().sum()) for a, b in pairs)
        size = sum(float(a.double().square().sum()) for a, _ in pairs)
        if not off <= rounding**2 * size:
            raise CannotTrace("run again, the traced step gives another sum than the eager one")
