"""Who is in the next batch. Each sampler declares the sampling that is accounted.

A sampler knows no dataset: it is asked for the next batch of a population of some size. Its public
numbers (rate, batches per epoch) are given by the user and never read off the private data. Under
add-or-remove neighbours the size of the dataset is itself private.

Batches vary in size, and may be empty: an empty batch is a step of pure noise, never skipped.

A sampler belongs to one run. In a second one it, or its copy, would go on in the middle of an epoch
that the second account begins anew, or draw the same secret batches twice.
"""

from __future__ import annotations

import secrets
import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from tightrope.entropy import WordStream, open_stream
from tightrope.errors import InvalidInput
from tightrope.process import (
    AbstractSampling,
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from tightrope.process.adjacency import Adjacency, check_rows
from tightrope.train.protected import Users, check_users
from tightrope.validate import check_count

__all__ = [
    "AbstractSampler",
    "PoissonSampler",
    "TruncatedPoissonSampler",
    "FixedSizeSampler",
    "FullBatchSampler",
    "Indices",
]

Indices = NDArray[np.int64]
_BOTH = (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE)
_WHY_NOT = {
    Adjacency.ADD_OR_REMOVE: "Adding or removing one record would move others between batches. Use "
    "PoissonSampler or BallsInBinsSampler for these neighbours.",
    Adjacency.REPLACE_ONE: "No theorem covers it. Use PoissonSampler or FixedSizeSampler for these "
    "neighbours.",
}
# The run of every sampler that has one, by the sampler's name, which its copies share.
_RUNS: dict[str, weakref.ref[Any]] = {}


class AbstractSampler(ABC):
    """Draws batches of indices and says which `sampling` they are accounted as."""

    # Neighbouring relations for which the declared sampling is what really happens.
    adjacencies: ClassVar[tuple[Adjacency, ...]] = _BOTH
    # Do independent draws on the shards of several ranks equal one draw on the whole?
    splits_over_ranks: ClassVar[bool] = False
    # Is each batch independent of the batches before it?
    memoryless: ClassVar[bool] = True

    def __init__(
        self,
        sampling: AbstractSampling,
        *,
        adjacency: Adjacency | None = None,
        seed: int | None = None,
        cryptographic: bool = False,
        users: Users | None = None,
    ) -> None:
        """users: a `Users`, where whole users or rows of users are drawn, and users protected."""
        self._sampling, self._users = sampling, check_users(users)
        self._adjacency = check_rows(adjacency or self.adjacencies[0], type(self).__name__)
        if self._adjacency not in self.adjacencies:
            raise InvalidInput(
                f"{type(self).__name__} is accounted under {self.adjacencies[0]} neighbours only; "
                f"got {self._adjacency}. {_WHY_NOT[self._adjacency]}"
            )
        self._seed, self._cryptographic = seed, cryptographic
        self._stream = self._open(rank=0)
        self._name = secrets.token_hex(16)

    @property
    def sampling(self) -> AbstractSampling:
        return self._sampling

    @property
    def adjacency(self) -> Adjacency:
        return self._adjacency

    @property
    def users(self) -> Users | None:
        """Which users are protected, and how they are drawn; None: single records are."""
        return self._users

    @property
    def stream(self) -> WordStream:
        return self._stream

    @property
    def position(self) -> int:
        """How many batches of the present epoch are drawn; 0 where there are no epochs."""
        return 0

    @property
    def place(self) -> int | None:
        """How many batches are drawn in all; None where there are no epochs."""
        return None

    def check_free(self) -> None:
        """Refuse what another run has, or what is already under way."""
        if self._name in _RUNS or self.place:
            raise InvalidInput(
                f"This {type(self).__name__}, or one that it is a copy of, has been used before. A "
                "sampler belongs to one run: in a second one it would draw from the middle of an "
                f"epoch, or the same batches again. Make a new {type(self).__name__} for each run; "
                "RunFolder resumes a stored run with a new one."
            )

    def belong_to(self, run: object) -> None:
        """Be the sampler of this run, and of no other."""
        self.check_free()
        _RUNS[self._name] = weakref.ref(run)

    def belongs_to(self, run: object) -> bool:
        owner = _RUNS.get(self._name)
        return owner is not None and owner() is run

    def for_rank(self, rank: int) -> None:
        """Give this rank a stream of its own: a shared mask would void the amplification."""
        self._stream = self._open(rank)

    def _open(self, rank: int) -> WordStream:
        return open_stream(
            "sampling", seed=self._seed, cryptographic=self._cryptographic, rank=rank
        )

    @abstractmethod
    def draw(self, population: int) -> Indices:
        """The indices of the next batch, in increasing order."""

    def go_on_after(self, steps: int) -> int:
        """Prepare to draw anew where another process has spent `steps` steps.

        Returns the number of steps that count as spent once a batch is drawn.
        """
        if not self.memoryless:
            raise InvalidInput(
                f"{type(self).__name__} remembers earlier batches and does not say how to go on "
                "without them. Define go_on_after(steps)."
            )
        return steps

    def state(self) -> dict[str, Any]:
        """For restore, in this process. Only the state of a seeded sampler can be stored."""
        return {"stream": self._stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])


