"""A private run: it draws the batches, computes the loss, and hands out what was released.

    for step in run:
        ...                     # what `step` holds may be published

Formal guarantee. Step t releases

    (sum over the batch of clipped gradients + N(0, (noise_multiplier * sensitivity)^2)) / constant

with a public constant. Everything after it (momentum, schedules, what the loop does with `step`) is
computed from releases, so it costs nothing. The loop never holds a batch, a loss or a norm.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from tightrope.entropy import here
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.evidence.commitment import new_key
from tightrope.numerics.interval import Interval
from tightrope.process import FixedSizeSampling, FullBatch, Process
from tightrope.train.arithmetic import totals_for
from tightrope.train.checks import (
    as_one_optimizer,
    check_no_modes,
    check_parts,
    check_trains,
    checked_schedules,
    groups_of,
)
from tightrope.train.clip import AdaptiveClip, Clip
from tightrope.train.correlated_noise import CorrelatedNoise
from tightrope.train.data import Group, LoaderSettings, Records, loader_settings, to_device
from tightrope.train.executors.plain import flat
from tightrope.train.executors.strict import own_draws
from tightrope.train.fitting import Average, Outcome, fit, settle
from tightrope.train.isolation import Isolated, Isolation, fixed_size, isolate, modules_of
from tightrope.train.noise import Noise
from tightrope.train.ranks import (
    agree,
    as_part,
    check_apart,
    check_one_copy,
    check_ranks_stayed,
    check_splits,
    common_fingerprint,
    in_parts,
    is_part,
    rank_and_size,
    start_together,
)
from tightrope.train.record import (
    RunRecord,
    certificate_of,
    not_private_because,
    record_of,
    settings_of,
    summary_of,
)
from tightrope.train.samplers import AbstractSampler
from tightrope.train.spending import Budget, Ledger
from tightrope.train.users import UserData, loss_of_users, rows_of_users, with_views
from tightrope.validate import check_count, check_delta, check_positive

if TYPE_CHECKING:
    from tightrope.train.folder import RunFolder

__all__ = ["Epoch", "PrivateRun", "Sensitive", "Step"]

WriteAhead = Callable[[int, Sequence[Tensor]], None]
_EXACT_SIZES = (FixedSizeSampling, FullBatch)  # every batch has the expected number of records


@final
@dataclass(frozen=True)
class Step:
    """What one step released. All of it may be published.

    number: of the step, from 1. learning_rates: one for each group of the optimizer, as used.
    gradient_norm: of the noisy mean gradient, if the run was asked for it.
    """

    number: int
    learning_rates: tuple[float, ...]
    gradient_norm: float | None
    _run: PrivateRun = field(repr=False, compare=False)

    def epsilon(self, delta: float | None = None) -> float:
        """What was spent up to this step, at the run's own delta if none is given."""
        return self._run.epsilon(delta, steps=self.number).upper

    @property
    def learning_rate(self) -> float:
        """Of the first group."""
        return self.learning_rates[0]


@final
class Sensitive(NamedTuple):
    """Facts about the private records of the last step. No epsilon covers publishing them."""

    batch_size: int
    losses: Tensor
    norms: Tensor
    clipped_fraction: float
    nonfinite: int


@final
class Epoch:
    """The steps of one epoch: so many that each record is drawn once on average."""

    def __init__(self, run: PrivateRun, number: int, length: int) -> None:
        self.number, self._run, self._length = number, run, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Step]:
        return self._run._steps(self._length)


class _Drawn(NamedTuple):
    """A draw that was handed to the data set: its size, and the sampler afterwards."""

    size: int
    place: int | None
    state: dict[str, Any]


