"""How each step chooses its batch. Public numbers only: none is read off the private data."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, final

from tightrope.errors import InvalidInput
from tightrope.numerics.binomial_tail import binomial_tail
from tightrope.validate import check_count, check_probability, one_number

__all__ = [
    "AbstractSampling",
    "PoissonSampling",
    "TruncatedPoissonSampling",
    "FixedSizeSampling",
    "ShuffledSampling",
    "CyclicSampling",
    "BallsInBinsSampling",
    "RandomAllocationSampling",
    "CyclicPoissonSampling",
    "RandomCycleSampling",
    "SeparatedSampling",
    "FullBatch",
    "check_sampling",
    "sizes_vary",
]


class AbstractSampling(Protocol):
    """A way of choosing batches; `rate` = P(one given record is in one given batch)."""

    @property
    def rate(self) -> float: ...


@final
@dataclass(frozen=True)
class PoissonSampling:
    """Every record joins every batch independently with probability `rate`.

    >>> from tightrope import PoissonSampling
    >>> PoissonSampling(rate=256 / 60000).rate
    0.004266666666666667
    """

    rate: float

    def __post_init__(self) -> None:
        rate = one_number(check_probability(self.rate, "rate"), "rate")
        object.__setattr__(self, "rate", rate)


@final
@dataclass(frozen=True)
class TruncatedPoissonSampling:
    """Every record is drawn with `join_rate`; of a larger batch `largest_batch` are kept.

    Those are a uniform subset. `dataset_size` is public, and counts the record that is protected:
    of two neighbours, the larger data set has so many records.
    """

    join_rate: float
    largest_batch: int
    dataset_size: int

    def __post_init__(self) -> None:
        rate = one_number(check_probability(self.join_rate, "join_rate"), "join_rate")
        object.__setattr__(self, "join_rate", rate)
        for name, low in (("largest_batch", 0), ("dataset_size", 1)):
            object.__setattr__(self, name, check_count(getattr(self, name), name, low=low))

    @property
    def rate(self) -> float:
        n, most = self.dataset_size, self.largest_batch
        if n <= most or self.join_rate in (0.0, 1.0):
            return self.join_rate * min(1.0, most / n)
        full = binomial_tail(n - 1, self.join_rate, most)
        kept = binomial_tail(n, self.join_rate, most + 1) * most / n
        return float((1 - full) * Decimal(self.join_rate) + kept)


@final
@dataclass(frozen=True)
class FixedSizeSampling:
    """Every batch is a uniform subset of fixed size; rate = batch size / dataset size.

    >>> from tightrope import Adjacency, FixedSizeSampling, NoisySGD, account
    >>> run = NoisySGD(FixedSizeSampling(0.01), 2.0, 100, adjacency=Adjacency.REPLACE_ONE)
    >>> print(account(run).epsilon(delta=1e-5).upper < 2)
    True
    """

    rate: float

    def __post_init__(self) -> None:
        rate = one_number(check_probability(self.rate, "rate"), "rate")
        object.__setattr__(self, "rate", rate)


class _EpochSampling:
    batches_per_epoch: int

    def __post_init__(self) -> None:
        count = check_count(self.batches_per_epoch, "batches_per_epoch", low=1)
        object.__setattr__(self, "batches_per_epoch", count)

    @property
    def rate(self) -> float:
        return 1.0 / self.batches_per_epoch


@final
@dataclass(frozen=True)
class ShuffledSampling(_EpochSampling):
    """Each epoch a fresh random order, cut into `batches_per_epoch` batches.

    >>> from tightrope import NoisySGD, ShuffledSampling, account
    >>> run = NoisySGD(ShuffledSampling(batches_per_epoch=100), noise_multiplier=4.0, steps=300)
    >>> print(account(run).epsilon(delta=1e-5).upper < 3)
    True
    """

    batches_per_epoch: int


@final
@dataclass(frozen=True)
class CyclicSampling(_EpochSampling):
    """A fixed public partition into batches, visited in the same order each epoch.

    >>> from tightrope import CyclicSampling
    >>> CyclicSampling(batches_per_epoch=100).rate
    0.01
    """

    batches_per_epoch: int


@final
@dataclass(frozen=True)
class BallsInBinsSampling(_EpochSampling):
    """Each epoch every record joins exactly one batch, chosen uniformly and independently.

    >>> from tightrope import BallsInBinsSampling, NoisySGD, account
    >>> run = NoisySGD(BallsInBinsSampling(100), noise_multiplier=1.0, steps=1000)
    >>> print(account(run).epsilon(delta=1e-5).upper < 2)
    True
    """

    batches_per_epoch: int


@final
@dataclass(frozen=True)
class RandomAllocationSampling(_EpochSampling):
    """Each epoch every record joins `joins` of the batches, a uniform subset, independently."""

    batches_per_epoch: int
    joins: int

    def __post_init__(self) -> None:
        super().__post_init__()
        joins = check_count(self.joins, "joins", low=1)
        if joins > self.batches_per_epoch:
            raise InvalidInput(
                f"A record cannot join {joins} different batches of {self.batches_per_epoch}. Give "
                "joins <= batches_per_epoch."
            )
        object.__setattr__(self, "joins", joins)

    @property
    def rate(self) -> float:
        return self.joins / self.batches_per_epoch


@final
@dataclass(frozen=True)
class CyclicPoissonSampling:
    """A fixed public partition into `cycle` groups, of which each step takes the next one.

    Of that group every record joins independently with probability `join_rate`; so a record joins
    at most once in `cycle` steps. The group of a record does not depend on the other records.
    """

    join_rate: float
    cycle: int

    def __post_init__(self) -> None:
        rate = one_number(check_probability(self.join_rate, "join_rate"), "join_rate")
        object.__setattr__(self, "join_rate", rate)
        object.__setattr__(self, "cycle", check_count(self.cycle, "cycle", low=1))

    @property
    def rate(self) -> float:
        """Over a uniformly random group."""
        return self.join_rate / self.cycle


@final
@dataclass(frozen=True)
class RandomCycleSampling(_EpochSampling):
    """Every record joins one of the batches, uniformly, independently and in secret, once for all:
    each cycle visits the same batches in the same order."""

    batches_per_epoch: int


@final
@dataclass(frozen=True)
class SeparatedSampling:
    """In any order: a record joins at most `most_joins` batches, each `separation` steps or more
    after the one before (that many steps later at the earliest; 1 is the next step)."""

    separation: int
    most_joins: int

    def __post_init__(self) -> None:
        for name in ("separation", "most_joins"):
            object.__setattr__(self, name, check_count(getattr(self, name), name, low=1))

    @property
    def rate(self) -> float:
        """At most, over a long run."""
        return 1.0 / self.separation


@final
@dataclass(frozen=True)
class FullBatch:
    """Every record is in every batch.

    >>> from tightrope import FullBatch, NoisySGD, account
    >>> print(account(NoisySGD(FullBatch(), 8.0, steps=10)).epsilon(delta=1e-5))
    [1.534679796, 1.534679797]
    """

    @property
    def rate(self) -> float:
        return 1.0


def sizes_vary(sampling: AbstractSampling) -> bool:
    """Does chance decide how many records a batch has?"""
    by_chance = (
        PoissonSampling, TruncatedPoissonSampling, BallsInBinsSampling, RandomAllocationSampling,
        CyclicPoissonSampling, RandomCycleSampling,
    )  # fmt: skip
    return isinstance(sampling, by_chance)


def check_sampling(value: Any) -> AbstractSampling:
    """A way of drawing batches; a bare rate does not say which."""
    if isinstance(value, type) or not isinstance(getattr(value, "rate", None), float):
        raise InvalidInput(
            f"sampling must say how batches are drawn; got {value!r}. Use PoissonSampling(rate), "
            "FixedSizeSampling(rate), ShuffledSampling, CyclicSampling or "
            "BallsInBinsSampling(batches_per_epoch), or FullBatch()."
        )
    return value  # type: ignore[no-any-return]
