"""Training without a loop of one's own: progress, evaluation on public data, a certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.evidence.run_facts import Measured
from tightrope.ledger.terms import check_name
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rounded_up
from tightrope.train.data import Records, digests_of, share_items, to_device
from tightrope.train.ranks import from_all_ranks, in_parts
from tightrope.validate import check_count

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun, Step

__all__ = [
    "Evaluation",
    "Logger",
    "Outcome",
    "accuracy",
    "fit",
    "in_evaluation_mode",
    "settle",
    "Average",
]

_LOGGED = 50  # about so many times epsilon is logged where nothing else is
_SECONDS = 2.0  # between two epsilons on the bar


class Logger(Protocol):
    """Receives public numbers as (name, value, step)."""

    def __call__(self, name: str, value: float, step: int) -> None: ...


@final
@dataclass(frozen=True)
class Evaluation:
    """A measurement on public data: `measure(outputs, *targets)` averaged over `data`.

    measure: one number for each example of a batch, or their mean as a single number.
    data_name: what the certificate calls the data, such as "MNIST test set". Without a name it
        has the SHA-256 of their content, and records that also are private data are refused.
    """

    data: Any
    measure: Callable[..., Tensor]
    every: int
    name: str = "accuracy"
    batch_size: int = 1024
    data_name: str | None = None

    def __post_init__(self) -> None:
        if self.data_name is not None:
            check_name(self.data_name, "data_name")
        check_count(self.every, "every", low=1)
        check_count(self.batch_size, "batch_size", low=1)


@final
@dataclass(frozen=True)
class Outcome:
    """What training came to. epsilon: spent; measured: by step, on public data."""

    steps: int
    delta: float
    epsilon: Interval
    measured: dict[int, float] = field(default_factory=dict)


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """One for each example whose largest output is its label's."""
    return (outputs.argmax(dim=-1) == labels).float()


def fit(
    run: PrivateRun,
    *,
    delta: float | None = None,
    evaluation: Evaluation | None = None,
    progress: bool = True,
    log: Logger | None = None,
) -> Outcome:
    """Take all steps that are left. With a folder, store the run and write its certificate."""
    level = run._delta(delta)
    data = "" if evaluation is None else _public_name(run, evaluation)
    measured: dict[int, float] = {}
    start = run.steps
    with _progress_bar(run, level, progress) as show:
        for step in run._steps(None, settled=False):
            if evaluation is not None and step.number % evaluation.every == 0:
                measured[step.number] = value = evaluate(run, evaluation)
                if log is not None:
                    log(evaluation.name, value, step.number)
            if log is not None:
                _log_step(run, step, level, start, log, evaluation)
            show(step, evaluation, measured)
    name = "" if evaluation is None else evaluation.name
    settle(run, level, [Measured(step, name, value, data) for step, value in measured.items()])
    return Outcome(run.steps, level, run.epsilon(level), measured)


def settle(run: PrivateRun, delta: float | None = None, measured: Sequence[Measured] = ()) -> None:
    """At the end of a training: store the run with its certificate, and free what was reserved."""
    path, level = None, run.delta if delta is None else delta
    if run.folder is not None:
        run.folder.save()
        if level is not None:
            path = run.folder.certify(level, measured)
    run.ledger.settle(None if path is None else sha256(path.read_bytes()).hexdigest())


def evaluate(run: PrivateRun, evaluation: Evaluation) -> float:
    """The mean of a measure over public data, in evaluation mode, with averaged weights if any."""
    if evaluation.data is run.data:
        raise InvalidInput(
            "The data to measure on are the private data of the run, so what is measured would "
            "show private records. Measure on public data."
        )
    model, records = run.model, Records(evaluation.data)
    shown: Any = model
    if run.average is not None:
        shown = partial(_with_weights, model, run.average.weights())
    total = 0.0
    with in_evaluation_mode(model), torch.no_grad(), _whole_weights(model):
        for start in range(0, records.length, evaluation.batch_size):
            stop = min(start + evaluation.batch_size, records.length)
            indices = torch.arange(start, stop, device="cpu").numpy()
            for group in records.groups(indices):
                inputs, *targets = to_device(group.arguments, run.device)
                total += _sum_over(evaluation.measure(shown(inputs), *targets), group.size)
    return total / records.length


