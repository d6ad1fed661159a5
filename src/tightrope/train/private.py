"""From a model, an optimizer, data and a loss to a private run, with a loop or without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn
from torch.utils.data import DataLoader

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip, FlatClip
from tightrope.train.correlated_noise import CorrelatedNoise
from tightrope.train.data import loader_settings
from tightrope.train.fitting import Evaluation, Logger, Outcome, evaluate, fit
from tightrope.train.noise import DiscreteGaussianNoise, GaussianNoise, Noise
from tightrope.train.run import PrivateRun
from tightrope.train.samplers import AbstractSampler, PoissonSampler
from tightrope.train.spending import Budget, least_noise
from tightrope.validate import (
    check_count,
    check_positive,
    default_delta,
    warn_if_it_promises_nothing,
)


def private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    loss: Callable[..., Any],
    *,
    records: int | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    clip_norm: float | None = None,
    sampler: AbstractSampler | None = None,
    clip: Clip | None = None,
    noise: Noise | None = None,
    expected_batch_size: float | None = None,
    budget: Budget | None = None,
    arithmetic: str = "bounded",
    **options: Any,
) -> PrivateRun:
    """Make training private: Poisson batches, clipped gradients, the least noise for a budget.

    data: a data set with length and items, a tensor, a tuple of arrays, or an ordinary DataLoader,
        whose data set, batch size, workers and collation are used and whose order is not.
    records: how many records the data hold, as a number that may be public; rate and divisor come
        from it. `len(dataset)` itself is private, since it shows whether one record is there.
    epsilon, delta: the whole budget; delta is 1/records^1.1 if left out. A budget that protects no
        one (delta of 1/records or more, epsilon of 36 or more) is warned of: PromisesNothing.
    sampler, clip, noise, expected_batch_size, budget: parts of your own in the place of these. For
        CorrelatedNoise(strategy) the least noise is found too; it needs a length.
    options: of PrivateRun, such as folder, schedule, lengths, executor, micro_batch.
    """
    if isinstance(data, DataLoader) and batch_size is None:
        batch_size = loader_settings(data).batch_size
    if sampler is None:
        sampler = poisson_sampler(records, batch_size)
    if not isinstance(sampler, AbstractSampler):
        raise InvalidInput(
            f"sampler must be a sampler such as PoissonSampler(rate); got {sampler!r}."
        )
    if expected_batch_size is None and batch_size is not None:
        expected_batch_size = check_count(batch_size, "batch_size", low=1)
    elif expected_batch_size is None:
        if records is None:
            raise InvalidInput(
                "expected_batch_size is missing: the public constant that noisy sums are divided "
                "by, usually rate * the public number of records. Give it, or records."
            )
        expected_batch_size = sampler.sampling.rate * check_count(records, "records", low=1)
    length = length_of(sampler, steps, epochs)
    if clip is not None and clip_norm is not None:
        raise InvalidInput("Give either clip or clip_norm; clip has a norm of its own.")
    if clip is None:
        clip = FlatClip(1.0 if clip_norm is None else clip_norm)
    if epsilon is not None:
        if budget is not None:
            raise InvalidInput(
                "Give the budget once: as epsilon and delta, or as budget=Budget(...)."
            )
        if delta is None and records is None:
            raise InvalidInput("delta is missing, and without records there is no default for it.")
        budget = Budget(epsilon, default_delta(records or 0) if delta is None else delta)
    if noise is None or (isinstance(noise, CorrelatedNoise) and not noise.sized):
        if budget is None or length is None:
            raise InvalidInput(
                "The noise is not known: give epsilon and a length (epochs or steps), from which "
                "the least noise is found, or noise=GaussianNoise(1.1)."
            )
        if noise is not None:
            noise = noise.of(least_noise(budget, sampler, noise.of(1.0), length))
        else:
            multiplier = least_noise(budget, sampler, GaussianNoise(1.0), length)
            kind = DiscreteGaussianNoise if arithmetic == "strict" else GaussianNoise
            noise = kind(multiplier)
    run = PrivateRun(
        model, optimizer, data, loss, sampler=sampler, clip=clip, noise=noise, steps=length,
        expected_batch_size=expected_batch_size, budget=budget, delta=delta,
        arithmetic=arithmetic, **options,
    )  # fmt: skip
    if run.delta is not None:
        spent = 0.0 if budget is None or budget.epsilon is None else budget.epsilon
        warn_if_it_promises_nothing(spent, run.delta, records if sampler.users is None else None)
    return run


@final
class Trainer:
    """A private run that is fitted without a loop of one's own: `private(...).fit(...)`.

    evaluation: what is measured on public data, and how often.
    log: is called with each public number as (name, value, step): epsilon, learning rate, what was
        measured. For example SummaryWriter("logs").add_scalar, mlflow.log_metric, or
        lambda name, value, step: wandb.log({name: value}, step=step).
    progress: whether a bar shows steps, epsilon and time left.
    options: of `private` and PrivateRun.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        loss: Callable[..., Any],
        *,
        evaluation: Evaluation | None = None,
        log: Logger | None = None,
        progress: bool = True,
        **options: Any,
    ) -> None:
        if evaluation is not None and not isinstance(evaluation, Evaluation):
            raise InvalidInput(
                "evaluation must be an Evaluation, for example Evaluation((images, labels), "
                f"accuracy, every=500); got {type(evaluation).__name__}."
            )
        self.run = private(model, optimizer, data, loss, **options)
        self._how: dict[str, Any] = {"evaluation": evaluation, "log": log, "progress": progress}

    def fit(self) -> Outcome:
        """Take all steps that are left. With a folder, store the run and write its certificate."""
        return fit(self.run, **self._how)

    def evaluate(self) -> float:
        """The measure of `evaluation` now."""
        if self._how["evaluation"] is None:
            raise InvalidInput(
                "This Trainer has no evaluation. Make it with evaluation=Evaluation(public_data, "
                "accuracy, every=500)."
            )
        return evaluate(self.run, self._how["evaluation"])


def poisson_sampler(records: int | None, batch_size: int | None) -> PoissonSampler:
    """Each of so many records joins a batch with the same chance; public numbers, both."""
    if records is None or batch_size is None:
        missing = "records" if records is None else "batch_size"
        raise InvalidInput(
            f"{missing} is missing. A record joins a batch with probability batch_size / records, "
            "two public numbers: private(..., records=60_000, batch_size=256). Or give a sampler."
        )
    size = check_count(batch_size, "batch_size", low=1)
    if size > check_count(records, "records", low=1):
        raise InvalidInput(
            f"batch_size is {size:,} and records is {records:,}: a batch cannot hold more records "
            "than there are. Is `records` the public size of the data?"
        )
    return PoissonSampler(size / records)


def length_of(sampler: AbstractSampler, steps: int | None, epochs: float | None) -> int | None:
    """How many steps are asked for; in an epoch each record comes once on average."""
    if steps is not None and epochs is not None:
        raise InvalidInput("Say how long to train with steps or with epochs, not with both.")
    if steps is not None:
        return check_count(steps, "steps", low=1)
    if epochs is None:
        return None
    per_epoch = max(1, round(1 / sampler.sampling.rate))
    return max(1, round(float(check_positive(epochs, "epochs")) * per_epoch))
