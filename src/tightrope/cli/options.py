"""What the commands share: their options, and the process these describe.

Nothing heavy is imported before it is used, here and in the commands: `--help` needs no numbers.
"""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightrope.cli.numbers import parse_count, parse_number
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.process import AbstractSampling, Adjacency, NoisySGD

__all__ = [
    "SamplingName",
    "Rate",
    "Noise",
    "Steps",
    "Epochs",
    "Delta",
    "SamplingChoice",
    "AdjacencyChoice",
    "Group",
    "AsJson",
    "Plot",
    "build_run",
    "parse_delta",
    "parse_group",
    "parse_number",
    "unknown",
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
SamplingChoice = Annotated[
    str, typer.Option(help=f"How batches are drawn: {', '.join(SamplingName)}.", metavar="SCHEME")
]
AdjacencyChoice = Annotated[
    str, typer.Option(help="Neighbours: add-or-remove or replace-one.", metavar="RELATION")
]
Group = Annotated[
    str | None,
    typer.Option(help="Also for this many records that change together (a user's).", metavar="K"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (schema: docs/json.md).")]
Plot = Annotated[
    str | None,
    typer.Option(help="Draw a picture into this .png, .svg or .pdf file.", metavar="FILE"),
]


def parse_delta(given: Any) -> float:
    from tightrope.validate import check_delta

    return float(check_delta(parse_number(given, "delta")))


def parse_group(given: Any) -> int:
    """How many records change together; 1 where nothing was said."""
    from tightrope.validate import check_count

    return 1 if given is None else check_count(parse_count(given, "group"), "group", low=1)


def build_run(
    rate: Any, noise: Any, steps: Any, epochs: Any, sampling: Any, adjacency: Any
) -> NoisySGD:
    """The run that the options describe."""
    from tightrope.process import Adjacency, NoisySGD

    how = build_sampling(_choice(sampling, SamplingName, "sampling"), rate)
    relation: Adjacency = _choice(adjacency, Adjacency, "adjacency")
    count = steps_of(how.rate, steps, epochs)
    return NoisySGD(how, parse_number(noise, "noise"), count, relation)


def build_sampling(name: SamplingName, given: Any) -> AbstractSampling:
    from tightrope import process
    from tightrope.validate import check_probability

    if name is SamplingName.FULL:
        return process.FullBatch()
    rate = float(check_probability(parse_number(given, "rate"), "rate"))
    if name is SamplingName.POISSON:
        return process.PoissonSampling(rate)
    if name is SamplingName.FIXED_SIZE:
        return process.FixedSizeSampling(rate)
    by_epoch = {
        SamplingName.SHUFFLED: process.ShuffledSampling,
        SamplingName.CYCLIC: process.CyclicSampling,
        SamplingName.BALLS_IN_BINS: process.BallsInBinsSampling,
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


def steps_of(rate: float, steps: Any, epochs: Any) -> int:
    """Steps as given, or epochs / rate rounded to the nearest step."""
    from tightrope.validate import check_count, check_positive

    if (steps is None) == (epochs is None):
        came = "both" if steps is not None else "neither"
        raise InvalidInput(
            f"Give either steps or epochs; got {came}. Epochs are passes over the data: steps = "
            "epochs / rate."
        )
    if steps is not None:
        return check_count(parse_count(steps, "steps"), "steps")
    if rate == 0.0:
        raise InvalidInput("Epochs are counted by a rate above 0; got 0. Give steps instead.")
    passes = float(check_positive(parse_number(epochs, "epochs"), "epochs"))
    return check_count(round(Fraction(passes) / Fraction(rate)), "steps")


def _choice(given: Any, allowed: Any, name: str) -> Any:
    """The member of a list of words; case and underscores do not matter."""
    word = str(given).lower().replace("_", "-")
    words = [member.value for member in allowed]
    if word not in words:
        raise InvalidInput(unknown(name, given, words))
    return allowed(word)


def unknown(name: str, given: Any, allowed: list[str]) -> str:
    """What is allowed instead of a word, and which one it may have been."""
    near = get_close_matches(str(given).lower(), allowed, n=1, cutoff=0.5)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{name} must be one of {', '.join(allowed)}; got {given!r}.{meant}"
