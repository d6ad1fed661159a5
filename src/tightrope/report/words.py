"""Answers in words: an account's in a sentence or two, a guarantee for people outside the field."""

from __future__ import annotations

import math
from typing import Any

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.guarantee.base import Guarantee
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
    claim = (
        f"epsilon <= {rounded_up(epsilon['upper'], 8)} at delta = {delta:g} "
        f"({answer['adjacency']} neighbours)"
    )
    if answer["kind"] != "exact" and epsilon["lower"] > 0.0:
        return f"{claim}; an upper bound, the truth is at least {epsilon['lower']:.6g}"
    if answer["kind"] != "exact":
        return f"{claim}; an upper bound, the truth may be smaller"
    if epsilon["upper"] == 0.0:
        return f"{claim}: the run meets this delta even with epsilon 0"
    return f"{claim}; the truth is at most {epsilon['upper'] - epsilon['lower']:.1g} below"


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
    given = (
        f"Poisson accounting would say {claim.upper:.6g}; it does not apply to "
        f"{_BATCHES[type(process.sampling)]}"
    )
    if claim.upper <= 0.0 or epsilon.upper == float("inf"):
        return f"{given}."
    return f"{given}, for which {epsilon.upper / claim.upper:.3g} times that is certified."


PEOPLE, FALSE_ALARMS = 1000, 10


def found_of(guarantee: Guarantee, false_alarms: int = FALSE_ALARMS) -> int:
    """How many of a thousand people the best attacker finds at so many false alarms, rounded up."""
    rate = guarantee.true_positive_rate(false_alarms / PEOPLE).upper
    return min(math.ceil(PEOPLE * rate - 1e-6), PEOPLE)  # a millionth of a person is rounding


def headline(guarantee: Guarantee, false_alarms: int = FALSE_ALARMS) -> str:
    """What the best attacker finds among a thousand people, at so many false alarms."""
    found = found_of(guarantee, false_alarms)
    if found >= PEOPLE:
        return (
            "This guarantee does not rule out that an attacker who is allowed "
            f"{false_alarms} false alarms among {PEOPLE:,} people finds everyone in the data."
        )
    return (
        f"Of {PEOPLE:,} people like you in the data, an attacker who is allowed {false_alarms} "
        f"false alarms among {PEOPLE:,} others finds at most {found}, whatever they know about "
        f"everyone else. Guessing would find {false_alarms}."
    )


def meaning(guarantee: Guarantee, delta: float, people: int | None = None) -> tuple[str, ...]:
    """The same guarantee in other words; people: how many the data are about, if published."""
    epsilon = guarantee.epsilon(delta).upper
    if math.isinf(epsilon):
        return (f"No finite epsilon holds at delta = {rounded_up(delta)}: nothing is promised.",)
    if delta >= 1.0:
        return (
            "delta = 1 allows everything: an epsilon beside it promises nothing. What is said of "
            "people on this page comes from the whole guarantee, and holds.",
        )
    right = math.ceil(1000 * (0.5 + 0.5 * min(guarantee.advantage().upper, 1.0))) / 10
    return (
        f"Asked about one person whose presence is a coin flip, the best attacker is right at most "
        f"{right:g} % of the time. Guessing is right 50 % of the time.",
        _epsilon_words(epsilon, delta),
        _delta_words(delta, people),
        "It holds against every attacker, with any computer and any knowledge about other people, "
        "now and later.",
    )


_LARGE = math.log(1e6)


def _epsilon_words(epsilon: float, delta: float) -> str:
    if epsilon == 0.0:
        apart = "" if delta == 0.0 else ", but for what delta allows"
        return f"epsilon = 0: you change nothing at all{apart}."
    if epsilon > _LARGE:
        power = math.ceil(epsilon / math.log(10.0))
        return (
            f"epsilon = {rounded_up(epsilon)}: with you in the data something may become up "
            f"to 10^{power} times as likely as without you. That alone protects no one."
        )
    return (
        f"epsilon = {rounded_up(epsilon)}: with you in the data nothing becomes more than "
        f"{rounded_up(math.exp(epsilon), 3)} times as likely as without you. Smaller is better; "
        "if epsilon and delta were both 0, you would change nothing."
    )


def _delta_words(delta: float, people: int | None) -> str:
    if delta == 0.0:
        return "delta = 0: the previous sentence has no exceptions."
    words = f"delta = {rounded_up(delta)}: the extra chance that the previous sentence leaves out. "
    if people is not None and people * delta >= 0.1:
        lost = _many(people * delta)
        return words + (
            f"It is large for {people:,} people: even a method that gives away {lost} of them "
            "completely, on average, would pass it."
        )
    if delta > 1e-3:
        return words + (
            f"It is large: even a method that gives away one person in "
            f"{math.floor(1.0 / delta):,} completely would pass it."
        )
    return words + "It should be far smaller than one over the number of people."


def _many(people: float) -> str:
    return rounded_up(people, 2) if people < 10.0 else f"{math.ceil(people):,}"


def what_would_change(certificate: dict[str, Any]) -> tuple[str, ...]:
    """What a reader must not do, or must account for."""
    return (
        "Training again on the same people adds to the loss: compose the certificates.",
        "Choosing among several runs by their accuracy costs privacy unless it is accounted for "
        "(`tightrope.search`).",
        "A household of several people, or a person with several records, is protected less: the "
        f"guarantee is for {certificate['setting']['unit_of_privacy']}.",
        "Releasing the batches, the seed, the run folder or exact gradients voids the guarantee.",
        "Nothing that is done with the released model afterwards weakens it.",
    )
