"""check_model() before training, check_run() on the live objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.adaptive_clip import AdaptiveClip
from tightrope.train.distributed import rank_and_size
from tightrope.train.doctor.columns import Columns
from tightrope.train.doctor.held_data import check_held_data
from tightrope.train.doctor.loss_forms import loss_on_batches
from tightrope.train.doctor.mixing_checks import check_memory, check_mixing
from tightrope.train.doctor.model_checks import (
    check_clipping_rate,
    check_influence,
    check_parameters,
)
from tightrope.train.doctor.noise_checks import check_noise
from tightrope.train.doctor.outcome_checks import check_outcomes
from tightrope.train.doctor.rehearsal import Observed, rehearse, restored
from tightrope.train.doctor.release_checks import check_release
from tightrope.train.doctor.sampler_checks import check_rehearsed, check_sampler, draw_batches
from tightrope.train.doctor.subject import Subject
from tightrope.train.doctor.verdict import Diagnosis, Finding, fault, good
from tightrope.train.feed import Rows
from tightrope.train.gradients import Gradients
from tightrope.train.held import as_it_was
from tightrope.train.independence import ROUNDING, mixing_of_losses
from tightrope.train.modes import in_mode
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.protected import Users
from tightrope.train.users import rows_for
from tightrope.validate import check_count, check_probability

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.feed import Data
    from tightrope.train.gradients.batch import Engine

__all__ = ["check_model", "check_run"]

# Where no sampler says how large batches become.
SOME = 64


def check_model(
    model: torch.nn.Module,
    loss: Callable[..., Tensor],
    data: Data,
    *,
    clip: Clip,
    gradients: Engine | None = None,
    micro_batch: int | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    views: int = 1,
) -> Diagnosis:
    """Can this model be trained privately with this loss? Looks at some examples of `data`.

    loss: one number per example, as `loss(model(x), y)`, `loss(x, y)` or `loss(model, x, y)`;
    `loss(model, batch)` where the dataset gives dictionaries.
    micro_batch, collate: as for `run.batches`. views: rows of the model for each example; the loss
    then gives (examples, views), of views that do not change from one call to the next.
    """
    rows, reach = _rows(data, collate), micro_batch or SOME
    try:
        engine = Gradients(model, method="auto", views=views) if gradients is None else gradients
    except ModelNotPrivate as refusal:
        return Diagnosis((fault("model", str(refusal)),))
    try:
        with in_mode(model, training=True), as_it_was(model):
            losses_of = loss_on_batches(model, loss, rows, engine, views)
            draw = np.random.default_rng()
            subject = Subject(model, engine, clip, losses_of, rows, reach, draw)
            findings = [
                *check_held_data(data, rows, model, loss),
                *_each(_about_examples(subject)),
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
    data: Data,
    *,
    steps: int = 48,
    micro_batch: int | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    false_alarm: float = 1e-6,
) -> Diagnosis:
    """Examine a live run by rehearsing `steps` steps, which are undone and cost no privacy.

    loss: as for check_model. micro_batch, collate: as for `run.batches`.
    false_alarm: the chance that this examination accuses a sound run, over all its statistical
    tests (noise and sampler) together.
    """
    _check_examinable(run)
    rows, steps = _rows(data, collate, run.sampler.users), check_count(steps, "steps", low=2)
    level = float(check_probability(false_alarm, "false_alarm"))
    try:
        findings = _examine(run, loss, data, rows, steps, micro_batch, level)
    except ModelNotPrivate as refusal:
        findings = [fault("model", str(refusal))]
    return Diagnosis(tuple(findings), level)


def _check_examinable(run: PrivateOptimizer) -> None:
    if not isinstance(run, PrivateOptimizer):
        raise InvalidInput(
            f"check_run examines a private run, as made by noisy_sgd(model, ...); got "
            f"{type(run).__name__}. For a model alone there is check_model."
        )
    if rank_and_size()[1] > 1:
        raise InvalidInput("The doctor examines one process; start the run without torchrun.")
    if run.arithmetic.name == "strict":
        raise InvalidInput(
            "The doctor compares sums of batches with and without an example, and a strict run "
            "computes no batches. Examine the same model, loss, sampler and noise in a run with "
            'arithmetic="bounded".'
        )
    if isinstance(run.clip, AdaptiveClip):
        raise InvalidInput(
            "The doctor compares steps with one clip norm, and AdaptiveClip changes it at every "
            f"step. Examine the same parts with clip=FlatClip({run.clip.clip_norm:g})."
        )
    if run.pending:
        raise InvalidInput("A batch is half done; call the doctor between steps.")


def _rows(
    data: Data, collate: Callable[[list[Any]], Any] | None, users: Users | None = None
) -> Rows:
    rows = rows_for(data, collate, users)
    if rows.length == 0:
        raise InvalidInput("The dataset is empty; the doctor needs examples to look at.")
    return rows


def _examine(
    run: PrivateOptimizer,
    loss: Callable[..., Tensor],
    data: Data,
    rows: Rows,
    steps: int,
    micro_batch: int | None,
    false_alarm: float,
) -> list[Finding]:
    bypass, columns = _bypass(run), Columns(run.gradients.parameters)
    with restored(run):
        losses_of = loss_on_batches(run.model, loss, rows, run.gradients, run.views)
        batches = draw_batches(run, rows.length)
    reach, draw = micro_batch or max(len(batch) for batch in batches), np.random.default_rng()
    subject = Subject(run.model, run.gradients, run.clip, losses_of, rows, reach, draw)
    rehearsal = partial(
        rehearse, run, losses_of, rows, columns, steps=steps, micro_batch=micro_batch
    )
    with restored(run), run.guard.opened():
        about_examples = _each(_about_examples(subject))
    return [
        _seeds(run),
        *about_examples,
        *_each([lambda: check_outcomes(run, subject)]),
        *check_held_data(data, rows, run.model, loss, run.optimizer),
        *_each([lambda: _about_steps(run, rehearsal(), columns, rows.length, false_alarm / 2)]),
        *check_sampler(run, batches, rows.length, false_alarm / 4),
        *bypass,
    ]


Check = Callable[[], list[Finding]]


def _each(checks: list[Check]) -> list[Finding]:
    """A refusal of the run or its engine is one check's finding and does not end the others."""
    findings = []
    for check in checks:
        try:
            findings += check()
        except ModelNotPrivate as refusal:
            findings.append(fault("model", str(refusal)))
    return findings


