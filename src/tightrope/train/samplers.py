"""Who is in the next batch. Each sampler declares the sampling that is accounted.

A sampler knows no dataset: it is asked for the next batch of a population of some size. Its public
numbers (rate, batches per epoch) are given by the user and never read off the private data. Under
add-or-remove neighbours the size of the dataset is itself private.

Batches vary in size, and may be empty: an empty batch is a step of pure noise, never skipped.
"""

from __future__ import annotations

import secrets
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from tightrope.correlated.strategies import white
from tightrope.entropy import KEY_BYTES, WordStream, here, open_stream
from tightrope.errors import InvalidInput
from tightrope.process import (
    AbstractSampling,
    BallsInBinsSampling,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    NoisySGD,
    PoissonSampling,
    Process,
    SeparatedSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UserLevel,
)
from tightrope.process.adjacency import Adjacency, check_rows
from tightrope.validate import check_count, check_positive

__all__ = [
    "AbstractSampler",
    "BallsInBinsSampler",
    "CyclicPoissonSampler",
    "CyclicSampler",
    "FixedSizeSampler",
    "FullBatchSampler",
    "PoissonSampler",
    "SeparatedSampler",
    "ShuffledSampler",
    "TruncatedPoissonSampler",
    "Users",
]

Indices = NDArray[np.int64]
_DECLARED = frozenset({"sampling", "adjacency", "users", "batches_per_epoch"})
_NO_THEOREM = "No theorem covers it."
_WHY_NOT = {
    Adjacency.ADD_OR_REMOVE: "Adding or removing one record would move others between batches. Use "
    "PoissonSampler or BallsInBinsSampler for these neighbours.",
    Adjacency.REPLACE_ONE: "No theorem covers it. Use PoissonSampler or FixedSizeSampler for these "
    "neighbours.",
}
# The run of every sampler that has one, by the sampler's name, which its copies share.
_RUNS: dict[str, weakref.ref[Any]] = {}


@final
@dataclass(frozen=True)
class Users:
    """What a sampler draws where users are protected: whole ones, or single rows of theirs.

    most: rows of one user, at most; a public number.
    """

    most: int
    together: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", check_count(self.most, "most", low=1))

    def process(self, run: Process) -> UserLevel:
        """The run as a process that protects these users."""
        return UserLevel(run, self.most, self.together)


