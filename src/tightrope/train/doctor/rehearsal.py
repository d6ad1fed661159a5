"""A rehearsal: the run takes real steps on real data, is watched, and is then put back.

Nothing of a rehearsal is released: weights, optimizer, ledger, sampler and generators are restored,
so it costs no privacy. Only the doctor's verdicts come out of it, and they are not for publication.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.process import BallsInBinsSampling, PoissonSampling
from tightrope.train.batch_scale import BatchScale
from tightrope.train.doctor.columns import Columns
from tightrope.train.feed import Rows, Ticket
from tightrope.train.held import as_it_was
from tightrope.train.length import Length
from tightrope.train.modes import in_mode
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.samplers import Indices

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.gradients.batch import ClippedBatch

__all__ = ["Observed", "Spied", "rehearse", "restored"]


@final
@dataclass
class Observed:
    """One rehearsed step, at the columns that are looked at.

    clean: what the gradient engine summed; given: what noise was added to; noisy: the same with
    noise; gradient: what the optimizer was handed. parts: largest value of each tensor's sum.
    drawn: the records of the batch; None where nothing was drawn.
    """

    clean: Tensor
    batch_size: int = 0
    clipped: float = 0.0
    counted: int = 0
    sensitivity: float = 0.0
    given: Tensor | None = None
    noisy: Tensor | None = None
    gradient: Tensor | None = None
    moved: float = 0.0
    parts: list[float] = field(default_factory=list)
    drawn: Indices | None = None


def rehearse(
    run: PrivateOptimizer,
    losses_of: Callable[[Any], Tensor],
    rows: Rows,
    columns: Columns,
    *,
    steps: int,
    micro_batch: int | None = None,
) -> list[Observed]:
    """Take `steps` steps as the user would and one on an empty batch; write down, and undo."""
    watching = _Watching(run, columns)
    with restored(run), watching.spies():
        for batch in run.batches(rows, steps=steps, micro_batch=micro_batch):
            watching.step(None if run.next_is_empty else losses_of(batch))
        if isinstance(run.sampler.sampling, PoissonSampling | BallsInBinsSampling):
            run.expect(Ticket(0, True, 0, run.sampler.state()))
            watching.step(None)
    return watching.seen


@final
class _Watching:
    """Sits at the engine, at the noise and at the optimizer's door."""

    def __init__(self, run: PrivateOptimizer, columns: Columns) -> None:
        self._run, self._columns = run, columns
        self.seen: list[Observed] = []
        self._step: Observed | None = None
        self._drawn: Indices | None = None

    def step(self, losses: Tensor | None) -> None:
        """One part of a batch; the last part makes the step."""
        run = self._run
        before, counted = self._columns.of(run.gradients.parameters), run.ledger.released
        report = run.step_empty() if losses is None else run.step(losses)
        if report.released and self._step is not None:
            self._step.moved = float(
                (self._columns.of(run.gradients.parameters) - before).abs().max()
            )
            self._step.counted = run.ledger.released - counted
            self._step.drawn, self._drawn = self._drawn, None
            self.seen.append(self._step)
            self._step = None

    def summed(self, batch: ClippedBatch, size: int) -> None:
        clean, parts = self._columns.of(batch.sums), [_largest(total) for total in batch.sums]
        step = self._step
        if step is None:
            step = self._step = Observed(torch.zeros_like(clean), parts=[0.0] * len(parts))
        step.clean = step.clean + clean
        step.clipped += float(batch.clipped_fraction) * size
        step.batch_size += size
        step.parts = [max(pair) for pair in zip(step.parts, parts, strict=True)]

    @contextmanager
    def spies(self) -> Iterator[None]:
        run = self._run
        gradients, noise, own = run.gradients, run.noise, vars(run).get("draw")
        run.gradients, run.noise = _SpiedGradients(gradients, self), _SpiedNoise(noise, self)
        draw = run.draw

        def drawing() -> tuple[Indices, Ticket]:
            self._drawn, ticket = draw()
            return self._drawn, ticket

        run.draw = drawing  # type: ignore[method-assign]

        def before_step(*_: Any) -> None:
            if self._step is not None:
                self._step.gradient = self._columns.of([_gradient(p) for p in gradients.parameters])

        handle = run.optimizer.register_step_pre_hook(before_step)
        try:
            yield
        finally:
            handle.remove()
            run.gradients, run.noise = gradients, noise
            del run.draw
            if own is not None:  # somebody else's, on this very object
                run.draw = own  # type: ignore[method-assign]

    def noised(
        self, add: Callable[[Any, float], None], sums: Sequence[Tensor], sensitivity: float
    ) -> None:
        given = self._columns.of(sums)
        add(sums, sensitivity)
        if self._step is not None:
            self._step.sensitivity = sensitivity
            self._step.given, self._step.noisy = given, self._columns.of(sums)


class Spied:
    """A part of a run that somebody looks at; all else passes through."""

    def __init__(self, inner: Any, watching: Any) -> None:
        self._inner, self._watching = inner, watching

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _SpiedGradients(Spied):
    def clipped_sum(self, losses: Tensor, clip: Clip, **how: Any) -> Any:
        batch = self._inner.clipped_sum(losses, clip, **how)
        self._watching.summed(batch, len(losses))
        return batch


class _SpiedNoise(Spied):
    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        self._watching.noised(self._inner.add_, sums, sensitivity)


@contextmanager
def restored(run: PrivateOptimizer) -> Iterator[None]:
    """Everything a step changes is put back afterwards, whatever happens in between."""
    weights = copy.deepcopy(run.model.state_dict())
    rule = copy.deepcopy(run.optimizer.state_dict())
    sampler, noise = run.sampler.state(), run.noise.state()
    ledger, told = run.ledger, (run.sampler_state, run.write_ahead)
    counts = (ledger.taken, ledger.released, ledger.forfeited, ledger.journal)
    budget, ledger.budget, ledger.journal = ledger.budget, None, None
    reserved, ledger.reserved = ledger.reserved, None
    generator, touched = torch.get_rng_state(), run.weights_touched
    data, length = (run.data.pinned, run.data.fingerprint), ledger.length
    ledger.length = Length()
    looks = run.company.asleep, run._scale  # the run's own looks at its loop are not used up
    run.company.asleep, run._scale = True, BatchScale(run.sampler.sampling)
    run.write_ahead, run.undone = None, True
    run.ledger.forget_allowance()
    try:
        with in_mode(run.model, training=True), run.guard.unwatched(), as_it_was(run.model):
            yield
    finally:
        run.abandon_batch()
        run.model.load_state_dict(weights)
        run.optimizer.load_state_dict(rule)
        run.sampler.restore(sampler)
        run.noise.restore(noise)
        (run.sampler_state, run.write_ahead), run.undone = told, False
        ledger.taken, ledger.released, ledger.forfeited, ledger.journal = counts
        ledger.budget, ledger.reserved = budget, reserved
        run.ledger.forget_allowance()
        torch.set_rng_state(generator)
        (run.data.pinned, run.data.fingerprint), ledger.length = data, length
        run.company.asleep, run._scale = looks
        if not touched:
            run.mark_weights()


def _largest(total: Tensor) -> float:
    return float(total.detach().abs().max()) if total.numel() else 0.0


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
