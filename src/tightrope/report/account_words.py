"""An account's answer in a sentence or two, and what Poisson accounting would have claimed."""

from __future__ import annotations

from typing import Any

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rounded_up
from tightrope.process import (
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    NoisySGD,
    PoissonSampling,
    Process,
    ShuffledSampling,
)
from tightrope.theorems.catalog import ANALYSES

__all__ = ["answer_words", "poisson_claim", "claim_words"]

_EXACT = tuple(analysis for analysis in ANALYSES if analysis.key == "exact")
_BATCHES = {
    FixedSizeSampling: "batches of fixed size",
    ShuffledSampling: "shuffled batches",
    CyclicSampling: "cyclic batches",
    BallsInBinsSampling: "one random batch an epoch",
}


def answer_words(process: Process, delta: float, answer: dict[str, Any]) -> str:
    """The answer in one sentence; an infinite epsilon with its reason and a way out."""
    epsilon = answer["epsilon"]
    if epsilon["upper"] == "infinity":
        return f"Not private: epsilon is infinite at delta = {delta:g}. {_why(process, delta)}"
    said = (
        f"epsilon <= {rounded_up(epsilon['upper'], 8)} at delta = {delta:g} "
        f"({answer['adjacency']} neighbours)"
    )
    if answer["kind"] != "exact" and epsilon["lower"] > 0.0:
        return f"{said}; an upper bound, the truth is at least {epsilon['lower']:.6g}"
    if answer["kind"] != "exact":
        return f"{said}; an upper bound, the truth may be smaller"
    if epsilon["upper"] == 0.0:
        return f"{said}: the run meets this delta even with epsilon 0"
    return f"{said}; the truth is at most {epsilon['upper'] - epsilon['lower']:.1g} below"


def _why(process: Process, delta: float) -> str:
    if getattr(process, "noise_multiplier", 1.0) == 0.0:
        return "There is no noise, so one output can give a record away. Add noise."
    if delta == 0.0:
        return (
            "At delta = 0 a record must never be given away, and Gaussian noise does so with a "
            "tiny probability. Ask for a delta above 0, well below 1/(number of records)."
        )
    return "No finite epsilon could be certified. Ask for a larger delta, or add noise."


def poisson_claim(process: Process, delta: float) -> Interval | None:
    """The epsilon of the same rate, noise and steps with Poisson batches and removed records.

    None where the batches are Poisson or full, so that there is no other scheme to be mistaken for.
    """
    if not isinstance(process, NoisySGD) or type(process.sampling) not in _BATCHES:
        return None
    sampling = PoissonSampling(process.sampling.rate)
    run = NoisySGD(sampling, process.noise_multiplier, process.steps)
    try:
        return account(run, _EXACT, check="off").epsilon(delta)
    except NotCertified:
        return None


def claim_words(process: Any, claim: Interval, epsilon: Interval) -> str:
    """That the Poisson number does not apply, and how far it is from what is certified."""
    said = (
        f"Poisson accounting would say {claim.upper:.6g}; it does not apply to "
        f"{_BATCHES[type(process.sampling)]}"
    )
    if claim.upper <= 0.0 or epsilon.upper == float("inf"):
        return f"{said}."
    return f"{said}, for which {epsilon.upper / claim.upper:.3g} times that is certified."
