"""Samplers that go by epochs: every record is in one batch of each (see `samplers`)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, final

import numpy as np

from tightrope.entropy import here
from tightrope.errors import InvalidInput
from tightrope.process import BallsInBinsSampling, CyclicSampling, ShuffledSampling
from tightrope.process.adjacency import Adjacency
from tightrope.train.samplers import AbstractSampler, Indices

__all__ = ["BallsInBinsSampler", "CyclicSampler", "ShuffledSampler"]


class _EpochSampler(AbstractSampler):
    """Common part of samplers that use every record once an epoch.

    Which batch a record is in is drawn for the whole epoch, for a population that stays what it is
    to the epoch's end. Of a private epoch nothing is ever stored, and neither a copy nor a forked
    process goes on with it: two runs with the same draws would tell more than both of their
    accounts. Each begins an epoch of its own.
    """

    memoryless = False

    def __init__(self, sampling: Any, **options: Any) -> None:
        super().__init__(sampling, **options)
        self.batches_per_epoch: int = sampling.batches_per_epoch
        self._begin_epoch(0)

    def _begin_epoch(self, place: int) -> None:
        self._at_epoch_start, self._place = self._stream.state(), place
        self._population: int | None = None
        self._bins: Indices | None = None
        self._home = here()

    @property
    def position(self) -> int:
        return self._place % self.batches_per_epoch

    @property
    def place(self) -> int:
        return self._place

    def for_rank(self, rank: int) -> None:
        super().for_rank(rank)
        self._begin_epoch(0)

    @abstractmethod
    def _assign(self, population: int) -> Indices:
        """For every record the number of its batch in the epoch that begins."""

    def draw(self, population: int) -> Indices:
        if self._stream.private and self._home != here():
            self._begin_epoch(0)
        if self._population not in (None, population):
            raise InvalidInput(
                f"The epoch under way began with {self._population} records, now there are "
                f"{population}: some would join twice in it. Finish the epoch with the data it "
                "began with; other data need a run of their own."
            )
        if self._bins is None:
            self._population, self._bins = population, self._assign(population)
        batch = np.flatnonzero(self._bins == self.position).astype(np.int64)
        self._place += 1
        if self.position == 0:
            self._begin_epoch(self._place)
        return batch

    def state(self) -> dict[str, Any]:
        state = {
            "stream": self._at_epoch_start,
            "place": self._place,
            "population": self._population,
        }
        return state | {"bins": self._bins} if self._stream.private else state

    def restore(self, state: dict[str, Any]) -> None:
        bins, place = state.get("bins"), int(state["place"])
        within = place % self.batches_per_epoch
        if within and bins is None and state["stream"]["private"]:
            raise InvalidInput(
                f"Batch {within} of a private epoch cannot be returned to: its draws were not "
                "kept. Begin another epoch with go_on_after(steps)."
            )
        self._stream.restore(state["stream"])
        self._begin_epoch(place)
        self._population, self._bins = state["population"], bins

    def go_on_after(self, steps: int) -> int:
        """The rest of an epoch that was begun is spent: records must not meet twice in it."""
        spent = -(-steps // self.batches_per_epoch) * self.batches_per_epoch
        self._begin_epoch(spent)
        return spent

    def __getstate__(self) -> dict[str, Any]:
        kept = self.__dict__.copy()
        fresh = {"_bins": None, "_place": 0, "_population": None}
        return kept | fresh if self._stream.private else kept


@final
class ShuffledSampler(_EpochSampler):
    """Each epoch a fresh random order, cut into `batches_per_epoch` batches of nearly equal size.

    Accounted as shuffled batches, for which no amplification is proved: expect a much larger
    epsilon than with PoissonSampler.
    """

    adjacencies = (Adjacency.REPLACE_ONE,)

    def __init__(self, batches_per_epoch: int, **options: Any) -> None:
        super().__init__(ShuffledSampling(batches_per_epoch), **options)

    def _assign(self, population: int) -> Indices:
        ranks = np.empty(population, dtype=np.int64)
        ranks[np.argsort(self._stream.words(population))] = np.arange(population)
        return ranks * self.batches_per_epoch // max(population, 1)


@final
class CyclicSampler(_EpochSampler):
    """A fixed public partition: record i is always in batch i mod `batches_per_epoch`."""

    adjacencies = (Adjacency.REPLACE_ONE,)

    def __init__(self, batches_per_epoch: int, **options: Any) -> None:
        super().__init__(CyclicSampling(batches_per_epoch), **options)

    def _assign(self, population: int) -> Indices:
        return np.arange(population, dtype=np.int64) % self.batches_per_epoch

    def go_on_after(self, steps: int) -> int:
        self._begin_epoch(steps)  # always the same one
        return steps


@final
class BallsInBinsSampler(_EpochSampler):
    """Each epoch every record joins exactly one batch, chosen uniformly and independently."""

    adjacencies = (Adjacency.ADD_OR_REMOVE,)
    splits_over_ranks = True

    def __init__(self, batches_per_epoch: int, **options: Any) -> None:
        super().__init__(BallsInBinsSampling(batches_per_epoch), **options)

    def _assign(self, population: int) -> Indices:
        # 64-bit words modulo the number of bins: the bias is below bins / 2^64.
        bins = self._stream.words(population) % np.uint64(self.batches_per_epoch)
        return bins.astype(np.int64)