def _public_name(run: PrivateRun, evaluation: Evaluation) -> str:
    """What the data of an evaluation are called; refused where they are those of the run.

    What is measured is published without noise, and no epsilon covers it.
    """
    public = Records(evaluation.data)
    shared, digests = share_items(run.records.source, evaluation.data), set[bytes]()
    if evaluation.data_name is None:
        digests = set(digests_of(public, evaluation.batch_size))
        if run.records.of_arrays and not shared:
            shared = any(digest in digests for digest in digests_of(run.records))
    if any(from_all_ranks(shared)):
        raise InvalidInput(
            "The data of this evaluation hold records that are in the private data of the run too. "
            "What is measured on them is published without noise, and no epsilon covers it. "
            "Measure on other people's records. If public records are equal to private ones by "
            "chance only, since they can take few values, name them: Evaluation(..., "
            "data_name='the public data')."
        )
    if evaluation.data_name is not None:
        return evaluation.data_name
    return f"SHA-256 {sha256(b''.join(sorted(digests))).hexdigest()}"


def _log_step(
    run: PrivateRun, step: Step, delta: float, start: int, log: Logger, evaluation: Any
) -> None:
    left = max(run.ledger.steps_allowed - start, 1)
    every = max(left // _LOGGED, 1) if evaluation is None else evaluation.every
    if step.number % every == 0:
        log("epsilon", step.epsilon(delta), step.number)
        log("learning_rate", step.learning_rate, step.number)
        if step.gradient_norm is not None:
            log("noisy_gradient_norm", step.gradient_norm, step.number)


@contextmanager
def _progress_bar(run: PrivateRun, delta: float, shown: bool) -> Iterator[Callable[..., None]]:
    """A bar with steps, epsilon spent and time left; epsilon is that of the step beside it."""
    whole = Column(no_wrap=True)  # in a narrow terminal the bar gives way, not the numbers
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        MofNCompleteColumn(table_column=whole),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(table_column=whole),
        TextColumn("<"),
        TimeRemainingColumn(table_column=whole),
        console=Console(stderr=True),
        disable=not shown,
        expand=True,
    )
    name = "private" if run.record().private else "NOT PRIVATE (see record)"
    total = run.ledger.steps_allowed
    task = bar.add_task(name, total=total, completed=run.steps, facts="")
    due = 0.0

    def show(step: Step, evaluation: Evaluation | None, measured: dict[int, float]) -> None:
        nonlocal due
        if not shown:
            return
        if time.monotonic() >= due or step.number == total:
            epsilon = step.epsilon(delta)
            words = f"ε ≤ {rounded_up(epsilon, 3)}" if math.isfinite(epsilon) else "ε unbounded"
            last = (
                f" {evaluation.name} {[*measured.values()][-1]:.3f}"
                if evaluation and measured
                else ""
            )
            bar.update(task, facts=f"step {step.number}: {words}, δ {delta:g}{last}")
            due = time.monotonic() + _SECONDS
        bar.advance(task)

    with bar:
        yield show


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and each in its own mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _whole_weights(model: nn.Module) -> AbstractContextManager[Any]:
    """Of a model in parts, whole weights where they are used; the ranks evaluate together."""
    if not in_parts(model):
        return nullcontext()
    from tightrope.train.sharding import whole_weights

    return whole_weights()


def _with_weights(model: nn.Module, weights: dict[str, Tensor], *args: Any, **named: Any) -> Any:
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


_KEY = "average"


@final
class Average:
    """decay: from 0 to below 1, usually 0.999; smaller in the first steps."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, decay: float) -> None:
        if not (isinstance(decay, int | float) and 0 <= decay < 1):
            raise InvalidInput(f"average is the decay of a running mean, in [0, 1); got {decay!r}.")
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._optimizer, self._decay = optimizer, float(decay)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """To be called after each release, whose number is `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for _, parameter in self._named:
            state = self._optimizer.state[parameter]
            if _KEY not in state:  # after the first step: optimizers fill an empty state themselves
                state[_KEY] = parameter.detach().clone()
            else:
                state[_KEY].lerp_(parameter, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """By name; the weights themselves before the first step."""
        state = self._optimizer.state
        return {name: state.get(p, {}).get(_KEY, p.detach()) for name, p in self._named}
