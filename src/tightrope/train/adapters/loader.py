"""A DataLoader whose batches are drawn by the sampler of a private run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from torch.utils.data import DataLoader, Sampler, default_collate

from tightrope.train.feed import as_rows, draw_ticket, slice_rows
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.validate import check_count

__all__ = ["drawn_loader"]


def drawn_loader(
    run: PrivateOptimizer,
    dataset: Any,
    *,
    steps: int,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
) -> DataLoader[Any]:
    """Batches for `steps` steps of `run`. Every batch must be given to run.step, in order.

    Ends early, and cleanly, when the budget of the run is spent.
    """
    gather = default_collate if collate is None else collate
    run.watch(dataset, gather)

    def or_empty(items: list[Any]) -> Any:
        if items:
            return gather(items)
        return slice_rows(
            gather([dataset[0]]), slice(0, 0)
        )  # only the shapes of example 0 are used

    drawn = _DrawnBatches(run, as_rows(dataset, gather).length, check_count(steps, "steps"))
    return DataLoader(dataset, batch_sampler=drawn, collate_fn=or_empty, num_workers=workers)


@final
class _DrawnBatches(Sampler[list[int]]):
    """Draws batches and announces each of them to the run."""

    def __init__(self, run: PrivateOptimizer, population: int, steps: int) -> None:
        self._run, self._population, self._steps = run, population, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        if self._run.announced > self._run.steps:
            # Workers had fetched ahead of a loop that was left. Those batches were never released:
            # they are drawn again, so that no place of an epoch is skipped.
            self._run.abandon_batch()
        for _ in range(self._steps):
            if self._run.announced >= self._run.ledger.steps_allowed:
                return
            indices, ticket = draw_ticket(self._run.sampler, self._population)
            self._run.expect(ticket)
            yield indices.tolist()
