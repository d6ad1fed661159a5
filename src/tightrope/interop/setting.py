"""A run as people write it: rate or batch size, noise, steps or epochs, delta."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from fractions import Fraction
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.interop.numbers import parse_count, parse_number
from tightrope.process import (
    AbstractSampling,
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    NoisySGD,
    PoissonSampling,
    ShuffledSampling,
)
from tightrope.validate import (
    check_count,
    check_delta,
    check_positive,
    check_probability,
    default_delta,
)

__all__ = ["SamplingName", "Setting", "Level", "build_sampling", "choice", "level_of", "unknown"]

UNSAID = ""  # what people leave out; null in a file is not the same
_USUAL_DELTA = 1e-5


class SamplingName(StrEnum):
    """How batches are drawn."""

    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"
    BALLS_IN_BINS = "balls-in-bins"
    FULL = "full"


@final
@dataclass(frozen=True)
class Level:
    """A delta, and what a reader should know about it."""

    delta: float
    remarks: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Setting:
    """The words of a command line or a file, as they came; "" stands for what was left out."""

    rate: Any = UNSAID
    batch_size: Any = UNSAID
    dataset_size: Any = UNSAID
    noise: Any = UNSAID
    steps: Any = UNSAID
    epochs: Any = UNSAID
    delta: Any = UNSAID
    sampling: Any = UNSAID
    adjacency: Any = UNSAID
    group: Any = UNSAID

    def run(self) -> NoisySGD:
        """The run that the words describe."""
        how = build_sampling(self.scheme, self.sampling_rate)
        count = _steps(how.rate, self.steps, self.epochs)
        return NoisySGD(how, parse_number(self.noise, "noise"), count, self.neighbours)

    @property
    def scheme(self) -> SamplingName:
        said: SamplingName = choice(self.sampling, SamplingName, "sampling", "poisson")
        return said

    @property
    def neighbours(self) -> Adjacency:
        said: Adjacency = choice(self.adjacency, Adjacency, "adjacency", "add-or-remove")
        return said

    @property
    def has_rate(self) -> bool:
        """Is it said how many records a batch has?"""
        said = (self.rate, self.batch_size)
        return self.scheme is SamplingName.FULL or any(word != UNSAID for word in said)

    def _rate(self) -> float:
        rate = parse_number(self.rate, "rate")
        if rate > 1.0:
            size = f"--batch-size {rate:.0f}" if rate.is_integer() else "--batch-size B"
            raise InvalidInput(
                f"The rate is a probability, batch size / dataset size, so it is at most 1; got "
                f"{self.rate}. If you know the batch size, say {size} --dataset-size N instead."
            )
        return rate

    @property
    def sampling_rate(self) -> float:
        """The rate as given, or batch size / dataset size."""
        if self.batch_size == UNSAID:
            return 1.0 if self.scheme is SamplingName.FULL else self._rate()
        if self.rate != UNSAID:
            raise InvalidInput(
                f"Give the rate or the batch size, not both; got rate {self.rate!r} and batch "
                f"size {self.batch_size!r}. The rate is batch size / dataset size."
            )
        records = self.records
        batch = check_count(parse_count(self.batch_size, "batch_size"), "batch_size", low=1)
        if records is None:
            raise InvalidInput(
                f"The rate is batch size / dataset size; got a batch size of {batch} and no "
                "dataset size. Add --dataset-size N."
            )
        if batch > records:
            raise InvalidInput(
                "A batch is drawn from the dataset, so it cannot be larger; got a batch of "
                f"{batch} and a dataset of {records}."
            )
        return batch / records

    @property
    def records(self) -> int | None:
        """How many records there are, where that was said."""
        if self.dataset_size == UNSAID:
            return None
        return check_count(parse_count(self.dataset_size, "dataset_size"), "dataset_size", low=1)

    def level(self) -> Level:
        return level_of(self.delta, self.records)

    def group_size(self) -> int:
        """How many records change together; 1 where nothing was said."""
        if self.group == UNSAID:
            return 1
        return check_count(parse_count(self.group, "group"), "group", low=1)


def level_of(given: object, records: int | None) -> Level:
    """The delta that was asked for, or a default that is told; held against 1/records."""
    if given == UNSAID and records is None:
        told = f"delta = {_USUAL_DELTA:g} by default. With --dataset-size it would fit your data."
        return Level(_USUAL_DELTA, (told,))
    if given == UNSAID and records is not None:
        found = default_delta(records)
        return Level(found, (f"delta = {found:.3g}, the default for {records:,} records.",))
    delta = float(check_delta(parse_number(given, "delta")))
    if records is None or delta * records < 1.0:
        return Level(delta)
    if delta >= 1.0:
        raise InvalidInput(
            f"delta = {delta:g} promises nothing: every release meets it. Ask for less than "
            f"1/{records}, for instance {default_delta(records):.1g}."
        )
    return Level(
        delta,
        (
            f"delta = {delta:g} is too large for {records:,} records: publishing one of them, "
            f"drawn at random, would meet it. Ask for less than 1/{records}, for instance "
            f"{default_delta(records):.1g}.",
        ),
    )


def build_sampling(name: SamplingName, given: float) -> AbstractSampling:
    if name is SamplingName.FULL:
        return FullBatch()
    rate = float(check_probability(given, "rate"))
    if name is SamplingName.POISSON:
        return PoissonSampling(rate)
    if name is SamplingName.FIXED_SIZE:
        return FixedSizeSampling(rate)
    by_epoch = {
        SamplingName.SHUFFLED: ShuffledSampling,
        SamplingName.CYCLIC: CyclicSampling,
        SamplingName.BALLS_IN_BINS: BallsInBinsSampling,
    }
    return by_epoch[name](_batches_per_epoch(rate, name))


def _batches_per_epoch(rate: float, name: SamplingName) -> int:
    """1/rate rounded down: fewer batches visit a record more often, which is the safe side."""
    if rate == 0.0:
        raise InvalidInput(
            f"{name.value} sampling visits every record once an epoch, so its rate is above 0. "
            "Give batch size / dataset size, for instance 256/60000."
        )
    return int(1 / (Fraction(rate) * (1 - Fraction(1, 10**12))))  # 1/(1/3) is 3


def _steps(rate: float, steps: object, epochs: object) -> int:
    """Steps as given, or epochs / rate rounded to the nearest step."""
    if (steps == UNSAID) == (epochs == UNSAID):
        came = "both" if steps != UNSAID else "neither"
        raise InvalidInput(
            f"Give either steps or epochs; got {came}. Epochs are passes over the data: steps = "
            "epochs / rate."
        )
    if steps != UNSAID:
        return check_count(parse_count(steps, "steps"), "steps")
    if rate == 0.0:
        raise InvalidInput("At rate 0 there are no epochs. Give steps, or a rate above 0.")
    passes = float(check_positive(parse_number(epochs, "epochs"), "epochs"))
    return check_count(round(Fraction(passes) / Fraction(rate)), "steps")


def choice(given: object, allowed: type[Enum], name: str, otherwise: str) -> Any:
    """The member of a list of words; case and underscores do not matter."""
    word = otherwise if given == UNSAID else str(given).lower().replace("_", "-")
    words = [member.value for member in allowed]
    if word not in words:
        raise InvalidInput(unknown(name, given, words))
    return allowed(word)


def unknown(name: str, given: object, allowed: list[str]) -> str:
    """What is allowed instead of a word, and which one it may have been."""
    near = get_close_matches(str(given).lower(), allowed, n=1, cutoff=0.5)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{name} must be one of {', '.join(allowed)}; got {given!r}.{meant}"
