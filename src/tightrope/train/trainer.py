"""A trainer for those who want no loop of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.run_facts import Measured
from tightrope.numerics.interval import Interval
from tightrope.train.augment import Augment, check_augment, inputs_of, losses_of_views
from tightrope.train.average import Average
from tightrope.train.describe import certificate_of
from tightrope.train.distributed import from_all_ranks
from tightrope.train.feed import Rows, as_rows, to_device
from tightrope.train.independence import EXAMPLES, Recheck, check_independent_losses
from tightrope.train.losses import LossFunction, losses_on, mean_of_views
from tightrope.train.modes import in_mode
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.progress import ProgressBar
from tightrope.train.record import StepReport
from tightrope.train.run_folder import RunFolder
from tightrope.train.users import UserRows, rows_for
from tightrope.validate import check_count, check_delta, check_positive

if TYPE_CHECKING:
    from tightrope.train.feed import Batch, Data

__all__ = ["Trainer", "Evaluation", "Outcome", "Logger", "accuracy"]


# About so many steps are diagnosed for the owner of a run folder.
DIAGNOSED = 200
# Without evaluations, epsilon is logged about so many times.
LOGGED = 50


class Logger(Protocol):
    """Receives public numbers as (name, value, step)."""

    def __call__(self, name: str, value: float, step: int) -> None: ...


@final
@dataclass(frozen=True)
class Evaluation:
    """A measurement on public data: `measure(outputs, *targets)` averaged over `data`.

    measure: one number for each example of a batch, or their mean as a single number.
    """

    data: Any
    measure: Callable[..., Tensor]
    every: int
    name: str = "accuracy"
    batch_size: int = 1024

    def __post_init__(self) -> None:
        check_count(self.every, "every", low=1)
        check_count(self.batch_size, "batch_size", low=1)


@final
@dataclass(frozen=True)
class Outcome:
    """What training came to. epsilon: what may be stated, also if it was interrupted."""

    steps: int
    delta: float
    epsilon: Interval
    stopped_by_budget: bool
    measured: dict[int, float] = field(default_factory=dict)


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0; one number per example."""
    return (outputs.argmax(dim=-1) == labels).float()