def _about_examples(subject: Subject) -> list[Check]:
    return [
        lambda: [_losses_apart(subject)],
        lambda: check_influence(subject),
        lambda: check_mixing(subject),
        lambda: check_memory(subject),
    ]


def _about_steps(
    run: PrivateOptimizer, seen: list[Observed], columns: Columns, population: int, rate: float
) -> list[Finding]:
    with restored(run):
        noise = check_noise(run, seen, columns, rate)
    drawn = [step.drawn for step in seen if step.drawn is not None]
    return [
        *noise,
        *check_rehearsed(run, drawn, population, rate / 2),
        *check_release(run, seen, population),
        *check_parameters(run.model, run.gradients, seen),
        *check_clipping_rate(seen),
    ]


def _seeds(run: PrivateOptimizer) -> Finding:
    record = run.record()
    if record.private:
        return good("randomness", f"{record.noise}; {record.sampling}")
    return fault("randomness", "not private: " + "; ".join(record.not_private_because))


def _losses_apart(subject: Subject) -> Finding:
    mixing = mixing_of_losses(subject.model, subject.losses_of, subject.rows, subject.device)
    told = f"leaving the others out changes an example's loss by {mixing:.1e} of its size"
    return fault("losses mix examples", told) if mixing > ROUNDING else good("losses", told)


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
