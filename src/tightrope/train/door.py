"""From an ordinary model, optimizer and DataLoader to a private run, in one call.

```python
run, loader = private(model, optimizer, data_loader, records=60_000, epsilon=3.0, epochs=10)
for epoch in range(10):
    for x, y in loader:
        run.step(cross_entropy(model(x), y, reduction="none"))
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from tightrope.errors import InvalidInput
from tightrope.train.adapters.loader import drawn_loader
from tightrope.train.clip import FlatClip
from tightrope.train.constructions import noise_for
from tightrope.train.ledger import Budget
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.samplers import PoissonSampler
from tightrope.validate import check_count, check_positive, default_delta

__all__ = ["Epochs", "Private", "private"]

_REHEARSED = 2  # first batches of an epoch that no worker fetches
_KEPT = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers")


@final
@dataclass(frozen=True)
class Private:
    """A private run and its batches, epoch by epoch; printed, what was decided and why."""

    run: PrivateOptimizer
    loader: Epochs
    budget: Budget
    told: str

    def __iter__(self) -> Iterator[Any]:
        return iter((self.run, self.loader))

    def __str__(self) -> str:
        return self.told


@final
class Epochs:
    """Each loop over it is one epoch of batches that the run's own sampler draws.

    Nobody is drawn now and then: that step, pure noise, is taken here. Where the loader has
    workers, they fetch all batches of an epoch but the first two, by which the loop is rehearsed.
    """

    def __init__(self, run: PrivateOptimizer, loader: DataLoader[Any], length: int) -> None:
        self._run, self._loader, self._length = run, loader, length
        own = loader.collate_fn
        self._collate = None if own is default_collate else own
        self._workers: DataLoader[Any] | None = None
        self._seen: int | None = None  # steps taken when the last batch was handed out

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        if self._seen == self._run.steps and self._run.announced > self._run.steps:
            raise InvalidInput(
                "The last batch was never stepped on: was the loop left or interrupted? If that "
                "had nothing to do with what is in the batch, call run.abandon_batch() and go on."
            )
        for batch in self._first():
            if not self._is_empty():
                yield batch
        for batch in self._fetched():
            if not self._is_empty():
                yield batch
                if self._seen == self._run.steps:
                    raise InvalidInput(
                        "A batch came and step(losses) was not called for it. Skipping batches by "
                        "what they contain is not private: step on every batch."
                    )

    def _is_empty(self) -> bool:
        self._seen = self._run.steps
        if not self._run.next_is_empty:
            return False
        self._run.step_empty()
        return True

    def _first(self) -> Iterator[Any]:
        alone = self._loader.num_workers == 0
        steps = self._length if alone else min(self._length, _REHEARSED)
        return self._run.batches(self._loader.dataset, steps=steps, collate=self._collate)

    def _fetched(self) -> Iterable[Any]:
        if self._loader.num_workers == 0 or self._length <= _REHEARSED:
            return ()
        if self._workers is None:
            self._workers = drawn_loader(
                self._run, self._loader.dataset, steps=self._length - _REHEARSED,
                collate=self._collate, workers=self._loader.num_workers,
                **{name: getattr(self._loader, name) for name in _KEPT},
            )  # fmt: skip
        return self._workers


def private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    records: int,
    epsilon: float,
    epochs: float,
    delta: float | None = None,
    clip_norm: float = 1.0,
) -> Private:
    """Make training private: Poisson batches, clipped gradients, the least noise for a budget.

    records: how many records the data hold, as a number that may be public; rate and divisor come
        from it. `len(dataset)` itself is private, since it tells whether one record is there.
    epsilon, delta: the whole budget; delta is 1/records^1.1 where none is given.
    epochs: the run ends after so many times records / batch size steps, which is one loop.
    """
    batch_size = _batch_size(loader)
    records = check_count(records, "records", low=batch_size)
    per_epoch = round(records / batch_size)
    steps = max(1, round(float(check_positive(epochs, "epochs")) * per_epoch))
    budget = Budget(epsilon, default_delta(records) if delta is None else delta)
    sampler = PoissonSampler(batch_size / records)
    noise = noise_for(budget, sampler, steps=steps)
    run = PrivateOptimizer(
        model, optimizer, sampler=sampler, clip=FlatClip(clip_norm), noise=noise,
        expected_batch_size=batch_size, budget=budget,
    )  # fmt: skip
    run.plan(steps)
    told = _told(run, budget, steps, records)
    return Private(run, Epochs(run, loader, per_epoch), budget, told)


def _batch_size(loader: DataLoader[Any]) -> int:
    """The loader's batch size, once it is known that its batches may be drawn otherwise."""
    if not isinstance(loader, DataLoader):
        raise InvalidInput(
            f"private() takes an ordinary torch DataLoader; got {type(loader).__name__}. For other "
            "data make the run yourself: noisy_sgd(model, ...) and run.batches(data, steps=...)."
        )
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidInput(
            "The DataLoader reads a stream, from which nobody can be drawn with a known "
            "probability. Use a dataset with a length and items."
        )
    if loader.batch_size is None:
        raise InvalidInput(
            "The DataLoader has a batch sampler of its own (or no batches), whose chances are not "
            "known. Make it with batch_size=; the run draws its batches itself."
        )
    if not _visits_each_record_once(loader):
        raise InvalidInput(
            f"The DataLoader draws by a {type(loader.sampler).__name__} that may prefer or leave "
            "out records; here every record of the dataset has the same chance. Leave the sampler "
            "out; for some of the records pass a Subset of the dataset; with several processes "
            "give each its own share of the records."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InvalidInput(
            f"{type(loader).__name__} changes its batches in an __iter__ of its own, which would "
            "not be used here. Do it in the dataset, in collate_fn or in the loop."
        )
    return int(loader.batch_size)


def _visits_each_record_once(loader: DataLoader[Any]) -> bool:
    """As the two samplers do that a DataLoader makes for itself."""
    sampler: Any = loader.sampler
    if type(sampler) not in (SequentialSampler, RandomSampler):
        return False
    if sampler.data_source is not loader.dataset:
        return False
    ordered = isinstance(sampler, SequentialSampler)
    return ordered or not (sampler.replacement or sampler._num_samples is not None)


def _told(run: PrivateOptimizer, budget: Budget, steps: int, records: int) -> str:
    size = round(run.expected_batch_size)
    assert budget.pair is not None
    loose = "" if budget.pair[1] * records < 1.0 else f" (not below 1/{records:,}: take less)"
    return "\n".join(
        (
            f"batches   each of {records:,} records joins with probability {size}/{records} "
            f"(Poisson), {size} on average; the loader's own order is not used",
            f"clipping  every example's gradient to norm {run.clip.sensitivity:g}",
            f"noise     {run.noise.noise_multiplier:.4g} times that norm, the least for the budget",
            f"length    {steps:,} steps, then the run ends",
            f"budget    epsilon {budget.epsilon:g} at delta {budget.delta:.3g}{loose}, whoever is "
            "added or removed",
        )
    )
