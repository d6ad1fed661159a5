"""Forward and backward pass of a run's step, compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tightrope.train.gradients import ClippedBatch, Gradients
from tightrope.train.gradients.traced import CannotTrace, Traced, said_to_compile
from tightrope.train.padded import AskAgain, PaddedBatch

if TYPE_CHECKING:
    from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["compiled_passes"]

_ROUNDING = 2e-2  # by which the same operations may differ when they run again, in half precision

Clipped = tuple[ClippedBatch, Tensor]


def compiled_passes(
    run: PrivateOptimizer,
    losses: Callable[..., Tensor],
    compute: Callable[[Any, Tensor], Clipped],
    batch: PaddedBatch,
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
    except (CannotTrace, RuntimeError):  # a model may do what a trace can follow once it is told
        engine.forget()
        with said_to_compile():
            traced = _traced(run, engine, losses, compute, batch)
    traced.compile()
    return traced


def _traced(
    run: PrivateOptimizer,
    engine: Gradients,
    losses: Callable[..., Tensor],
    compute: Callable[[Any, Tensor], Clipped],
    batch: PaddedBatch,
) -> Traced:
    compute(batch.values, batch.present)  # plans are made
    with _same_draws(run.device):
        truth = compute(batch.values, batch.present)
    with _same_draws(run.device):
        traced = engine.traced(losses, batch.values)
    with _same_draws(run.device):
        how: Any = {"present": batch.present, "chain": run.chain()}
        found = engine.clipped_sum_of(traced, batch.values, run.clip, **how)
    _check_same(truth, found)
    return traced


def _same_draws(device: torch.device) -> AbstractContextManager[None]:
    """Random numbers are drawn as if nothing had been drawn inside."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _check_same(truth: Clipped, found: Clipped) -> None:
    (batch, losses), (other, seen) = truth, found
    assert batch.health is not None
    if not math.isfinite(float(batch.health)):
        raise AskAgain
    norms = [batch.squared_norms], [other.squared_norms]
    for mine, theirs in (([losses], [seen]), norms, (batch.sums, other.sums)):
        pairs = list(zip(mine, theirs, strict=True))
        off = sum(float((a - b).double().square().sum()) for a, b in pairs)
        size = sum(float(a.double().square().sum()) for a, _ in pairs)
        if not off <= _ROUNDING**2 * size:
            raise CannotTrace("run again, the traced step gives another sum than the eager one")
