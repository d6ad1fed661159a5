"""check_model() before training, check_run() on the live objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.distributed import rank_and_size
from tightrope.train.doctor.model_checks import (
    check_clipping_rate,
    check_influence,
    check_parameters,
)
from tightrope.train.doctor.noise_checks import check_divisor, check_noise
from tightrope.train.doctor.rehearsal import Observed, rehearse, restored
from tightrope.train.doctor.sampler_checks import check_sampler
from tightrope.train.doctor.verdict import Diagnosis, Finding, fault, good
from tightrope.train.feed import Rows, as_rows
from tightrope.train.gradients import Gradients
from tightrope.train.independence import ROUNDING, mixing_of_losses
from tightrope.train.losses import losses_on
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.validate import check_count

__all__ = ["check_model", "check_run"]


def check_model(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    data: Any,
    *,
    clip: Any,
    gradients: Any | None = None,
) -> Diagnosis:
    """Can this model be trained privately with this loss? Looks at a few examples of `data`.

    loss: `loss(model(inputs), *targets)`, one number per example; `loss(model, batch)` where the
    dataset gives dictionaries.
    """
    rows = as_rows(data)
    try:
        engine = Gradients(model, method="auto") if gradients is None else gradients
    except ModelNotPrivate as refusal:
        return Diagnosis((fault("model", str(refusal)),))
    try:
        findings = [
            _losses_apart(model, loss, rows, engine.parameters[0].device),
            *check_influence(engine, clip, model, loss, rows),
            *check_parameters(model, engine, []),
        ]
    except ModelNotPrivate as refusal:
        findings = [fault("model", str(refusal))]
    finally:
        if gradients is None:
            engine.detach()
    return Diagnosis(tuple(findings))


def check_run(
    run: PrivateOptimizer,
    loss: Callable[..., Tensor],
    data: Any,
    *,
    steps: int = 8,
    false_alarm: float = 1e-6,
) -> Diagnosis:
    """Examine a live run by rehearsing `steps` steps, which are undone and cost no privacy.

    false_alarm: the chance that each statistical test (noise, sampler) accuses a sound run.
    """
    if not isinstance(run, PrivateOptimizer):
        raise InvalidInput(
            f"check_run examines a private run, as made by noisy_sgd(model, ...); got "
            f"{type(run).__name__}. For a model alone there is check_model."
        )
    if rank_and_size()[1] > 1:
        raise InvalidInput("The doctor examines one process; start the run without torchrun.")
    if run.pending:
        raise InvalidInput("A batch is half done; call the doctor between steps.")
    rows, steps = as_rows(data), check_count(steps, "steps", low=2)
    if rows.length == 0:
        raise InvalidInput("The dataset is empty; the doctor needs examples to look at.")
    try:
        return Diagnosis(tuple(_examine(run, loss, rows, steps, false_alarm)))
    except ModelNotPrivate as refusal:
        return Diagnosis((fault("model", str(refusal)),))


def _examine(
    run: PrivateOptimizer, loss: Callable[..., Tensor], rows: Rows, steps: int, false_alarm: float
) -> list[Finding]:
    bypass = _bypass(run)
    seen = rehearse(run, loss, rows, steps)
    with restored(run), run.guard.opened():
        influence = check_influence(run.gradients, run.clip, run.model, loss, rows)
    return [
        _seeds(run),
        _losses_apart(run.model, loss, rows, run.device),
        *influence,
        *check_noise(run, seen, false_alarm),
        *check_divisor(run, seen, rows.length),
        *check_sampler(run, rows.length, false_alarm),
        _counting(seen),
        *check_parameters(run.model, run.gradients, seen),
        *check_clipping_rate(seen),
        _movement(seen),
        *bypass,
    ]


def _seeds(run: PrivateOptimizer) -> Finding:
    record = run.record()
    if record.private:
        return good("randomness", f"{record.noise}; {record.sampling}")
    return fault("randomness", "not private: " + "; ".join(record.not_private_because))


def _losses_apart(model: Any, loss: Any, rows: Any, device: Any) -> Finding:
    mixing = mixing_of_losses(model, partial(losses_on, model, loss), rows, device)
    told = f"leaving the others out changes an example's loss by {mixing:.1e} of its size"
    return fault("losses mix examples", told) if mixing > ROUNDING else good("losses", told)


def _counting(seen: list[Observed]) -> Finding:
    counted, made = sum(step.counted for step in seen), len(seen)
    told = f"{counted} of {made} rehearsed releases were counted"
    return good("ledger", told) if counted == made else fault("ledger", told)


def _movement(seen: list[Observed]) -> Finding:
    if any(step.moved > 0 for step in seen):
        return good("weights", "the weights move")
    return fault("weights", "the weights did not move: is the learning rate 0?")


def _bypass(run: PrivateOptimizer) -> list[Finding]:
    """Try to step the inner optimizer and to leave raw gradients; both must fail."""
    findings = []
    if run.weights_touched:
        told = "weights were changed outside the private steps since the last one"
        findings.append(fault("optimizer bypass", told))
    with restored(run):
        if not _raises(run.optimizer.step):
            told = "the inner optimizer can be stepped directly, on whatever gradients are there"
            findings.append(fault("optimizer bypass", told))
        raw = sum((p.sum() for p in run.gradients.parameters), torch.zeros((), device=run.device))
        if not _raises(raw.backward):
            findings.append(fault("optimizer bypass", "backward() leaves raw gradients in .grad"))
        for parameter in run.gradients.parameters:
            parameter.grad = None
    return findings or [good("optimizer bypass", "direct steps and raw gradients are refused")]


def _raises(action: Callable[[], Any]) -> bool:
    try:
        action()
    except ModelNotPrivate:
        return True
    return False
