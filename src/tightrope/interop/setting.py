"""A run as people write it: rate or batch size, noise, steps or epochs, delta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from fractions import Fraction
from typing import Any, final

from tightrope.errors import InvalidInput
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
from tightrope.process.convex import (
    ConvexLoss,
    CyclicSGD,
    GradientProcess,
    NoisyGradientDescent,
    SkipSGD,
    StopSGD,
    SubsampledSGD,
)
from tightrope.validate import (
    check_count,
    check_delta,
    check_positive,
    check_probability,
    default_delta,
    no_promise,
)


def parse_number(given: object, name: str) -> float:
    """A number as written by people; what is not finite is left to the checks of its range."""
    if isinstance(given, int) and not isinstance(given, bool):
        try:
            return float(given)
        except OverflowError:
            return math.inf if given > 0 else -math.inf
    if isinstance(given, float):
        return given
    parts = str(given).replace(" ", "").split("/")
    try:
        value = _quotient(*parts)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise InvalidInput(
            f"{name} must be a number such as 0.01, 1e-5 or 256/60000; got {_shown(given)}."
            f"{_advice(str(given))}"
        ) from None
    if math.isnan(value):
        raise InvalidInput(f"{name} must be a finite number; got {_shown(given)}.")
    if value == 0.0 and any(digit in parts[0].lower().split("e")[0] for digit in "123456789"):
        raise InvalidInput(
            f"{name} = {_shown(given)} is below the smallest number that a computer holds, about "
            "5e-324. Give a larger number, or 0 if 0 is meant."
        )
    return value


def _advice(text: str) -> str:
    """For people who write a percentage, a decimal comma or a division by zero."""
    if "%" in text:
        return " Write a percentage as a fraction: 0.01 or 1/100 for 1%."
    if "," in text:
        return " Write decimals with a point: 0.01."
    return " Nothing can be divided by 0." if text.strip().endswith("/0") else ""


def parse_count(given: object, name: str) -> int | float:
    """The same for a count, where a whole number is kept to its last digit."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = str(given).replace(" ", "")
    return int(text) if text.isdecimal() and len(text) < 310 else parse_number(given, name)


def _quotient(top: str, bottom: str = "1") -> float:
    """top / bottom, rounded once; the parts may be written 6e4."""
    above, below = _exactly(top), _exactly(bottom)
    if isinstance(above, Fraction) and isinstance(below, Fraction):
        return float(above / below)
    return float(above) / float(below)


def _exactly(text: str) -> Fraction | float:
    """The fraction a text means; a float where 10 to a huge power would have to be made."""
    value = float(text)
    huge = "e" in text.lower() and (value == 0.0 or math.isinf(value))
    return value if huge or math.isnan(value) or "inf" in text.lower() else Fraction(text)


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."


UNSAID = ""  # what people leave out; null in a file is not the same
_USUAL_DELTA = 1e-5
_OF_THE_LOSS = ("smoothness", "strong_convexity", "lipschitz", "step_size", "diameter")
_ONE_PASS = ("skip", "stop")
_BY_EPOCHS = ("cyclic", *_ONE_PASS)


class SamplingName(StrEnum):
    """How batches are drawn."""

    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"
    BALLS_IN_BINS = "balls-in-bins"
    FULL = "full"


