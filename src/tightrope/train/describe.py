"""What a run is, read off the objects that run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tightrope.evidence.certificate import certify
from tightrope.evidence.commitment import commit
from tightrope.evidence.run_facts import Measured, Spent
from tightrope.train.distributed import rank_and_size
from tightrope.train.ledger import not_private_because
from tightrope.train.record import RunRecord
from tightrope.validate import check_delta

if TYPE_CHECKING:
    from tightrope.train.accounted import Accounted

__all__ = ["settings_of", "record_of", "certificate_of"]


def settings_of(run: Accounted) -> dict[str, Any]:
    """The settings that privacy rests on, as plain text and numbers."""
    shapes = [list(parameter.shape) for parameter in run.gradients.parameters]
    return {
        "sampling": repr(run.sampler.sampling),
        "adjacency": str(run.sampler.adjacency),
        "clip": repr(run.clip),
        "sensitivity": float(run.clip.sensitivity),
        "sensitivity_charged": run.sensitivity_charged,
        **run.arithmetic.facts(),
        "noise": type(run.noise).__name__,
        "noise_multiplier": run.noise.noise_multiplier,
        "expected_batch_size": run.expected_batch_size,
        "parameters": [list(pair) for pair in zip(run.gradients.names, shapes, strict=True)],
        "ranks": rank_and_size()[1],
        "history": repr(run.ledger.history),
        **({"users": repr(run.sampler.users)} if run.sampler.users else {}),
        **({"views": run.views} if run.views > 1 else {}),  # folders of before say nothing of it
    }


def record_of(run: Accounted) -> RunRecord:
    """Public facts about what has run so far."""
    reasons = _reasons(run)
    return RunRecord(
        process=run.process,
        steps=run.ledger.released,
        private=not reasons,
        not_private_because=reasons,
        noise=run.noise.description,
        sampling=run.sampler.stream.description,
        clip=repr(run.clip),
        sensitivity=float(run.clip.sensitivity),
        sensitivity_charged=run.sensitivity_charged,
        arithmetic=run.arithmetic,
        expected_batch_size=run.expected_batch_size,
        optimizer=type(run.optimizer).__name__,
        parameters=sum(parameter.numel() for parameter in run.gradients.parameters),
        ranks=rank_and_size()[1],
        views=run.views,
        data=run.data.description,
        now=lambda: run.ledger.claim().process,
    )


def certificate_of(
    run: Accounted, delta: float, measured: Iterable[Measured] = ()
) -> dict[str, Any]:
    """The chained certificate of what has been released so far."""
    level, budget = float(check_delta(delta)), run.ledger.budget
    if run.data.changed():
        run.ledger.forfeit(["its data were changed while it was under way"])
    facts = record_of(run).facts(
        data=_commitment(run),
        budget=None if budget is None else budget.pair,
        history=_history(run, level),
        length=run.ledger.claim().length,
        measured=tuple(measured),
    )
    return certify(run.process, level, facts)


def _history(run: Accounted, delta: float) -> tuple[Spent, ...]:
    """Epsilon after a tenth of the steps, two tenths, ..., were their number fixed beforehand."""
    steps = run.ledger.released
    marks = sorted({steps * tenth // 10 for tenth in range(1, 11)} - {0})
    spent = ((step, run.ledger.epsilon(delta, step).upper) for step in marks)
    return tuple(Spent(k, e if math.isfinite(e) else None) for k, e in spent)


def _commitment(run: Accounted) -> str | None:
    """To the data of all ranks."""
    if run.data.fingerprint is None:
        return None
    return commit(run.data.fingerprint, run.data_key)


def _reasons(run: Accounted) -> tuple[str, ...]:
    """Why the run is not private: what was once forfeited, and what would be by the next step."""
    now = not_private_because(run.sampler, run.noise)
    return tuple(dict.fromkeys((*run.ledger.forfeited, *now)))