@final
class PrivateRun:
    """A model, an optimizer, data and a loss, and the parts that make their steps private.

    optimizer: of torch.optim; a dictionary of them where there are several losses (see `several`).
    loss: `loss(model, *arguments)` gives one loss for each example, shape (B,), where the arguments
        are those of a batch of the data: `loss(model, x, y)` for pairs (x, y). It is exported once
        to a graph of operators, and that graph is what runs. With several optimizers it gives a
        dictionary of such losses with the same names.
    sampler, clip, noise: what is accounted is read off these very objects.
    expected_batch_size: the public constant that noisy sums are divided by.
    steps: the length of the run. Left out, the run goes on until its budget is spent, or until you
        stop; its claim then holds at any stopping time.
    budget, history: what may be spent, and what was already run on the same data.
    folder: where the run is stored every `save_every` steps. The same call with the same folder
        goes on where the stored run stopped.
    schedule: a learning-rate schedule, or several of them in a tuple; stepped after each step and
        stored with the run.
    keep: objects with state_dict and load_state_dict that are stored with the run.
    lengths, padding, collate, workers, fingerprint: see `data.Records`.
    views, augment: the loss of an example is the mean over so many views of its first argument,
        made by `augment`, such as CropAndFlip(), or given as (B, views, ...).
    micro_batch: at most so many records are computed at a time; the result is the same.
    executor: "plain", "compiled" or "cuda graph".
    isolation: "proved" (a program that cannot be proved may run under vmap, where examples cannot
        meet either), or "one at a time" for a loss that is no graph: your Python then runs on one
        example after another, and you vouch that it keeps nothing from one call to the next.
    arithmetic: "bounded", "strict" or "uncovered" (docs/arithmetic.md).
    sensitive: whether `run.sensitive` shows losses and norms of the last batch. The certificate
        says so, since a loop that looks at them can carry them anywhere.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        data: Any,
        loss: Callable[..., Any],
        *,
        sampler: AbstractSampler,
        clip: Clip,
        noise: Noise,
        expected_batch_size: float,
        steps: int | None = None,
        delta: float | None = None,
        budget: Budget | None = None,
        history: Process | RunRecord | None = None,
        folder: str | Path | None = None,
        save_every: int = 500,
        schedule: Any = None,
        average: float | None = None,
        keep: Mapping[str, Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        lengths: Sequence[int] = (),
        padding: Any = 0,
        workers: int = 0,
        fingerprint: str | None = None,
        micro_batch: int | None = None,
        executor: str = "plain",
        isolation: str = "proved",
        arithmetic: str = "bounded",
        public: Sequence[Tensor] = (),
        views: int = 1,
        augment: Callable[[Tensor, int], Tensor] | None = None,
        gradient_norm: bool = False,
        sensitive: bool = False,
        replay: bool = True,
    ) -> None:
        check_no_modes()
        rule = as_one_optimizer(optimizer)
        check_parts(model, rule, sampler, clip, noise, budget)
        check_one_copy(model)
        self._in_parts = in_parts(model)
        self._version: Any = _version_of_part if self._in_parts else attrgetter("_version")
        if self._in_parts:
            from tightrope.train.sharding import check_sharding

            check_sharding(
                model, executor=executor, isolation=isolation, arithmetic=arithmetic, noise=noise
            )
        sampler.check_free()
        if isinstance(noise, CorrelatedNoise):
            noise.check_free(steps)
        self.views = check_count(views, "views", low=1)  # on the certificate
        if views > 1 or augment is not None:
            loss = with_views(loss, views, augment)
        if sampler.users is not None and sampler.users.together:
            loss = loss_of_users(loss)
        self.model, self.optimizer, self.loss, self.data = model, rule, loss, data
        self.sampler, self.clip, self.noise = sampler, clip, noise
        self.expected_batch_size = float(check_positive(expected_batch_size, "expected_batch_size"))
        self.schedules = checked_schedules(schedule, rule)
        self._shows_norm, self._shows_private = gradient_norm, sensitive
        self._sensitive: Sensitive | None = None
        self.average = None if average is None else Average(model, rule, average)
        self.records = _records_of(
            data, collate=collate, lengths=lengths, padding=padding, workers=workers,
            fingerprint=fingerprint, users=sampler.users,
        )  # fmt: skip
        self._take_parameters()
        self.device = self.parameters[0].device
        self._take_totals(arithmetic)
        self.arithmetic = self.totals.arithmetic
        self.size = fixed_size(
            self.expected_batch_size, micro_batch, exact=isinstance(sampler.sampling, _EXACT_SIZES)
        )
        self._isolation_wanted = isolation
        self._executor_wanted = "strict" if arithmetic == "strict" else executor
        self._public = tuple(public)
        if not all(isinstance(value, Tensor) for value in self._public):
            raise InvalidInput("public must list the tensors that the loss takes from outside.")
        self.isolations: list[tuple[int, Isolation]] = []  # the first step of each program
        self.ledger = Ledger(sampler, noise, budget, history)
        if steps is not None:
            self.ledger.plan(steps)
        elif budget is None or (budget.pair is None and budget.dataset is None):
            self.ledger.plan(None)
        self.ledger.check_strategy()
        pair = None if budget is None else budget.pair
        self.delta = float(check_delta(delta)) if delta is not None else pair[1] if pair else None
        self.data_key, self._home = new_key(), here()
        self._rank, self._ranks = rank_and_size()
        self._isolate()
        self.fingerprint = common_fingerprint(self.records)
        if self._ranks > 1:
            check_splits(sampler, noise, arithmetic == "strict")
            sampler.for_rank(self._rank)
            if self._in_parts:
                noise.for_rank(self._rank)  # type: ignore[attr-defined]
            if not self.records.named and sampler.users is None:  # names of users were compared
                check_apart(self.records)
            private = not not_private_because(sampler, noise)
            start_together(model, self.settings() | {"private": private})
        self.sampler_state = sampler.state()
        self._drawn: deque[_Drawn] = deque()
        self._feed: Iterator[list[Group]] | None = None
        self._busy = threading.Lock()
        self._failed = False  # a step ended in an error that may say who was drawn
        self.owner_writes = 0  # how often the owner vouched for weights of his own
        self.shown_before = False  # whether an earlier part of a stored run showed private values
        self.write_ahead: WriteAhead | None = None
        sampler.belong_to(self)
        if isinstance(clip, AdaptiveClip):
            clip.belong_to_a_run()
        if isinstance(noise, CorrelatedNoise):
            noise.belong_to_a_run(self.ledger.length.planned)
        self._written: list[tuple[Tensor, Any]] = []  # weights with their versions
        self._mark_weights()
        self.folder: RunFolder | None = None
        self._save_every = check_count(save_every, "save_every", low=1)
        if folder is not None:
            from tightrope.train.folder import RunFolder

            self.folder = RunFolder(folder)
            self.folder.attach(self, keep=keep or {}, replay=replay)

    # ---- the loop ----------------------------------------------------------------------------
    def __iter__(self) -> Iterator[Step]:
        """The steps that are left, each taken when it is asked for."""
        return self._steps(None)

    def epochs(self) -> Iterator[Epoch]:
        """The epochs that are left; each is an iterator over its steps."""
        length = self.steps_per_epoch
        while not self.finished:
            done = self.steps
            rest = length - done % length
            left = self.ledger.steps_allowed - done
            yield Epoch(self, done // length, min(rest, left))
            if self.steps == done:
                return  # the epoch was not iterated over, so the next one would be the same

    def _steps(self, most: int | None, *, settled: bool = True) -> Iterator[Step]:
        """settled: whether the end of the run is written down here, with its certificate."""
        taken = 0
        with _gentle_interrupt() as interrupted:
            try:
                while not self.finished and (most is None or taken < most):
                    yield self.take_step()
                    taken += 1
                    if interrupted():
                        raise SystemExit(self._stored_message())
            finally:
                if self.folder is not None and (self.finished or interrupted()):
                    self.folder.save()
        if self.finished and settled:
            settle(self)

    def _stored_message(self) -> str:
        if self.folder is None:
            return f"Stopped after step {self.steps:,}. Nothing is stored: the run has no folder."
        self.folder.save()
        return (
            f"Stored at step {self.steps:,} in {self.folder.path}. Run the same program again to "
            "go on."
        )

    def fit(self, **options: Any) -> Outcome:
        """Take all steps that are left, with a progress bar; see `fitting.fit` for options."""
        return fit(self, **options)

    def take_step(self) -> Step:
        """Draw a batch, add noise to its clipped sum, and hand the result to the optimizer."""
        self._check_before_step()
        if not self._busy.acquire(blocking=False):
            raise InvalidInput("This run takes a step already, in another thread. One at a time.")
        try:
            with self._own_draws():
                groups, drawn = self._next_batch()
                sensitivity = float(self.clip.sensitivity)
                try:
                    total = self._clipped_sum(groups, drawn.size)
                except KeyboardInterrupt:
                    self._forget_draws()
                    raise
                except BaseException:
                    self._failed = True
                    raise
            if float(self.clip.sensitivity) != sensitivity:
                self._forget_draws()
                raise InvalidInput(
                    f"The clip changed in the middle of a step, from sensitivity {sensitivity:g} "
                    f"to {float(self.clip.sensitivity):g}, and its noise can be scaled to one of "
                    "them only. Change the clip between steps."
                )
            return self._release(total, drawn)
        finally:
            self._busy.release()

    def _own_draws(self) -> Any:
        """Of a seeded run, which is not private, the draws are those of the user's generators."""
        draws = self._isolated.draws or not self.records.of_arrays
        return own_draws(self.device) if draws and self.noise.private else nullcontext()

    def _next_batch(self) -> tuple[list[Group], _Drawn]:
        if self._feed is None:
            self._feed = self.records.batches(self._draws())
        try:
            groups = next(self._feed)
        except KeyboardInterrupt:
            self._forget_draws()
            raise
        except BaseException:
            self._failed = True
            raise
        return groups, self._drawn.popleft()

    def _draws(self) -> Iterator[Any]:
        """Drawn indices; worker processes ask for some ahead of the step that uses them."""
        while self.steps + len(self._drawn) < self.ledger.steps_allowed:
            place = self.sampler.place
            indices = self.sampler.draw(self.records.length)
            self._drawn.append(_Drawn(len(indices), place, self.sampler.state()))
            yield indices

    def _forget_draws(self) -> None:
        """What was drawn and not released is drawn anew: no place of an epoch is skipped."""
        self._feed = None
        self._drawn.clear()
        self.sampler.restore(self.sampler_state)

    def _clipped_sum(self, groups: list[Group], drawn: int) -> list[Tensor]:
        total: list[Tensor] | None = None
        seen: list[tuple[Any, Tensor]] = []
        chain = self.arithmetic.chain(drawn, self._ranks)
        parts = [
            (executor, part)
            for group in groups
            for executor in [self._isolated.executor_for(group.arguments)]
            for part in _parts(group, executor.size)
        ]
        for executor, part in self._isolated.in_step(parts, self.device):
            batch, losses = executor.clipped_sum(to_device(part, self.device), self.clip, chain)
            if self._shows_private:
                seen.append((batch, losses))
            adaptive = isinstance(self.clip, AdaptiveClip)
            sums = self.clip.counted(batch) if adaptive else batch.sums  # type: ignore[attr-defined]
            total = self.totals.add(total, sums)
        if total is None:
            adaptive = isinstance(self.clip, AdaptiveClip)
            total = self.totals.zero(self.parameters, count=adaptive)
        if self._shows_private:
            self._sensitive = _sensitive_of(seen, self.device)
        return total

    def _release(self, total: list[Tensor], drawn: _Drawn) -> Step:
        if drawn.place not in (None, self.steps):
            self._forget_draws()
            raise ModelNotPrivate(
                f"This is batch {drawn.place} of the sampler, and {self.steps} were released "
                "before it: batches of an epoch were drawn elsewhere, so records could join twice "
                "in what counts as one epoch. Leave the sampler to the run; it draws again now."
            )
        sensitivity = float(self.clip.sensitivity)
        facts = (self.steps, sensitivity, self.expected_batch_size)
        self.ledger.forfeit(agree(facts, self.ledger.forfeited, self.device))
        self.ledger.forfeit(not_private_because(self.sampler, self.noise))
        number = self.steps + 1
        if isinstance(self.noise, CorrelatedNoise):
            self.noise.go_to(number)
        self.sampler_state = drawn.state  # spent, even if it cannot be written down
        self.ledger.count(number)  # before there is anything to see
        with torch.no_grad():
            sums = self.totals.noisy(total, self.noise, sensitivity, drawn.size)
            if self.write_ahead is not None:
                self.write_ahead(number, sums)
            if isinstance(self.clip, AdaptiveClip):
                self.clip.follow(float(sums.pop()), self.expected_batch_size)
            norm = self._apply(sums)
            self._isolated.update_buffers()
        rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        for schedule in self.schedules:
            schedule.step()
        if self.average is not None:
            self.average.update(number)
        self._written = [(tensor, self._version(tensor)) for tensor, _ in self._written]
        if self.folder is not None and number % self._save_every == 0:
            self.folder.save()
        return Step(number, rates, norm, self)

    def _apply(self, sums: list[Tensor]) -> float | None:
        torch._foreach_div_(sums, self.expected_batch_size)
        norm = None
        if self._shows_norm:
            norm = self.totals.norm(sums)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameter, mean in zip(self.parameters, sums, strict=True):
            mean = mean.to(parameter.dtype)
            parameter.grad = as_part(mean, parameter)
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return norm

    # ---- what must be so before a step -------------------------------------------------------
    def _check_before_step(self) -> None:
        if self._home != here():
            raise InvalidInput(
                "This is a forked copy of the process that made the run; its steps would not be "
                "counted there. Give each process a run of its own."
            )
        if self._failed:
            raise ModelNotPrivate(
                "A step of this run ended in an error while it read or computed its records. Which "
                "batches do so tells who is in them, so the run takes no further step. Mend what "
                "the error named, and run the program again; a run with a folder goes on from what "
                "it stored."
            )
        check_no_modes()
        check_ranks_stayed(self._ranks)
        own = self.sampler.belongs_to(self)
        if not own or not self.ledger.accounts_for(self.sampler, self.noise):
            raise ModelNotPrivate(
                "The sampler of this run was exchanged, or its noise for one with other "
                "parameters, which is not what is accounted. Start a new run with "
                "history=run.record() instead."
            )
        self.ledger.check_allowance()
        self.records.check_unwritten()
        check_trains(self.model)
        changed = self._isolated.changed()
        # Where the model has the same tensors as before, only writes to them are left to look for.
        if self.weights_touched if changed else self._written_since:
            raise ModelNotPrivate(
                "The weights were written to between two steps, and what was written is not "
                "counted. If it was made from public data or from released values only (an average "
                "of weights, say), call run.accept_weights(); the certificate mentions it."
            )
        if changed:
            self._isolate()
            if self.folder is not None:
                self.folder.save()  # a crash must not lose how the next steps kept examples apart

    def _isolate(self) -> None:
        """Make the program, and prove it; again where the model's layers or modes were changed."""
        self._take_parameters()
        self._take_totals(self.arithmetic.name)
        self._isolated: Isolated = isolate(
            self.model, self.loss, self.records.examples(of_many=self._ranks > 1),
            self._groups, size=self.size,
            executor=self._executor_wanted, wanted=self._isolation_wanted, public=self._public,
            seeds=getattr(self.noise, "fresh_seed", None),
        )  # fmt: skip
        self.isolations.append((self.ledger.taken + 1, self._isolated.isolation))

    def _take_parameters(self) -> None:
        self._groups = groups_of(self.model, self.optimizer)
        self.parameters = flat(self._groups)
        self.names = _names_of(self.model, self.parameters)

    def _take_totals(self, arithmetic: object) -> None:
        self.totals = totals_for(
            arithmetic, self.clip, self.noise, self.expected_batch_size, self.parameters
        )

    def _mark_weights(self) -> None:
        self._written = [(tensor, self._version(tensor)) for tensor in self._weights()]

    def _weights(self) -> list[Tensor]:
        """Parameters and buffers; those of tied layers come more than once."""
        modules = modules_of(self.model)
        kept = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
        return [tensor for tensor in kept if tensor is not None]

    @property
    def weights_touched(self) -> bool:
        """Whether weights or buffers were written to or exchanged since the last step."""
        now = self._weights()
        exchanged = len(now) != len(self._written) or any(
            tensor is not before for tensor, (before, _) in zip(now, self._written, strict=True)
        )
        return exchanged or self._written_since

    @property
    def _written_since(self) -> bool:
        version = self._version
        return any(version(tensor) != before for tensor, before in self._written)

    def accept_weights(self) -> None:
        """Go on from weights that you set yourself, from nothing but public or released numbers."""
        self.owner_writes += 1
        self._mark_weights()
        if self.folder is not None:
            self.folder.save()

    def accept_stored_weights(self) -> None:
        """The weights that a folder has just put back are those of the last release."""
        self._mark_weights()

    # ---- what was released -------------------------------------------------------------------
    @property
    def steps(self) -> int:
        """Steps released so far, those of a stored run included."""
        return self.ledger.taken

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which each record is drawn once on average."""
        return max(1, round(1 / self.sampler.sampling.rate))

    @property
    def finished(self) -> bool:
        """Whether one more step would exceed the plan or the budget."""
        return self.ledger.exhausted

    @property
    def budget(self) -> Budget | None:
        """What the run may spend in all."""
        return self.ledger.budget

    @property
    def isolation(self) -> Isolation:
        """How the examples of a batch are kept apart: proved, by vmap, or one at a time."""
        return self._isolated.isolation

    @property
    def program(self) -> Any:
        """The program that was proved and runs; `run.program.save("program.pt2")` writes it."""
        return self._isolated.program

    def epsilon(self, delta: float | None = None, *, steps: int | None = None) -> Interval:
        """Certified epsilon spent so far, or after `steps` steps, at the run's delta or another.

        State it if the run ended as planned. A run that you stop because of what you saw states
        `claim(delta)`, which holds for every stopping time.
        """
        return self.ledger.epsilon(self._delta(delta), steps)

    def claim(self, delta: float | None = None) -> Interval:
        """Certified epsilon that may be stated whenever the run is stopped: that of its plan."""
        return self.ledger.claimed_epsilon(self._delta(delta))

    @property
    def process(self) -> Process:
        """What is claimed, built from the objects that ran."""
        return self.ledger.claim().process

    def _delta(self, delta: float | None) -> float:
        if delta is not None:
            return float(check_delta(delta))
        if self.delta is None:
            raise InvalidInput("This run has no budget, so say at which delta: run.epsilon(1e-5).")
        return self.delta

    @property
    def sensitive(self) -> Sensitive:
        """Losses and norms of the last batch, in the order of its records."""
        if not self._shows_private:
            raise InvalidInput(
                "Losses and norms of examples are private, and no epsilon covers them. To see them "
                "all the same, make the run with sensitive=True; the certificate then says so."
            )
        if self._sensitive is None:
            raise InvalidInput("No step was taken yet.")
        return self._sensitive

    @property
    def shows_private(self) -> bool:
        """Whether the loop can see facts about private records, or could before it was resumed."""
        return self._shows_private or self.shown_before

    # ---- what is said about it ---------------------------------------------------------------
    @property
    def sensitivity_charged(self) -> float:
        """How far one record moves the sums, rounding included: what the noise is scaled by."""
        return self.arithmetic.charged(float(self.clip.sensitivity))

    def settings(self) -> dict[str, Any]:
        """The settings that privacy rests on, as plain text and numbers."""
        return settings_of(self)

    def record(self) -> RunRecord:
        """Public facts about the run so far."""
        return record_of(self)

    def certificate(self, delta: float | None = None) -> dict[str, Any]:
        """The certificate of everything released so far; `evidence.certificate.write` writes it."""
        return certificate_of(self, self._delta(delta))

    def close(self) -> None:
        """Let go of the folder and of what was reserved. The record stays readable."""
        self.ledger.settle()
        if self.folder is not None:
            self.folder.close()

    def __str__(self) -> str:
        return summary_of(self)

    def __deepcopy__(self, memo: Any) -> Any:
        raise _not_copied()

    def __copy__(self) -> Any:
        raise _not_copied()

    def __reduce__(self) -> Any:
        raise _not_copied()


def _not_copied() -> InvalidInput:
    return InvalidInput(
        "A run cannot be copied: two of them would release different noise on the same batches. "
        "Make a new run, with history=run.record() to count this one."
    )


def _version_of_part(tensor: Tensor) -> tuple[int, int]:
    """Of a parameter, and of the memory that this rank has of it."""
    own = tensor.to_local() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return tensor._version, own._version


def _names_of(model: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    names = {id(p): name for name, p in model.named_parameters()}
    return [names[id(p)] for p in parameters]


def _records_of(data: Any, *, workers: int, collate: Any, users: Any, **how: Any) -> Records:
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"num_workers": workers}
    if isinstance(data, DataLoader):
        loader: LoaderSettings = loader_settings(data)
        data, collate = loader.dataset, loader.collate if collate is None else collate
        options = options if workers else loader.workers
    if users is not None:
        data = rows_of_users(data, users)
    elif isinstance(data, UserData):
        raise InvalidInput(
            "The data are keyed by user, and the run protects single records. State in the sampler "
            "what it draws: PoissonSampler(rate, users=Users(most=64))."
        )
    return Records(data, collate=collate, workers=options, **how)


def _parts(group: Group, size: int) -> Iterator[Any]:
    """The arguments of a group, at most `size` records at a time."""
    if group.size <= size:
        yield group.arguments
        return
    for start in range(0, group.size, size):
        yield pytree.tree_map(lambda leaf: leaf[start : start + size], group.arguments)  # noqa: B023


def _sensitive_of(seen: list[tuple[Any, Tensor]], device: torch.device) -> Sensitive:
    if not seen:
        none = torch.zeros(0, device=device)
        return Sensitive(0, none, none, 0.0, 0)
    losses = torch.cat([losses for _, losses in seen])
    norms = torch.cat([batch.norms for batch, _ in seen])
    clipped = sum(float((batch.factors < 1).any(0).sum()) for batch, _ in seen)
    bad = sum(int(batch.nonfinite) for batch, _ in seen)
    return Sensitive(len(losses), losses, norms, clipped / max(len(losses), 1), bad)


@contextmanager
def _gentle_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C ends the loop after the step under way; a second one ends it at once."""
    asked = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.getsignal(signal.SIGINT)

    def on_signal(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("Stopping after this step. Press Ctrl-C again to stop at once.", file=sys.stderr)

    if before is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
