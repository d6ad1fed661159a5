"""A DataLoader whose batches are drawn by the sampler of a private run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from tightrope.train.feed import Rows, slice_rows
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.strict import refuse
from tightrope.validate import check_count

if TYPE_CHECKING:
    from tightrope.train.feed import Data

__all__ = ["drawn_loader"]


def drawn_loader(
    run: PrivateOptimizer,
    dataset: Data,
    *,
    steps: int,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
    **how: Any,
) -> DataLoader[Any]:
    """Batches for `steps` steps of `run`. Every batch must be given to run.step, in order.

    Ends early, and cleanly, when the budget of the run is spent.
    how: options of DataLoader about its workers, such as worker_init_fn.
    """
    if run.arithmetic.name == "strict":
        raise refuse("A DataLoader", "it makes batches of several examples")
    gather = default_collate if collate is None else collate
    items = _Items(run.watch(dataset, gather))

    def or_empty(drawn: list[Any]) -> Any:
        if drawn:
            return gather(drawn)
        return slice_rows(gather([items[0]]), slice(0, 0))  # only the shapes of example 0 are used

    run.ledger.ask(check_count(steps, "steps"))
    drawn = _DrawnBatches(run, steps)
    return _DrawnLoader(items, batch_sampler=drawn, collate_fn=or_empty, num_workers=workers, **how)


@final
class _Items(Dataset[Any]):
    """The pinned data of a run, one by one."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Of arrays all at once, as they are compared; PyTorch's loaders ask for batches so."""
        if self._rows.arrays is None:
            return [self._rows.items[index] for index in indices]
        taken = self._rows.take(np.asarray(indices, dtype=np.int64))
        return list(taken) if len(self._rows.arrays) == 1 else list(zip(*taken, strict=True))


@final
class _DrawnBatches(Sampler[list[int]]):
    """Draws batches and announces each of them to the run."""

    def __init__(self, run: PrivateOptimizer, steps: int) -> None:
        self.run, self._steps = run, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        if self.run.announced > self.run.steps:
            # Workers had fetched ahead of a loop that was left. Those batches were never released:
            # they are drawn again, so that no place of an epoch is skipped.
            self.run.abandon_batch()
        loop = self.run.loops.begin()
        for _ in range(self._steps):
            self.run.loops.check(loop)
            if self.run.announced >= self.run.ledger.steps_allowed:
                return
            indices, ticket = self.run.draw()
            self.run.expect(ticket)
            yield indices.tolist()


@final
class _DrawnLoader(DataLoader[Any]):
    """Hands no batch out that was fetched ahead for a loop that another one has taken over."""

    def __iter__(self) -> Any:
        assert isinstance(self.batch_sampler, _DrawnBatches)
        loops, loop = self.batch_sampler.run.loops, None
        for batch in super().__iter__():
            loop = loops.begin() if loop is None else loop
            loops.check(loop)
            yield batch
