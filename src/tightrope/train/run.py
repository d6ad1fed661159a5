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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tightrope.entropy import here
from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.evidence.commitment import new_key
from tightrope.numerics.interval import Interval
from tightrope.process import Process
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
from tightrope.train.data import Group, Records, loader_settings, to_device
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
from tightrope.train.users import loss_of_examples, rows_of_users
from tightrope.validate import check_count, check_delta, check_positive

if TYPE_CHECKING:
    from tightrope.train.folder import RunFolder


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
@dataclass(frozen=True)
class Epoch:
    """The steps of one epoch: so many that each record is drawn once on average."""

    number: int
    _run: PrivateRun
    _length: int

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
        sampler.check_free()
        if isinstance(noise, CorrelatedNoise):
            noise.check_free(steps)
        self.model, self.optimizer, self.data = model, rule, data
        self.sampler, self.clip, self.noise = sampler, clip, noise
        self.expected_batch_size = float(check_positive(expected_batch_size, "expected_batch_size"))
        self.schedules = checked_schedules(schedule, rule)
        self.average = None if average is None else Average(model, rule, average)

        self.views = check_count(views, "views", low=1)  # on the certificate
        self.loss = loss_of_examples(loss, sampler.users, views, augment)
        self.records = _records_of(
            data, collate=collate, lengths=lengths, padding=padding, workers=workers,
            fingerprint=fingerprint, users=sampler.users,
        )  # fmt: skip

        self.ledger = Ledger(sampler, noise, budget, history)
        pair = None if budget is None else budget.pair
        self.delta = float(check_delta(delta)) if delta is not None else pair[1] if pair else None
        if steps is not None or budget is None or (pair is None and budget.dataset is None):
            self.ledger.plan(steps)
        self.ledger.check_strategy()

        self.size = fixed_size(self.expected_batch_size, micro_batch, exact=sampler.of_one_size)
        if not all(isinstance(value, Tensor) for value in public):
            raise InvalidInput("public must list the tensors that the loss takes from outside.")
        self._how: dict[str, Any] = {
            "size": self.size,
            "executor": "strict" if arithmetic == "strict" else executor,
            "wanted": isolation,
            "public": tuple(public),
            "seeds": getattr(noise, "fresh_seed", None),
        }
        self._arithmetic = arithmetic
        self._in_parts = in_parts(model)
        self._version: Any = _version_of_part if self._in_parts else attrgetter("_version")
        if self._in_parts:
            from tightrope.train.sharding import check_sharding

            check_sharding(
                model, executor=executor, isolation=isolation, arithmetic=arithmetic, noise=noise
            )
        self.isolations: list[tuple[int, Isolation]] = []  # the first step of each program
        self._isolate()

        self._start_on_every_rank()
        self._home, self.data_key = here(), new_key()
        self._busy = threading.Lock()
        self._failed = False  # a step ended in an error that may say who was drawn
        self._drawn: deque[_Drawn] = deque()
        self._feed: Iterator[list[Group]] | None = None
        self.sampler_state = sampler.state()
        self._shows_norm, self._shows_private = gradient_norm, sensitive
        self._sensitive: Sensitive | None = None
        self.owner_writes = 0  # how often the owner vouched for weights of his own
        self.shown_before = False  # whether an earlier part of a stored run showed private values
        self.write_ahead: Callable[[int, Sequence[Tensor]], None] | None = None
        sampler.belong_to(self)
        if isinstance(clip, AdaptiveClip):
            clip.belong_to_a_run()
        if isinstance(noise, CorrelatedNoise):
            noise.belong_to_a_run(self.ledger.length.planned)
        self._written: list[tuple[Tensor, Any]] = []  # weights with their versions
        self.mark_weights()

        self.folder: RunFolder | None = None
        self._save_every = check_count(save_every, "save_every", low=1)
        if folder is not None:
            from tightrope.train.folder import RunFolder

            self.folder = RunFolder(folder)
            self.folder.attach(self, keep=keep or {}, replay=replay)

    def _isolate(self) -> None:
        """Make the program, and prove it; again where the model's layers or modes were changed."""
        groups = groups_of(self.model, self.optimizer)
        self.parameters = flat(groups)
        self.device = self.parameters[0].device
        names = {id(p): name for name, p in self.model.named_parameters()}
        self.names = [names[id(p)] for p in self.parameters]
        self.totals = totals_for(
            self._arithmetic, self.clip, self.noise, self.expected_batch_size, self.parameters
        )
        self.arithmetic = self.totals.arithmetic
        examples = self.records.examples(of_many=rank_and_size()[1] > 1)
        self._isolated: Isolated = isolate(self.model, self.loss, examples, groups, **self._how)
        self.isolations.append((self.ledger.taken + 1, self._isolated.isolation))

    def _start_on_every_rank(self) -> None:
        """The same settings and weights on all ranks, and records and draws of their own."""
        self.fingerprint = common_fingerprint(self.records)
        rank, self._ranks = rank_and_size()
        if self._ranks == 1:
            return
        check_splits(self.sampler, self.noise, self.arithmetic.name == "strict")
        self.sampler.for_rank(rank)
        if self._in_parts:
            self.noise.for_rank(rank)  # type: ignore[attr-defined]
        if not self.records.named and self.sampler.users is None:  # names of users were compared
            check_apart(self.records)
        private = not not_private_because(self.sampler, self.noise)
        start_together(self.model, self.settings() | {"private": private})

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
            yield Epoch(done // length, self, min(rest, left))
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
                        raise SystemExit(
                            f"Stopped after step {self.steps:,}. Nothing is stored: the run has no "
                            "folder."
                            if self.folder is None
                            else f"Stored at step {self.steps:,} in {self.folder.path}. Run the "
                            "same program again to go on."
                        )
            finally:
                if self.folder is not None and (self.finished or interrupted()):
                    self.folder.save()
        if self.finished and settled:
            settle(self)

    def fit(self, **options: Any) -> Outcome:
        """Take all steps that are left, with a progress bar; see `fitting.fit` for options."""
        return fit(self, **options)

    def take_step(self) -> Step:
        """Draw a batch, add noise to its clipped sum, and hand the result to the optimizer."""
        self._check_before_step()
        if not self._busy.acquire(blocking=False):
            raise InvalidInput(
                "This run is already taking a step in another thread. One at a time."
            )
        try:
            sensitivity = float(self.clip.sensitivity)
            with self._own_draws():
                try:
                    if self._feed is None:
                        self._feed = self.records.batches(self._draws())
                    groups, drawn = next(self._feed), self._drawn.popleft()
                    total = self._clipped_sum(groups, drawn.size)
                except KeyboardInterrupt:
                    self._forget_draws()
                    raise
                except BaseException:
                    self._failed = True
                    raise
            now = float(self.clip.sensitivity)
            if now != sensitivity:
                self._forget_draws()
                raise InvalidInput(
                    f"The clip changed in the middle of a step, from sensitivity {sensitivity:g} "
                    f"to {now:g}, and its noise can be scaled to one of them only. Change the clip "
                    "between steps."
                )
            return self._release(total, drawn)
        finally:
            self._busy.release()

    def _own_draws(self) -> AbstractContextManager[None]:
        """Of a seeded run, which is not private, the draws are those of the user's generators."""
        draws = self._isolated.draws or not self.records.of_arrays
        return own_draws(self.device) if draws and self.noise.private else nullcontext()

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
        clip, chain = self.clip, self.arithmetic.chain(drawn, self._ranks)
        parts: list[tuple[Any, Any]] = []
        for group in groups:
            executor = self._isolated.executor_for(group.arguments)
            if group.size <= executor.size:
                parts.append((executor, group.arguments))
                continue
            for first in range(0, group.size, executor.size):
                rows = slice(first, first + executor.size)
                part = pytree.tree_map(lambda leaf, rows=rows: leaf[rows], group.arguments)
                parts.append((executor, part))
        for executor, part in self._isolated.in_step(parts, self.device):
            batch, losses = executor.clipped_sum(to_device(part, self.device), clip, chain)
            if self._shows_private:
                seen.append((batch, losses))
            sums = clip.counted(batch) if isinstance(clip, AdaptiveClip) else batch.sums
            total = self.totals.add(total, sums)
        if self._shows_private:
            none = torch.zeros(0, device=self.device)
            losses = torch.cat([none, *(losses for _, losses in seen)])
            self._sensitive = Sensitive(
                len(losses),
                losses,
                torch.cat([none, *(batch.norms for batch, _ in seen)]),
                sum(int((batch.factors < 1).any(0).sum()) for batch, _ in seen) / max(drawn, 1),
                sum(int(batch.nonfinite) for batch, _ in seen),
            )
        if total is None:
            return self.totals.zero(self.parameters, count=isinstance(clip, AdaptiveClip))
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
        norm = self.totals.norm(sums) if self._shows_norm else None
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for parameter, mean in zip(self.parameters, sums, strict=True):
            parameter.grad = as_part(mean.to(parameter.dtype), parameter)
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

    def mark_weights(self) -> None:
        """The weights as they are now are those of the last release."""
        self._written = [(tensor, self._version(tensor)) for tensor in self._weights()]

    def _weights(self) -> list[Tensor]:
        """Parameters and buffers; those of tied layers come more than once."""
        modules = modules_of(self.model)
        kept = (t for m in modules for t in (*m._parameters.values(), *m._buffers.values()))
        return [tensor for tensor in kept if tensor is not None]

    @property
    def weights_touched(self) -> bool:
        """Whether weights or buffers were written to or exchanged since the last step."""
        exchanged = [id(t) for t in self._weights()] != [id(t) for t, _ in self._written]
        return exchanged or self._written_since

    @property
    def _written_since(self) -> bool:
        return any(self._version(tensor) != before for tensor, before in self._written)

    def accept_weights(self) -> None:
        """Go on from weights that you set yourself, from nothing but public or released numbers."""
        self.owner_writes += 1
        self.mark_weights()
        if self.folder is not None:
            self.folder.save()

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InvalidInput(
            "A run cannot be copied: two of them would release different noise on the same "
            "batches. Make a new run, with history=run.record() to count this one."
        )


def _version_of_part(tensor: Tensor) -> tuple[int, int]:
    """Of a parameter, and of the memory that this rank has of it."""
    own = tensor.to_local() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return tensor._version, own._version


def _records_of(data: Any, *, workers: int, collate: Any, users: Any, **how: Any) -> Records:
    options: dict[str, Any] = {"num_workers": workers}
    if isinstance(data, DataLoader):
        loader = loader_settings(data)
        data, collate = loader.dataset, loader.collate if collate is None else collate
        options = options if workers else loader.workers
    return Records(rows_of_users(data, users), collate=collate, workers=options, **how)


@contextmanager
def _gentle_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C ends the loop after the step under way; a second one ends it at once."""
    asked = False

    def on_signal(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("Stopping after this step. Press Ctrl-C again to stop at once.", file=sys.stderr)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
