"""A rehearsal: the run takes real steps on real data, is watched, and is then put back.

Nothing of a rehearsal is released: weights, optimizer, ledger, sampler and generators are restored,
so it costs no privacy. Only the doctor's verdicts come out of it, and they are not for publication.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from tightrope.train.losses import losses_on
from tightrope.train.modes import in_mode
from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["Observed", "rehearse", "restored"]


@final
@dataclass
class Observed:
    """One rehearsed step: sum before noise, sum after noise, gradient given to the optimizer."""

    clean: Tensor
    batch_size: int
    counted: int = 0
    clipped: float = 0.0
    noisy: Tensor | None = None
    gradient: Tensor | None = None
    moved: float = 0.0
    parts: list[float] = field(default_factory=list)


def rehearse(
    run: PrivateOptimizer, loss: Callable[..., Tensor], data: Any, steps: int
) -> list[Observed]:
    """Take `steps` steps as the user would, write down what passes, and undo them."""
    seen: list[Observed] = []
    with restored(run), _spies(run, seen):
        for batch in run.batches(data, steps=steps):
            before, counted = _flat(run.gradients.parameters), run.ledger.released
            _step(run, loss, batch)
            seen[-1].moved = float((_flat(run.gradients.parameters) - before).abs().max())
            seen[-1].counted = run.ledger.released - counted
    return seen


def _step(run: PrivateOptimizer, loss: Callable[..., Tensor], batch: Any) -> None:
    if run.next_is_empty:
        run.step_empty()
    else:
        run.step(losses_on(run.model, loss, batch))


@contextmanager
def restored(run: PrivateOptimizer) -> Iterator[None]:
    """Everything a step changes is put back afterwards, whatever happens in between."""
    weights = copy.deepcopy(run.model.state_dict())
    rule = copy.deepcopy(run.optimizer.state_dict())
    sampler, noise = run.sampler.state(), run.noise.state()
    ledger, told = run.ledger, (run.sampler_state, run.write_ahead)
    counts = (ledger.taken, ledger.released, ledger.forfeited, ledger.journal)
    budget, ledger.budget, ledger.journal = ledger.budget, None, None
    generator, rows, touched = torch.get_rng_state(), run.rows, run.weights_touched
    run.write_ahead = None
    run.ledger.forget_allowance()
    try:
        with in_mode(run.model, training=True), run.guard.unwatched():
            yield
    finally:
        run.abandon_batch()
        run.model.load_state_dict(weights)
        run.optimizer.load_state_dict(rule)
        run.sampler.restore(sampler)
        run.noise.restore(noise)
        run.sampler_state, run.write_ahead = told
        ledger.taken, ledger.released, ledger.forfeited, ledger.journal = counts
        ledger.budget = budget
        run.ledger.forget_allowance()
        torch.set_rng_state(generator)
        run.rows = rows
        if not touched:
            run.mark_weights()


@contextmanager
def _spies(run: PrivateOptimizer, seen: list[Observed]) -> Iterator[None]:
    gradients, noise = run.gradients, run.noise
    run.gradients, run.noise = _SpiedGradients(gradients, seen), _SpiedNoise(noise, seen)

    def before_step(*_: Any) -> None:
        if seen and seen[-1].gradient is None:
            seen[-1].gradient = _flat([_gradient(p) for p in gradients.parameters])

    handle = run.optimizer.register_step_pre_hook(before_step)
    try:
        yield
    finally:
        handle.remove()
        run.gradients, run.noise = gradients, noise


class _Spied:
    def __init__(self, inner: Any, seen: list[Observed]) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _SpiedGradients(_Spied):
    def clipped_sum(self, losses: Tensor, clip: Any, **how: Any) -> Any:
        batch = self._inner.clipped_sum(losses, clip, **how)
        observed = Observed(_flat(batch.sums), len(losses), clipped=float(batch.clipped_fraction))
        observed.parts = [float(s.detach().abs().max()) if s.numel() else 0.0 for s in batch.sums]
        self._seen.append(observed)
        return batch


class _SpiedNoise(_Spied):
    def add_(self, sums: Any, sensitivity: float) -> None:
        self._inner.add_(sums, sensitivity)
        if self._seen:
            self._seen[-1].noisy = _flat(sums)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().double().cpu().reshape(-1) for t in tensors])
