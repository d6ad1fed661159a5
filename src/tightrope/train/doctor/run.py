"""check_run(): is a live run what its certificate will state?

The run takes real steps on its own data; what gets noise, what comes out and what the optimizer
receives are written down, and weights, optimizer, ledger, sampler and generators are put back
afterwards. Nothing of it is released, so it costs no privacy. The Python of a loss that runs "one
at a time" may change objects of its own; that is the one thing that is not undone.

Noise and sampler are tested by their laws (laws.py). The checks here read no statistics: the clip
bounds what it states, the optimizer gets the noisy sum over the public constant, and the ledger
counts it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import Adjacency
from tightrope.train.clip import AdaptiveClip
from tightrope.train.doctor.laws import (
    FAULT,
    GOOD,
    NOTE,
    Columns,
    Diagnosis,
    Finding,
    Table,
    check_noise,
    check_sampler,
    draw_batches,
    in_units,
)
from tightrope.train.ranks import in_parts, rank_and_size
from tightrope.train.run import PrivateRun
from tightrope.train.spending import Length
from tightrope.validate import check_count, check_probability

DIVISOR, CLIP = "public divisor", "clip bound"
ROUNDING = 1e-2  # relative: parameters in half precision round their gradients


def check_run(
    run: PrivateRun | Callable[[], PrivateRun], *, steps: int = 48, false_alarm: float = 1e-6
) -> Diagnosis:
    """Examine a run, or what a function returns, by `steps` steps that are undone.

    They cost no privacy, since nothing of them is released. false_alarm: the largest chance that
    this examination accuses a sound run, over all its statistical tests (noise and sampler).
    """
    count = check_count(steps, "steps", low=2)
    rate = float(check_probability(false_alarm, "false_alarm"))
    made: Any = run() if callable(run) and not isinstance(run, nn.Module) else run
    _check_examinable(made)
    return Diagnosis(tuple(_examined(made, count, rate)), rate)


def _check_examinable(run: object) -> None:
    if not isinstance(run, PrivateRun):
        raise InvalidInput(
            f"check_run examines a private run, as private(model, optimizer, data, loss, ...) "
            f"makes it; got {type(run).__name__}. For a loss without a run there is check_program."
        )
    if rank_and_size()[1] > 1:
        raise InvalidInput("check_run examines one process; start the run without torchrun.")
    if in_parts(run.model):
        raise InvalidInput("check_run examines whole models; make the run without shard(model).")
    if run.ledger.strategy is not None:
        raise InvalidInput(
            "check_run examines noise and batches that are drawn anew at every step; those of this "
            f"run depend on each other ({run.ledger.strategy}). Examine the same run with "
            "GaussianNoise and PoissonSampler; what differs is tested with the library."
        )
    if run.records.length == 0:
        raise InvalidInput("The data set is empty; there is nothing to draw and to examine.")


def _examined(run: PrivateRun, steps: int, rate: float) -> Iterator[Finding]:
    record, how = run.record(), run.isolation.how
    if record.private:
        yield Finding("randomness", GOOD, f"{record.noise}; {record.sampling}")
    else:
        reasons = "; ".join(record.not_private_because)
        yield Finding("randomness", FAULT, f"not private: {reasons}")
    if how == "one at a time":
        text = (
            "your Python runs on one example at a time, and you vouch that it keeps nothing from "
            "one example to the next; the certificate says so"
        )
        yield Finding("examples", NOTE, text)
    else:
        proof = f"proved, program {run.isolation.digests[0][:16]}" if how == "proved" else how
        yield Finding("examples", GOOD, f"kept apart: {proof}")
    try:
        with restored(run):
            yield from check_sampler(run, draw_batches(run), rate / 2)
        with restored(run):
            columns = columns_of(run)
            seen = observe(run, columns, steps)
            yield from check_noise(run, [step.noise for step in seen], columns, rate / 2)
        yield from _divisor(run, seen)
        counted = sum(step.counted for step in seen)
        text = f"{counted} of {steps} observed releases were counted"
        yield Finding("ledger", GOOD if counted == steps else FAULT, text)
        yield _clip(run)
    except ModelNotPrivate as refusal:
        yield Finding("run", FAULT, str(refusal))


# ---- steps that are written down and undone ------------------------------------------------------


def columns_of(run: PrivateRun) -> Columns:
    """Which numbers of the sums are written down."""
    zeros = run.totals.zero(run.parameters, count=isinstance(run.clip, AdaptiveClip))
    return Columns(in_units(zeros, 1.0))


class Observed(NamedTuple):
    """One step, at the columns that are written down.

    noise: in units of its stated deviation. noisy: the sum with noise; gradient: what the
    optimizer got. counted: by the ledger.
    """

    noise: Table
    noisy: Table
    gradient: Table
    counted: int


@final
class _Totals:
    """The run's totals; sums before and after their noise are written down."""

    def __init__(self, inner: Any, columns: Columns) -> None:
        self._inner, self._columns = inner, columns
        self.noise = self.noisy_sum = np.zeros(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def noisy(self, total: list[Tensor], noise: Any, sensitivity: float, examples: int) -> Any:
        given = self._columns.of(in_units(total, sensitivity))
        sums = self._inner.noisy(total, noise, sensitivity, examples)
        self.noisy_sum = self._columns.of(sums)
        deviation = noise.noise_multiplier * self._inner.arithmetic.charged(sensitivity)
        self.noise = (self.noisy_sum - given) / max(deviation, 1e-300)
        return sums


def observe(run: PrivateRun, columns: Columns, steps: int) -> list[Observed]:
    """Steps of the run. The caller restores it."""
    seen, got = list[Observed](), list[Table]()
    changed: Any = run
    changed.totals = totals = _Totals(run.totals, columns)

    def before_step(*_: Any) -> None:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in run.parameters]
        got.append(columns.of(grads))

    handle = run.optimizer.register_step_pre_hook(before_step)
    try:
        for _ in range(steps):
            released = run.ledger.released
            run.take_step()
            counted = run.ledger.released - released
            seen.append(Observed(totals.noise, totals.noisy_sum, got.pop(), counted))
    finally:
        handle.remove()
    return seen