@final
class Trainer:
    """Runs a PrivateOptimizer over a dataset of (inputs, *targets) or of dictionaries.

    loss: `loss(model(inputs), *targets)` gives one loss per example, shape (batch,); where the
    dataset gives dictionaries, `loss(model, batch)`.
    collate: makes a batch of a list of items, for data whose items differ in length.
    augment: views of the inputs, `augment(inputs, views)` -> (examples, views, ...), for a run with
    views=K; for example CropAndFlip().
    average: the decay of a running average of the weights (0.999, say), which then is what is
    measured; `averaged()` gives it.
    schedule: a learning-rate schedule of torch over the run's optimizer, stepped at each release.
    capture: run the step as one CUDA graph (PrivateOptimizer.capture): several times faster where
    the model is small for the GPU. compile: the same with forward and backward pass compiled first.
    log: told the public numbers only (epsilon, measurements on the evaluation data).
    folder: where the run is stored every `save_every` steps, and resumed from; at the end its
    certificate.json is written there.
    """

    def __init__(
        self,
        run: PrivateOptimizer,
        loss: LossFunction,
        *,
        delta: float,
        evaluation: Evaluation | None = None,
        micro_batch: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        augment: Augment | None = None,
        average: float | None = None,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
        capture: bool = False,
        compile: bool = False,
        progress: bool = True,
        log: Logger | None = None,
        folder: RunFolder | None = None,
        save_every: int = 500,
    ) -> None:
        if not isinstance(run, PrivateOptimizer):
            raise InvalidInput(
                f"A Trainer runs a private run, as made by noisy_sgd(model, ...); got "
                f"{type(run).__name__}."
            )
        if evaluation is not None and not isinstance(evaluation, Evaluation):
            raise InvalidInput(
                "evaluation must be an Evaluation, for example Evaluation((images, labels), "
                f"accuracy, every=500); got {type(evaluation).__name__}."
            )
        if run.sampler.users is not None and (augment is not None or capture or compile):
            raise InvalidInput(
                "A run that protects users neither augments nor captures its step here: rows of "
                "one user take the place of views, and their number differs. Leave both out."
            )
        self.run, self.loss, self.delta = run, loss, float(check_delta(delta))
        self._folder, self._save_every = folder, check_count(save_every, "save_every", low=1)
        self._evaluation, self._micro_batch = evaluation, micro_batch
        self._progress, self._log = progress, log
        self._measured: dict[int, float] = {}
        self._augment, self._schedule = augment, schedule
        self._average = None if average is None else Average(run.model, run.optimizer, average)
        self._collate, self._recheck = collate, Recheck(self._plain_losses)
        record = run.compile if compile else run.capture
        self._captured = record(self._losses, size=micro_batch) if capture or compile else None

    def fit(self, data: Data, *, steps: int | None = None, epochs: float | None = None) -> Outcome:
        """Train until `steps` steps in all (or `epochs` / rate) are taken, or the budget is spent.

        After a resume the steps of the stored run count.
        """
        run, total = self.run, self._total(steps, epochs)
        rows = rows_for(data, self._collate, run.sampler.users)
        self._check_losses(rows)
        if self._folder is not None:
            extras = {} if self._schedule is None else {"schedule": self._schedule}
            self._folder.attach(run, data, extras=extras)
        measured: dict[int, float] = {}
        remaining = max(total - run.steps, 0)
        self._note_every = max(remaining // DIAGNOSED, 1)
        self._log_every = max(remaining // LOGGED, 1)
        run.ledger.ask(total)
        with ProgressBar(run, remaining, self.delta, self._progress) as bar:
            for batch in run.batches(
                data, steps=remaining, micro_batch=self._micro_batch, collate=self._collate
            ):
                report = self._step(batch)
                if report.released:
                    bar.advance()
                    self._after_step(report, measured, bar)
        self._measured.update(measured)
        certificate = None
        if self._folder is not None:
            self._folder.save()
            certificate = self._folder.certify(self.delta, self._public_measurements())
        run.settle(None if certificate is None else sha256(certificate.read_bytes()).hexdigest())
        epsilon = run.epsilon(self.delta)
        return Outcome(run.steps, self.delta, epsilon, run.steps < total, measured)

    def certificate(self) -> dict[str, Any]:
        """The run's certificate with what was measured on public data."""
        return certificate_of(self.run, self.delta, self._public_measurements())

    def _public_measurements(self) -> list[Measured]:
        name = self._evaluation.name if self._evaluation is not None else ""
        return [Measured(step, name, value) for step, value in self._measured.items()]

    def _step(self, batch: Batch) -> StepReport:
        self._recheck.by_chance(self.run)
        if self._captured is not None:
            return self._captured(batch)
        return (
            self.run.step_empty() if self.run.next_is_empty else self.run.step(self._losses(batch))
        )

    def _losses(self, batch: Batch) -> Tensor:
        model, views = self.run.model, self.run.views
        if isinstance(batch, UserRows):
            return losses_on(model, self.loss, batch)
        if views > 1 or self._augment is not None:
            return losses_of_views(model, self.loss, batch, views, self._augment)
        return losses_on(model, self.loss, batch)

    def _plain_losses(self, batch: Batch) -> Tensor:
        """One for each example, without the draws of an augmentation."""
        if self._augment is not None:
            return losses_on(self.run.model, self.loss, batch)
        return mean_of_views(self._losses(batch))

    def _check_losses(self, rows: Rows) -> None:
        run = self.run
        if run.sharding.gathered or (run.sharding and min(from_all_ranks(rows.length)) < EXAMPLES):
            return  # all ranks would have to run as often; loops are rehearsed as well
        check_independent_losses(run.model, self._plain_losses, rows, run.device)
        if self._augment is not None and rows.length:
            some = to_device(rows.take(_range(0, min(8, rows.length))), run.device)
            check_augment(self._augment, inputs_of(some, run.views), run.views)

    def _total(self, steps: int | None, epochs: float | None) -> int:
        if (steps is None) == (epochs is None):
            raise InvalidInput("Say how long to train by exactly one of steps and epochs.")
        if steps is not None:
            return check_count(steps, "steps")
        # From the public rate, never from the number of records.
        return round(float(check_positive(epochs, "epochs")) / self.run.sampler.sampling.rate)

    def _after_step(self, report: StepReport, measured: dict[int, float], bar: ProgressBar) -> None:
        evaluation, step = self._evaluation, self.run.steps
        if self._schedule is not None:
            self._schedule.step()
        if self._average is not None:
            self._average.update(step)
        if self._folder is not None:
            if step % self._note_every == 0:
                self._folder.note(report)
            if step % self._save_every == 0:
                self._folder.save()
        if evaluation is not None and step % evaluation.every == 0:
            measured[step] = self.evaluate(evaluation)
            bar.measured(evaluation.name, measured[step])
            if self._log is not None:
                self._log(evaluation.name, measured[step], step)
        if step % (self._log_every if evaluation is None else evaluation.every) == 0:
            self._log_epsilon()

    def averaged(self) -> dict[str, Tensor]:
        """The running average of the trained weights, by name."""
        if self._average is None:
            raise InvalidInput("This Trainer keeps no average; make it with average=0.999, say.")
        return self._average.weights()

    def _log_epsilon(self) -> None:
        if self._log is not None:
            self._log("epsilon", self.run.spent(self.delta).upper, self.run.steps)

    def evaluate(self, evaluation: Evaluation) -> float:
        """Mean of the measure over public data, in evaluation mode, of the averaged weights."""
        model, rows = self.run.model, as_rows(evaluation.data)
        shown: Any = model if self._average is None else partial(_with, model, self.averaged())
        total = 0.0
        with in_mode(model, training=False), torch.no_grad():
            for start in range(0, rows.length, evaluation.batch_size):
                stop = min(start + evaluation.batch_size, rows.length)
                batch = to_device(rows.take(_range(start, stop)), self.run.device)
                values = losses_on(shown, evaluation.measure, batch)
                total += _sum_over(values, stop - start)
        return total / rows.length


def _with(model: torch.nn.Module, weights: dict[str, Tensor], *args: Any, **named: Any) -> Any:
    return torch.func.functional_call(model, weights, args, named)


def _sum_over(values: object, count: int) -> float:
    """The sum of a measure over `count` examples, from one number for each or their mean."""
    measured = torch.as_tensor(values, device="cpu")
    if measured.numel() == count:
        return float(measured.sum())
    if measured.ndim == 0:
        return float(measured) * count
    raise InvalidInput(
        f"`measure` gives one number for each example, or their mean; got shape "
        f"{tuple(measured.shape)} for {count} examples. Average what belongs to one example first."
    )


def _range(start: int, stop: int) -> Any:
    return torch.arange(start, stop, device="cpu").numpy()