@final
class PoissonSampler(AbstractSampler):
    """Every record joins every batch independently with probability `rate`."""

    splits_over_ranks = True

    def __init__(self, rate: float, **options: Any) -> None:
        if isinstance(rate, int | float) and rate > 1:
            raise InvalidInput(
                f"rate is the chance that each record joins a batch, in [0, 1]; got {rate}. For "
                f"batches of about {rate:g} of 60,000 records give rate={rate:g} / 60_000, with a "
                "public size of the data."
            )
        super().__init__(PoissonSampling(rate), **options)
        # Rounded down: the true rate is never above the declared one.
        self._threshold = min(int(self._sampling.rate * 2.0**64), 2**64 - 1)

    def draw(self, population: int) -> Indices:
        if self._sampling.rate >= 1.0:
            return np.arange(population, dtype=np.int64)
        joined = self._stream.words(population) < np.uint64(self._threshold)
        return np.flatnonzero(joined).astype(np.int64)


@final
class TruncatedPoissonSampler(AbstractSampler):
    """Poisson batches of `rate`; of a larger one a uniform subset of `largest_batch` is kept.

    For shapes that stay what they are. The size of the data, `population`, is public.
    """

    def __init__(self, rate: float, largest_batch: int, population: int, **options: Any) -> None:
        declared = TruncatedPoissonSampling(rate, largest_batch, population)
        super().__init__(declared, **options)
        self._size, self._population = declared.largest_batch, declared.dataset_size
        self._threshold = min(int(declared.join_rate * 2.0**64), 2**64 - 1)
        self._everybody = declared.join_rate >= 1.0

    def draw(self, population: int) -> Indices:
        _check_population(self._population, population)
        joined = self._stream.words(population) < np.uint64(self._threshold)
        drawn = np.flatnonzero(joined | self._everybody).astype(np.int64)
        keys = self._stream.words(len(drawn))
        if len(drawn) <= self._size:
            return drawn
        return np.sort(drawn[np.argsort(keys, kind="stable")[: self._size]])


def _check_population(declared: int, population: int) -> None:
    if population != declared:
        raise InvalidInput(
            f"This sampler was declared for {declared} records; the dataset has {population}. The "
            "size is public with this sampling: state the right one."
        )


@final
class FixedSizeSampler(AbstractSampler):
    """Every batch is a uniform subset of `batch_size` of the `population` records."""

    adjacencies = (Adjacency.REPLACE_ONE,)

    def __init__(self, batch_size: int, population: int, **options: Any) -> None:
        self._population = check_count(population, "population", low=1)
        self._size = check_count(batch_size, "batch_size", low=1)
        if self._size > self._population:
            raise InvalidInput(
                f"A batch of {self._size} different records cannot be drawn from "
                f"{self._population}. Give batch_size <= population."
            )
        super().__init__(FixedSizeSampling(self._size / self._population), **options)

    def draw(self, population: int) -> Indices:
        _check_population(self._population, population)
        keys = self._stream.words(population)
        return np.sort(np.argpartition(keys, self._size - 1)[: self._size]).astype(np.int64)


@final
class FullBatchSampler(AbstractSampler):
    """Every record is in every batch."""

    splits_over_ranks = True

    def __init__(self, **options: Any) -> None:
        super().__init__(FullBatch(), **options)

    def draw(self, population: int) -> Indices:
        return np.arange(population, dtype=np.int64)