@contextmanager
def restored(run: PrivateRun) -> Iterator[None]:
    """Everything that a step changes is put back afterwards, whatever happens in between."""
    ledger, touched = run.ledger, run.weights_touched
    values = [(t, t.detach().clone()) for t in (*run.model.parameters(), *run.model.buffers())]
    parts: list[Any] = [run.optimizer, *run.schedules, run.clip]
    states = [(p, copy.deepcopy(p.state_dict())) for p in parts if hasattr(p, "load_state_dict")]
    run._forget_draws()
    sampler, noise = run.sampler.state(), run.noise.state()
    kept = [(run, {**vars(run), "isolations": [*run.isolations]}), (ledger, dict(vars(ledger)))]
    ledger.journal = ledger.budget = ledger.reserved = run.write_ahead = run.folder = None
    ledger.length = Length()
    ledger.forget_allowance()
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [run.device.index or 0] if run.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            if not touched:
                run._check_before_step()  # exports the loss again where the model was changed
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        for owner, attributes in kept:
            vars(owner).clear()
            vars(owner).update(attributes)
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        for part, state in states:
            part.load_state_dict(state)
        run._forget_draws()
        run.sampler.restore(sampler)
        run.noise.restore(noise)
        ledger.forget_allowance()
        if not touched:
            run.mark_weights()


# ---- scale ---------------------------------------------------------------------------------------


def _divisor(run: PrivateRun, seen: list[Observed]) -> Iterator[Finding]:
    """The optimizer must get noisy sum / constant, in every step and coordinate."""
    constant = run.expected_batch_size
    for number, step in enumerate(seen, start=1):
        noisy = step.noisy[: len(step.gradient)]  # an adaptive clip has one number more
        if np.linalg.norm(step.gradient * constant - noisy) > ROUNDING * np.linalg.norm(noisy):
            square = float((step.gradient**2).sum())
            ratio = float(noisy @ step.gradient) / square if square else np.inf
            text = (
                f"what the optimizer gets is not the noisy sum over the public {constant:g} (in "
                f"step {number} it is divided by about {ratio:.4g}): a divisor that follows the "
                "batch reveals its size, and what is changed after the noise is not what was "
                "accounted"
            )
            yield Finding(DIVISOR, FAULT, text)
            return
    text = f"every step hands over the noisy sum divided by {constant:g}"
    yield Finding(DIVISOR, GOOD, text)
    derived, private = run.sampler.sampling.rate * run.records.length, Adjacency.ADD_OR_REMOVE
    if run.sampler.adjacency is private and derived and abs(constant / derived - 1) <= 1e-9:
        text = (
            f"the divisor is exactly rate * {run.records.length}. Under add-or-remove neighbours "
            "the number of records is private: fine if it is publicly known, else give a rounded "
            "one"
        )
        yield Finding("size of the data", NOTE, text)


def _clip(run: PrivateRun) -> Finding:
    """The factors of the clip for made norms from 1e-15 to 1e15."""
    rows = np.random.default_rng().uniform(-15, 15, (len(run.parameters), 512))
    norms = torch.from_numpy(10.0**rows).float().to(run.device)
    factors = run.clip.factors(norms.square()).double()
    if not bool(torch.isfinite(factors).all()) or bool((factors < 0).any()):
        return Finding(CLIP, FAULT, "factors of the clip are negative or not finite")
    largest, bound = float((factors * norms).square().sum(0).sqrt().max()), run.clip.sensitivity
    if largest > float(bound) * (1 + 1e-6):
        text = f"the clip lets a gradient of norm {largest:g} through, and states {bound:g}"
        return Finding(CLIP, FAULT, text)
    text = f"no gradient is longer than the stated {float(bound):g} after the clip"
    return Finding(CLIP, GOOD, text)