class AbstractSampler(ABC):
    """Draws batches of indices and says which `sampling` they are accounted as.

    A new one says all about itself here: how it draws, what it is to the accountant (`process`),
    and how it goes on after it was stored (`state`, `go_on_after`, `lasting`).
    """

    # Neighbouring relations for which the declared sampling is what really happens.
    adjacencies: ClassVar[tuple[Adjacency, ...]] = (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE)
    splits_over_ranks = False  # do draws on the shards of several ranks equal one draw on the whole
    of_one_size = False  # has every batch the expected number of records
    accounted_together = False  # are all steps accounted together, also with independent noise
    memoryless = False  # is each batch drawn independently of those before it
    _place: int | None = None

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
        if not isinstance(users, Users | None):
            raise InvalidInput(
                f"users must say how many rows a user has at most, as Users(most=64); got {users!r}"
            )
        self.sampling, self.users = sampling, users
        self.adjacency = check_rows(adjacency or self.adjacencies[0], type(self).__name__)
        if self.adjacency not in self.adjacencies:
            raise InvalidInput(
                f"{type(self).__name__} is accounted under {self.adjacencies[0]} neighbours only; "
                f"got {self.adjacency}. {_WHY_NOT.get(self.adjacency, _NO_THEOREM)}"
            )
        self._seed, self._cryptographic = seed, cryptographic
        self._stream = self._open(rank=0)
        self._name = secrets.token_hex(16)
        self._population: int | None = None  # of which it draws, where it keeps to one

    def __setattr__(self, name: str, value: object) -> None:
        if name in _DECLARED and name in self.__dict__:
            raise AttributeError(
                f"{name} of a sampler is what is accounted and cannot be changed. Make a new "
                f"{type(self).__name__}."
            )
        object.__setattr__(self, name, value)

    @property
    def stream(self) -> WordStream:
        return self._stream

    @property
    def place(self) -> int | None:
        """Batches drawn in all; None where there are no epochs."""
        return self._place

    def process(self, noise: Any, steps: int) -> NoisySGD | CorrelatedSGD:
        """The process that so many steps on these batches with this noise are accounted as."""
        parts = (self.sampling, noise.noise_multiplier, steps, self.adjacency)
        strategy = getattr(noise, "strategy", None)
        if strategy is None and self.accounted_together:
            strategy = white()
        return NoisySGD(*parts) if strategy is None else CorrelatedSGD(strategy, *parts)

    def protected(self, process: Process) -> Process:
        """The same for the users, where users are protected; see docs/users.md."""
        return process if self.users is None else self.users.process(process)

    # ---- one run -------------------------------------------------------------------------------
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

    # ---- batches -------------------------------------------------------------------------------
    @property
    def position(self) -> int:
        """How many batches of the present epoch are drawn; 0 where there are no epochs."""
        return (self.place or 0) % getattr(self.sampling, "batches_per_epoch", 1)

    def draw(self, population: int) -> Indices:
        """The indices of the next batch, in increasing order."""
        if self._population not in (None, population):
            raise InvalidInput(  # how many there are may be private
                f"The data have another number of records than this {type(self).__name__} was "
                "declared for or began with: some would join too soon. State the right size, and "
                "give other data a run of their own."
            )
        return self._draw(population)

    @abstractmethod
    def _draw(self, population: int) -> Indices:
        """The batch that comes next."""

    def _joined(self, count: int, rate: float) -> NDArray[np.bool_]:
        """Which of so many join; rounded down, so the true chance is never above the stated one."""
        words = self.stream.words(count)
        if rate >= 1.0:
            return np.ones(count, dtype=bool)
        joined: NDArray[np.bool_] = words < np.uint64(int(rate * 2.0**64))
        return joined

    def go_on_after(self, steps: int) -> int:
        """Prepare to draw anew where another process has spent `steps` steps.

        Returns the number of steps that count as spent once a batch is drawn.
        """
        if not self.memoryless:
            raise InvalidInput(
                f"{type(self).__name__} does not say how to go on where earlier batches are not "
                "known. Define go_on_after(steps), or set memoryless = True if each batch is drawn "
                "independently of those before it."
            )
        return steps

    def state(self) -> dict[str, Any]:
        """For restore, in this process. Only the state of a seeded sampler can be stored."""
        return {"stream": self.stream.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.stream.restore(state["stream"])

    def lasting(self) -> str | None:
        """What holds for the whole run, to be stored with it; None where nothing does."""
        return None

    def last(self, stored: str | None) -> None:
        """Go on with what was stored."""
        assert stored is None


@final
class PoissonSampler(AbstractSampler):
    """Every record joins every batch independently with probability `rate`."""

    memoryless = True
    splits_over_ranks = True

    def __init__(self, rate: float, **options: Any) -> None:
        if isinstance(rate, int | float) and rate > 1:
            raise InvalidInput(
                f"rate is the chance that each record joins a batch, in [0, 1]; got {rate}. For "
                f"batches of about {rate:g} of 60,000 records give rate={rate:g} / 60_000, with a "
                "public size of the data."
            )
        super().__init__(PoissonSampling(rate), **options)
        self._rate = self.sampling.rate

    def _draw(self, population: int) -> Indices:
        return np.flatnonzero(self._joined(population, self._rate))


@final
class TruncatedPoissonSampler(AbstractSampler):
    """Poisson batches of `rate`; of a larger one a uniform subset of `largest_batch` is kept.

    For shapes that stay what they are. The size of the data, `population`, is public.
    """

    memoryless = True

    def __init__(self, rate: float, largest_batch: int, population: int, **options: Any) -> None:
        declared = TruncatedPoissonSampling(rate, largest_batch, population)
        super().__init__(declared, **options)
        self._rate, self._size = declared.join_rate, declared.largest_batch
        self._population = declared.dataset_size

    def _draw(self, population: int) -> Indices:
        drawn = np.flatnonzero(self._joined(population, self._rate))
        keys = self.stream.words(len(drawn))
        if len(drawn) <= self._size:
            return drawn
        return np.sort(drawn[np.argsort(keys, kind="stable")[: self._size]])


@final
class FixedSizeSampler(AbstractSampler):
    """Every batch is a uniform subset of `batch_size` of the `population` records."""

    memoryless = True
    adjacencies = (Adjacency.REPLACE_ONE,)
    of_one_size = True

    def __init__(self, batch_size: int, population: int, **options: Any) -> None:
        records = check_count(population, "population", low=1)
        self._size = check_count(batch_size, "batch_size", low=1)
        if self._size > records:
            raise InvalidInput(
                f"A batch of {self._size} different records cannot be drawn from {records}. Give "
                "batch_size <= population."
            )
        super().__init__(FixedSizeSampling(self._size / records), **options)
        self._population = records

    def _draw(self, population: int) -> Indices:
        keys = self.stream.words(population)
        return np.sort(np.argpartition(keys, self._size - 1)[: self._size])


@final
class FullBatchSampler(AbstractSampler):
    """Every record is in every batch."""

    memoryless = True
    splits_over_ranks = of_one_size = True

    def __init__(self, **options: Any) -> None:
        super().__init__(FullBatch(), **options)

    def _draw(self, population: int) -> Indices:
        return np.arange(population, dtype=np.int64)


# ---- epochs --------------------------------------------------------------------------------------


class _EpochSampler(AbstractSampler):
    """Common part of samplers that use every record once an epoch.

    Which batch a record is in is drawn for the whole epoch, for a population that stays what it is
    to the epoch's end. Of a private epoch nothing is ever stored, and neither a copy nor a forked
    process goes on with it: two runs with the same draws would tell more than both of their
    accounts. Each begins an epoch of its own.
    """

    declared: ClassVar[Any]

    def __init__(self, batches_per_epoch: int, **options: Any) -> None:
        super().__init__(self.declared(batches_per_epoch), **options)
        self.batches_per_epoch = int(batches_per_epoch)
        self._begin_epoch(0)

    def _begin_epoch(self, place: int) -> None:
        self._at_epoch_start, self._place = self.stream.state(), place
        self._population = None
        self._bins: Indices | None = None
        self._home = here()

    def for_rank(self, rank: int) -> None:
        super().for_rank(rank)
        self._begin_epoch(0)

    @abstractmethod
    def _assign(self, population: int) -> Indices:
        """For every record the number of its batch in the epoch that begins."""

    def _draw(self, population: int) -> Indices:
        if self.stream.private and self._home != here():
            self._begin_epoch(0)
        if self._bins is None:
            self._population, self._bins = population, self._assign(population)
        batch = np.flatnonzero(self._bins == self.position)
        self._place = (self.place or 0) + 1
        if self.position == 0:
            self._begin_epoch(self._place)
        return batch

    def state(self) -> dict[str, Any]:
        state = {"place": self.place, "population": self._population}
        kept = {"bins": self._bins} if self.stream.private else {}
        return {"stream": self._at_epoch_start} | state | kept

    def restore(self, state: dict[str, Any]) -> None:
        bins, place = state.get("bins"), int(state["place"])
        within = place % self.batches_per_epoch
        if within and bins is None and state["stream"]["private"]:
            raise InvalidInput(
                f"Batch {within} of a private epoch cannot be returned to: its draws were not "
                "kept. Begin another epoch with go_on_after(steps)."
            )
        self.stream.restore(state["stream"])
        self._begin_epoch(place)
        self._population, self._bins = state["population"], bins

    def go_on_after(self, steps: int) -> int:
        """The rest of an epoch that was begun is spent: records must not meet twice in it."""
        spent = -(-steps // self.batches_per_epoch) * self.batches_per_epoch
        self._begin_epoch(spent)
        return spent

    def __getstate__(self) -> dict[str, Any]:
        fresh = {"_bins": None, "place": 0, "_population": None}
        return self.__dict__ | (fresh if self.stream.private else {})


@final
class ShuffledSampler(_EpochSampler):
    """Each epoch a fresh random order, cut into `batches_per_epoch` batches of nearly equal size.

    Accounted as shuffled batches, for which no amplification is proved: expect a much larger
    epsilon than with PoissonSampler.
    """

    adjacencies = (Adjacency.REPLACE_ONE,)
    declared = ShuffledSampling

    def _assign(self, population: int) -> Indices:
        ranks = np.empty(population, dtype=np.int64)
        ranks[np.argsort(self.stream.words(population))] = np.arange(population)
        return ranks * self.batches_per_epoch // max(population, 1)


@final
class CyclicSampler(_EpochSampler):
    """A fixed public partition: record i is always in batch i mod `batches_per_epoch`."""

    adjacencies = (Adjacency.REPLACE_ONE,)
    declared = CyclicSampling

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
    declared = BallsInBinsSampling

    def _assign(self, population: int) -> Indices:
        return _bins_of(self.stream.words(population), self.batches_per_epoch)


def _bins_of(words: NDArray[np.uint64], bins: int) -> Indices:
    """64-bit words modulo the number of bins: the bias is below bins / 2^64."""
    return (words % np.uint64(bins)).astype(np.int64)


# ---- batches that are far apart ------------------------------------------------------------------


class _LastingSampler(AbstractSampler):
    """Common part of samplers whose records keep to an order of their own for the whole run.

    The order comes from a key, each record's independently of the others'. The key is stored with
    the run, so that a resumed one keeps to the same order. Accounts hold for each order of the
    others; but places in the data decide who has which, so with the key one could see whether an
    earlier record is missing: it stays as secret as the rest of the folder.
    """

    splits_over_ranks = accounted_together = True

    def __init__(self, sampling: Any, **options: Any) -> None:
        super().__init__(sampling, **options)
        self._take_key()

    def for_rank(self, rank: int) -> None:
        super().for_rank(rank)
        self._take_key()

    def _take_key(self) -> None:
        self.last(self.stream.words(4).tobytes().hex())

    def lasting(self) -> str:
        return self._key.hex()

    def last(self, stored: str | None) -> None:
        if stored is None or len(bytes.fromhex(stored)) != KEY_BYTES:
            raise InvalidInput(
                f"The order of {type(self).__name__} was not stored with the run, and in another "
                "order records could join too soon. Resume from a folder that was written whole."
            )
        self._key = bytes.fromhex(stored)
        self.go_on_after(0)

    def _draw(self, population: int) -> Indices:
        place, first = self.place or 0, self._population is None
        if first:
            self._order = WordStream(self._key, cryptographic=False)
            self._population = population
            self._begin(population, place)
        self._place = place + 1
        return self._batch(place)

    @abstractmethod
    def _begin(self, population: int, place: int) -> None:
        """Draw the order of the records, and bring it to this place."""

    @abstractmethod
    def _batch(self, place: int) -> Indices:
        """The batch at this place, after those before it."""

    def go_on_after(self, steps: int) -> int:
        self._place, self._population = steps, None
        return steps

    def state(self) -> dict[str, Any]:
        return super().state() | {"key": self._key.hex(), "place": self.place}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.last(state["key"])
        self.go_on_after(int(state["place"]))


@final
class CyclicPoissonSampler(_LastingSampler):
    """Each step draws from the next of `cycle` groups; of these each record joins with `join_rate`.

    Every record is in one group, chosen uniformly once for the whole run. For correlated noise of
    at most `cycle` bands: a record joins at most once in so many steps.
    """

    def __init__(self, join_rate: float, cycle: int, **options: Any) -> None:
        declared = CyclicPoissonSampling(join_rate, cycle)
        super().__init__(declared, **options)
        self._rate, self._cycle = declared.join_rate, declared.cycle

    def _begin(self, population: int, place: int) -> None:
        self._groups = _bins_of(self._order.words(population), self._cycle)

    def _batch(self, place: int) -> Indices:
        group = np.flatnonzero(self._groups == place % self._cycle)
        return group[self._joined(len(group), self._rate)]


@final
class SeparatedSampler(_LastingSampler):
    """Every record joins with `rate`, each time `separation` steps or more after the time before.

    After `most_joins` times it joins no more. For correlated noise of any strategy, for batches
    that come in no fixed order: which record joins when is not counted as secret.
    """

    def __init__(self, rate: float, separation: int, most_joins: int, **options: Any) -> None:
        declared = SeparatedSampling(separation, most_joins)
        super().__init__(declared, **options)
        value = float(check_positive(rate, "rate"))
        if value * separation > 1.0:
            raise InvalidInput(
                f"A record that joins {separation} steps apart joins at most one in {separation} "
                f"of them; got rate={value:g}. Give a rate of at most 1/{separation}."
            )
        self._rate, self._gap, self._most = value, declared.separation, declared.most_joins
        # after the separation, the chance to join at each step
        self._chance = min(1.0 / (1.0 / value - separation + 1.0), 1.0)

    def _begin(self, population: int, place: int) -> None:
        """The first times are such that batches have the same size from the first step on."""
        u = self._uniform(population)
        waits = self._gap * self._rate  # the chance that a record is in its separation
        later = self._gap + self._wait(np.maximum(u - waits, 0.0) / max(1.0 - waits, 1e-300))
        self._next = np.where(u < waits, np.floor(u / self._rate).astype(np.int64), later)
        self._joins = np.zeros(population, dtype=np.int64)
        for earlier in range(place):  # a resumed run: who has joined when
            self._batch(earlier)

    def _batch(self, place: int) -> Indices:
        batch = np.flatnonzero(self._next == place)
        self._joins[batch] += 1
        after = place + self._gap + self._wait(self._uniform(len(batch)))
        self._next[batch] = np.where(self._joins[batch] < self._most, after, -1)
        return batch

    def _uniform(self, count: int) -> NDArray[np.float64]:
        return (self._order.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _wait(self, u: NDArray[np.float64]) -> Indices:
        """Steps until one joins, from a uniform number."""
        if self._chance >= 1.0:
            return np.zeros(len(u), dtype=np.int64)
        return np.floor(np.log1p(-u) / np.log1p(-self._chance)).astype(np.int64)
