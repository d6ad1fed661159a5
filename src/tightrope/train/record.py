"""The record of a run: everything a reader needs to judge its guarantee, and nothing private."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from tightrope.evidence.certificate import certify
from tightrope.evidence.commitment import commit
from tightrope.evidence.run_facts import IsolationFacts, IsolationPeriod, Measured, RunFacts, Spent
from tightrope.process import Process
from tightrope.theorems.stopping_times import covering
from tightrope.train.arithmetic import Arithmetic
from tightrope.train.isolation import Isolation
from tightrope.train.noise import Noise
from tightrope.train.ranks import rank_and_size
from tightrope.train.samplers import AbstractSampler
from tightrope.validate import check_delta

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun


@final
@dataclass(frozen=True)
class RunRecord:
    """Public facts about a run, taken from the objects that ran.

    now: what the run claims at present, where it is in this process; a copy of a record has none.
    """

    process: Process
    steps: int
    private: bool
    not_private_because: tuple[str, ...]
    noise: str
    sampling: str
    clip: str
    sensitivity: float
    sensitivity_charged: float
    arithmetic: Arithmetic
    expected_batch_size: float
    optimizer: str
    parameters: int
    ranks: int
    views: int
    data: str
    isolation: IsolationFacts | None = None
    now: Callable[[], Process] | None = field(default=None, compare=False, repr=False)

    def is_current(self) -> bool:
        """Does the record still cover what its run has released?"""
        return self.now is None or covering(self.now()) == covering(self.process)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"now": None}

    def facts(self, **more: Any) -> RunFacts:
        """The section `run` of this run's certificate; `more` is what the record does not know."""
        same = ("private", "not_private_because", "steps", "clip", "sensitivity", "noise")
        own = ("sensitivity_charged", "expected_batch_size", "optimizer", "parameters")
        return RunFacts(
            kind="training",
            **{name: getattr(self, name) for name in (*same, "sampling", "isolation")},
            settings={
                **self.arithmetic.facts(),
                **{name: getattr(self, name) for name in (*own, "ranks", "views", "data")},
            },
            **more,
        )


def not_private_because(sampler: AbstractSampler, noise: Noise) -> tuple[str, ...]:
    """Why a release with these parts would not be private."""
    reasons = []
    if not noise.private:
        reasons.append("the noise is seeded, so anybody who knows the seed can subtract it")
    if not sampler.stream.private:
        reasons.append("the sampler is seeded, so its batches are not secret")
    if noise.noise_multiplier == 0:
        reasons.append("no noise is added")
    return tuple(reasons)


def settings_of(run: PrivateRun) -> dict[str, Any]:
    """The settings that privacy rests on, as plain text and numbers."""
    shapes = [list(parameter.shape) for parameter in run.parameters]
    return {
        "sampling": repr(run.sampler.sampling),
        "adjacency": str(run.sampler.adjacency),
        "clip": repr(run.clip),
        "sensitivity": float(run.clip.sensitivity),
        "sensitivity_charged": run.sensitivity_charged,
        **run.arithmetic.facts(),
        "noise": type(run.noise).__name__,
        "noise_multiplier": run.noise.noise_multiplier,
        **({"strategy": run.ledger.strategy.digest} if run.ledger.strategy else {}),
        "expected_batch_size": run.expected_batch_size,
        "parameters": [list(pair) for pair in zip(run.names, shapes, strict=True)],
        "ranks": rank_and_size()[1],
        "history": repr(run.ledger.history),
        **({"users": repr(run.sampler.users)} if run.sampler.users else {}),
        **({"views": run.views} if run.views > 1 else {}),
    }


