"""What the commands share: numbers as people write them, and the process they describe."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

import typer

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
from tightrope.validate import check_count, check_positive, check_probability

__all__ = [
    "SamplingName",
    "Rate",
    "Noise",
    "Steps",
    "Epochs",
    "Delta",
    "SamplingChoice",
    "AdjacencyChoice",
    "AsJson",
    "Plot",
    "parse_number",
    "build_run",
    "steps_of",
]


class SamplingName(StrEnum):
    """How batches are drawn."""

    POISSON = "poisson"
    FIXED_SIZE = "fixed-size"
    SHUFFLED = "shuffled"
    CYCLIC = "cyclic"
    BALLS_IN_BINS = "balls-in-bins"
    FULL = "full"


Rate = Annotated[
    str, typer.Option(help="Sampling rate: batch size / dataset size, e.g. 256/60000.", metavar="Q")
]
Noise = Annotated[
    str, typer.Option(help="Noise multiplier: noise standard deviation / clip norm.", metavar="S")
]
Steps = Annotated[str | None, typer.Option(help="Number of steps.", metavar="T")]
Epochs = Annotated[
    str | None, typer.Option(help="Passes over the data, in place of --steps.", metavar="E")
]
Delta = Annotated[str, typer.Option(help="Probability of failure, e.g. 1e-5.", metavar="DELTA")]
SamplingChoice = Annotated[SamplingName, typer.Option(help="How batches are drawn.")]
AdjacencyChoice = Annotated[
    str, typer.Option(help="Neighbours: add-or-remove or replace-one.", metavar="RELATION")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (schema: docs/json.md).")]
Plot = Annotated[
    str | None,
    typer.Option(help="Draw a picture into this .png, .svg or .pdf file.", metavar="FILE"),
]


def parse_number(text: Any, name: str) -> float:
    """A number as written by people: 0.01, 1e-5 or 256/60000."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    try:
        return float(Fraction(str(text).replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise InvalidInput(
            f"{name} must be a number such as 0.01, 1e-5 or 256/60000; got {text!r}."
        ) from None


def steps_of(rate: float, steps: Any, epochs: Any) -> int:
    """Steps as given, or epochs / rate rounded to the nearest step."""
    if (steps is None) == (epochs is None):
        raise InvalidInput("Give either --steps or --epochs (and not both).")
    if steps is not None:
        return check_count(parse_number(steps, "steps"), "steps")
    if rate == 0.0:
        raise InvalidInput("--epochs needs a rate above 0; give --steps instead.")
    return round(float(check_positive(parse_number(epochs, "epochs"), "epochs")) / rate)


def build_sampling(name: SamplingName, rate: float) -> AbstractSampling:
    if name is SamplingName.POISSON:
        return PoissonSampling(rate)
    if name is SamplingName.FIXED_SIZE:
        return FixedSizeSampling(rate)
    if name is SamplingName.FULL:
        return FullBatch()
    by_epoch = {
        SamplingName.SHUFFLED: ShuffledSampling,
        SamplingName.CYCLIC: CyclicSampling,
        SamplingName.BALLS_IN_BINS: BallsInBinsSampling,
    }
    if rate == 0.0:
        raise InvalidInput(f"{name.value} sampling visits every record, so its rate is above 0.")
    return by_epoch[name](round(1.0 / rate))


def build_run(
    rate: Any, noise: Any, steps: Any, epochs: Any, sampling: SamplingName, adjacency: Any
) -> NoisySGD:
    """The run that the options describe."""
    q = check_probability(parse_number(rate, "rate"), "rate")
    how = build_sampling(SamplingName(sampling), q)
    return NoisySGD(
        how, parse_number(noise, "noise"), steps_of(how.rate, steps, epochs), relation(adjacency)
    )


def relation(text: Any) -> Adjacency:
    try:
        return Adjacency(str(text))
    except ValueError:
        allowed = " or ".join(a.value for a in Adjacency)
        raise InvalidInput(f"adjacency must be {allowed}; got {text!r}.") from None