class LastIterateName(StrEnum):
    """Gradient methods on a convex loss that release nothing but their last iterate."""

    DESCENT = "descent"
    CYCLIC = "cyclic"
    SKIP = "skip"
    STOP = "stop"
    SUBSAMPLED = "subsampled"


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
    last_iterate: Any = UNSAID
    smoothness: Any = UNSAID
    strong_convexity: Any = UNSAID
    lipschitz: Any = UNSAID
    step_size: Any = UNSAID
    diameter: Any = UNSAID

    def run(self) -> Any:
        """The run that the words describe."""
        if self.last_iterate != UNSAID:
            return self._last_iterate_run()
        loss = [name for name in _OF_THE_LOSS if getattr(self, name) != UNSAID]
        if loss:
            raise InvalidInput(
                f"{' and '.join(loss)} matter where only the last iterate is released. Name the "
                f"method too, last_iterate: one of {', '.join(LastIterateName)}."
            )
        how = build_sampling(self.scheme, self.sampling_rate)
        count = _steps(how.rate, self.steps, self.epochs)
        return NoisySGD(how, parse_number(self.noise, "noise"), count, self.neighbours)

    def _last_iterate_run(self) -> GradientProcess:
        """The noise multiplier is relative to the Lipschitz constant, on the sum over a batch."""
        name = choice(self.last_iterate, LastIterateName, "last_iterate", "")
        records = self.records
        missing = [key for key in ("smoothness", "step_size") if getattr(self, key) == UNSAID]
        missing += ["dataset_size"] if records is None else []
        if missing or records is None:
            raise InvalidInput(
                f"A method that releases its last iterate needs {', '.join(missing)} too: the "
                "smoothness of the loss (the largest eigenvalue of its Hessian), the step size, "
                "and the public number of records."
            )
        self._check_last_iterate(name)
        batch = self._batch(name, records)
        lipschitz = self._number("lipschitz", 1.0)
        described: dict[str, Any] = {
            "loss": ConvexLoss(
                lipschitz,
                self._number("smoothness", 0.0),
                self._number("strong_convexity", 0.0),
            ),
            "step_size": self._number("step_size", 0.0),
            "noise_std": parse_number(self.noise, "noise") * lipschitz / batch,
            "diameter": None if self.diameter == UNSAID else self._number("diameter", 0.0),
        }
        if name in (LastIterateName.SKIP, LastIterateName.STOP):
            one_pass = SkipSGD if name is LastIterateName.SKIP else StopSGD
            return one_pass(records=records, **described)
        if name is LastIterateName.CYCLIC:
            epochs = check_count(parse_count(self.epochs, "epochs"), "epochs", low=1)
            described |= {"batch_size": batch, "batches_per_epoch": records // batch}
            return CyclicSGD(epochs=epochs, **described)
        steps = _steps(batch / records, self.steps, self.epochs)
        if name is LastIterateName.DESCENT:
            return NoisyGradientDescent(records=records, steps=steps, **described)
        return SubsampledSGD(records=records, batch_size=batch, steps=steps, **described)

    def _number(self, name: str, otherwise: float) -> float:
        given = getattr(self, name)
        return otherwise if given == UNSAID else parse_number(given, name)

    def _check_last_iterate(self, name: LastIterateName) -> None:
        """Words of other runs are refused, so that none is passed over in silence."""
        wrong = {
            "rate": self.rate,
            "sampling": self.sampling,
            "group": self.group,
            "steps": self.steps if name in _BY_EPOCHS else UNSAID,
            "epochs": self.epochs if name in _ONE_PASS else UNSAID,
            "batch_size": self.batch_size if name in (*_ONE_PASS, "descent") else UNSAID,
        }
        given = [key for key, value in wrong.items() if value != UNSAID]
        if given:
            raise InvalidInput(
                f"last_iterate {name} has no {' and no '.join(given)}; leave it out. (descent: all "
                "records, steps. cyclic: batch_size, epochs. skip, stop: one record a step, one "
                "pass. subsampled: batch_size, steps.)"
            )
        if name is LastIterateName.CYCLIC and self.epochs == UNSAID:
            raise InvalidInput("last_iterate cyclic needs epochs: passes over the data.")
        asked = UNSAID if self.adjacency == UNSAID else self.neighbours
        if asked not in (UNSAID, Adjacency.REPLACE_ONE):
            raise InvalidInput(
                f"The theorems about last iterates are for replace-one neighbours; got {asked}. "
                "Leave adjacency out."
            )

    def _batch(self, name: LastIterateName, records: int) -> int:
        if name is LastIterateName.DESCENT:
            return records
        if self.batch_size == UNSAID and name is not LastIterateName.SUBSAMPLED:
            return 1
        batch = check_count(parse_count(self.batch_size, "batch_size"), "batch_size", low=1)
        if batch > records or (name is LastIterateName.CYCLIC and records % batch):
            raise InvalidInput(
                f"{records:,} records have no batches of {batch:,}: a cyclic method visits whole "
                "batches, and no batch is larger than the data. Give a batch_size that divides "
                "dataset_size."
            )
        return batch

    @property
    def scheme(self) -> SamplingName:
        claim: SamplingName = choice(self.sampling, SamplingName, "sampling", "poisson")
        return claim

    @property
    def neighbours(self) -> Adjacency:
        claim: Adjacency = choice(self.adjacency, Adjacency, "adjacency", "add-or-remove")
        return claim

    @property
    def has_rate(self) -> bool:
        """Does the setting name how many records a batch has?"""
        if self.last_iterate != UNSAID:
            return True
        claim = (self.rate, self.batch_size)
        return self.scheme is SamplingName.FULL or any(word != UNSAID for word in claim)

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
        """How many records there are, where that is known."""
        if self.dataset_size == UNSAID:
            return None
        return check_count(parse_count(self.dataset_size, "dataset_size"), "dataset_size", low=1)

    def level(self) -> Level:
        return level_of(self.delta, self.records)

    def group_size(self) -> int:
        """How many records change together; 1 by default."""
        if self.group == UNSAID:
            return 1
        return check_count(parse_count(self.group, "group"), "group", low=1)


def level_of(given: object, records: int | None) -> Level:
    """The delta that was asked for, or a default with a remark; compared with 1/records."""
    if given == UNSAID and records is None:
        words = f"delta = {_USUAL_DELTA:g} by default. With --dataset-size it would fit your data."
        return Level(_USUAL_DELTA, (words,))
    if given == UNSAID and records is not None:
        found = default_delta(records)
        return Level(found, (f"delta = {found:.3g}, the default for {records:,} records.",))
    delta = float(check_delta(parse_number(given, "delta")))
    wrong = no_promise(0.0, delta, records)
    if wrong is None:
        return Level(delta)
    least, usual = (2, _USUAL_DELTA) if records is None else (records, default_delta(records))
    words = f"{wrong} Ask for less than 1/{least}, for instance {usual:.1g}."
    if delta >= 1.0 and records is not None:
        raise InvalidInput(words)
    return Level(delta, (words,))


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