def summary_of(run: PrivateRun) -> str:
    """What was decided, in a few lines of words."""
    noise, pair = run.noise.noise_multiplier, run.ledger.budget and run.ledger.budget.pair
    charged = noise * run.sensitivity_charged / float(run.clip.sensitivity)
    rounding = "" if run.arithmetic.rho is None else f", {charged:.4g} with what rounding may add"
    length, budget = "until you stop", "none"
    if pair is not None:
        length = "until the budget is spent"
        budget = f"epsilon {pair[0]:g} at delta {pair[1]:.3g}, {run.sampler.adjacency} neighbours"
    if (planned := run.ledger.length.planned) is not None:
        length = f"{planned:,} steps, {run.steps_per_epoch:,} in an epoch"
    how = run.isolation.how
    lines = {
        "batches": f"{run.sampler.sampling!r}, {run.expected_batch_size:g} records on average",
        "clipping": f"{run.clip!r} of every example",
        "noise": f"{noise:.4g} times the clip norm{rounding}",
        "length": length,
        "budget": budget,
        "examples": f"kept apart by {'proof of the program' if how == 'proved' else how}",
    }
    return "\n".join(f"{name:<9} {words}" for name, words in lines.items())


def name_of(optimizer: Any) -> str:
    """Of its kind, or of each kind where there are several (see `checks`)."""
    each = getattr(optimizer, "each", None)
    if each is None:
        return type(optimizer).__name__
    return ", ".join(f"{name}: {type(rule).__name__}" for name, rule in each.items())


def record_of(run: PrivateRun) -> RunRecord:
    """Public facts about what has run so far."""
    # What was once forfeited, and what would be by the next step.
    reasons = dict.fromkeys((*run.ledger.forfeited, *not_private_because(run.sampler, run.noise)))
    steps, isolation = run.ledger.released, stored_isolation(run)
    periods = tuple(one for one in isolation.examples if one.from_step <= steps)
    return RunRecord(
        process=run.process,
        steps=steps,
        private=not reasons,
        not_private_because=tuple(reasons),
        noise=run.noise.description,
        sampling=run.sampler.stream.description,
        clip=repr(run.clip),
        sensitivity=float(run.clip.sensitivity),
        sensitivity_charged=run.sensitivity_charged,
        arithmetic=run.arithmetic,
        expected_batch_size=run.expected_batch_size,
        optimizer=name_of(run.optimizer),
        parameters=sum(parameter.numel() for parameter in run.parameters),
        ranks=rank_and_size()[1],
        views=run.views,
        data=run.records.description,
        isolation=replace(isolation, examples=periods),
        now=lambda: run.ledger.claim().process,
    )


def stored_isolation(run: PrivateRun) -> IsolationFacts:
    """How examples were kept apart, with the period that the next step belongs to."""
    periods: list[IsolationPeriod] = []
    for first, each in run.isolations:
        if periods and periods[-1].from_step == first:
            periods.pop()  # no step was taken in it
        period = IsolationPeriod(first, each.how, each.rows, each.digests)
        if not periods or replace(periods[-1], from_step=first) != period:
            periods.append(period)
    return IsolationFacts(tuple(periods), run.shows_private, run.owner_writes)


def resume_isolation(run: PrivateRun, stored: dict[str, Any]) -> None:
    """Of a stored run: what was so before it was stored stays on its certificate."""
    before = IsolationFacts.from_dict(stored)
    now = run.isolations[-1][1]
    run.isolations = [
        *((one.from_step, Isolation(one.how, one.rows, one.programs)) for one in before.examples),
        (run.ledger.taken + 1, now),
    ]
    run.owner_writes += before.weights_set_by_owner
    run.shown_before = before.private_values_shown


def certificate_of(
    run: PrivateRun, delta: float, measured: Iterable[Measured] = ()
) -> dict[str, Any]:
    """The chained certificate of what has been released so far."""
    level, budget = float(check_delta(delta)), run.ledger.budget
    if run.records.changed():
        run.ledger.forfeit(["its data were changed while it was under way"])
    # Epsilon after a tenth of the steps, two tenths, ..., were their number fixed beforehand.
    steps = run.ledger.released
    marks = sorted({steps * tenth // 10 for tenth in range(1, 11)} - {0})
    spent = [(step, run.ledger.epsilon(level, step).upper) for step in marks]
    facts = record_of(run).facts(
        data=None if run.fingerprint is None else commit(run.fingerprint, run.data_key),
        budget=None if budget is None else budget.pair,
        history=tuple(Spent(k, e if math.isfinite(e) else None) for k, e in spent),
        length=run.ledger.claim().length,
        measured=tuple(measured),
    )
    return certify(run.process, level, facts)
