"""Training without a loop of one's own: progress, evaluation on public data, a certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, final

import numpy as np
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
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from tightrope.errors import InvalidInput
from tightrope.evidence.run_facts import Measured
from tightrope.ledger.terms import check_name
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rounded_up
from tightrope.train.data import Group, Records, to_device
from tightrope.train.ranks import from_all_ranks, in_parts
from tightrope.validate import check_count

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun, Step

_LOGGED = 50  # about so many times epsilon is logged where nothing else is
_SECONDS = 2.0  # between two epsilons on the bar
_KEY = "average"

Logger = Callable[[str, float, int], None]  # receives public numbers: name, value, step


@final
@dataclass(frozen=True)
class Evaluation:
    """A measurement on public data: `measure(outputs, *targets)` averaged over `data`.

    data: must be public: what is measured on them is shown and is in no account. Records of the
        run, or of other people who expect privacy, do not belong here.
    measure: one number for each example of a batch, or their mean as a single number.
    data_name: what the certificate calls the data, such as "MNIST test set"; without a name, the
        SHA-256 of their records.
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
    measured: dict[int, float] = {}
    data = "" if evaluation is None else _name_of(run, evaluation)
    left = max(run.ledger.steps_allowed - run.steps, 1)
    every = max(left // _LOGGED, 1) if evaluation is None else evaluation.every
    with _progress_bar(run, level, progress) as show:
        for step in run._steps(None, settled=False):
            public: dict[str, float | None] = {}
            if evaluation is not None and step.number % every == 0:
                public[evaluation.name] = measured[step.number] = evaluate(run, evaluation)
            if log is not None and step.number % every == 0:
                public |= {"epsilon": step.epsilon(level), "learning_rate": step.learning_rate}
                public["noisy_gradient_norm"] = step.gradient_norm
                for name, value in public.items():
                    if value is not None:
                        log(name, value, step.number)
            show(step, evaluation, measured)
    listed = []
    if evaluation is not None and measured:
        listed = [Measured(step, evaluation.name, value, data) for step, value in measured.items()]
    settle(run, level, listed)
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
    model, records = run.model, Records(evaluation.data)
    shown: Any = model
    if run.average is not None:
        weights = run.average.weights()
        shown = lambda *inputs: functional_call(model, weights, inputs)  # noqa: E731
    total = 0.0
    with in_evaluation_mode(model), torch.no_grad(), _whole_weights(model):
        for group in _in_order(records, evaluation.batch_size):
            inputs, *targets = to_device(group.arguments, run.device)
            total += _sum_over(evaluation.measure(shown(inputs), *targets), group.size)
    return total / records.length


def _in_order(records: Records, at_once: int) -> Iterator[Group]:
    for start in range(0, records.length, at_once):
        yield from records.groups(np.arange(start, min(start + at_once, records.length)))


def _name_of(run: PrivateRun, evaluation: Evaluation) -> str:
    """What a certificate calls the data: the owner's name, or the SHA-256 of all their records.

    Refused where they hold private records: what is measured is published without noise.
    """
    public, digests = Records(evaluation.data), list[bytes]()
    shared = run.records.are_of(public)
    if evaluation.data_name is None:
        digests = sorted(_digests(public, evaluation.batch_size))
        if run.records.of_arrays and not shared:
            shared = not {*digests}.isdisjoint(_digests(run.records, evaluation.batch_size))
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
    return f"SHA-256 {sha256(b''.join(digests)).hexdigest()}"


def _digests(records: Records, at_once: int) -> Iterator[bytes]:
    """One for each record, of all its values; equal records have equal ones."""
    for group in _in_order(records, at_once):
        leaves = [leaf.detach().cpu().contiguous() for leaf in tree_leaves(group.arguments)]
        kind = repr([(leaf.dtype, leaf.shape[1:]) for leaf in leaves]).encode()
        raw = [leaf.reshape(group.size, -1).view(torch.uint8).numpy() for leaf in leaves]
        for row in np.concatenate(raw, axis=1):
            yield sha256(kind + row.tobytes()).digest()


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
            facts = f"step {step.number}: {words}, δ {delta:g}"
            if evaluation is not None and measured:
                facts += f" {evaluation.name} {[*measured.values()][-1]:.3f}"
            bar.update(task, facts=facts)
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


@final
class Average:
    """A running mean of the weights. decay: in [0, 1), usually 0.999; less in the first steps."""

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
