"""Events of dp_accounting as processes. The table at the end says what becomes of each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.approx import amplified
from tightrope.interop import releases
from tightrope.interop.events import Event, event_of
from tightrope.process import (
    AbstractSampling,
    Adjacency,
    BallsInBinsSampling,
    DeclaredApproxDP,
    FixedSizeSampling,
    FullBatch,
    NegativeBinomialSelection,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    PoissonSelection,
    Process,
    RandomAllocationSampling,
    RepeatAndSelect,
    Repeated,
    SampledRelease,
    Sequence,
    TruncatedPoissonSampling,
    UserLevel,
)
from tightrope.validate import (
    check_count,
    check_non_negative,
    check_probability,
)

__all__ = ["process_of", "leaves"]

_SAMPLED = (
    "PoissonSampledDpEvent",
    "SampledWithoutReplacementDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
    "RandomAllocationDpEvent",
)
_NUMBERS = ("LaplaceDpEvent", "DiscreteLaplaceDpEvent", "DiscreteGaussianDpEvent")

Reader = Callable[[Event, Adjacency], Any]


def process_of(given: object, neighbours: Adjacency = Adjacency.ADD_OR_REMOVE) -> Any:
    """The process that an event describes; DoesNotApply where there is none (yet)."""
    event = event_of(given)
    return _READERS[event.name](event, neighbours)


def leaves(given: object, times: int = 1) -> Iterator[tuple[Event, int]]:
    """Every event in a tree that has no event inside, and how often it is run."""
    event = event_of(given)
    repeated = event.name == "SelfComposedDpEvent"
    count = times * check_count(event["count"], "count") if repeated else times
    if not _holds_events(event):
        yield event, count
    for part in _inside(event):
        yield from leaves(part, count)


def _holds_events(event: Event) -> bool:
    return "event" in event.values or "events" in event.values


def _inside(event: Event) -> list[Any]:
    return [event["event"]] if "event" in event.values else list(event.values.get("events", ()))


def _selection(event: Event, neighbours: Adjacency) -> Any:
    """One trial, always, is that trial."""
    mean, poisson = event["mean"], event["shape"] == math.inf
    if mean == 1.0 and not poisson:
        return process_of(event["event"], neighbours)
    if _not_gaussian(event["event"]):
        trial = process_of(event["event"], neighbours)
        return RepeatAndSelect(trial, mean, None if poisson else event["shape"])
    noise = releases.moved_by(_one_gaussian(event), neighbours)
    if noise == 0.0:
        return releases.not_private(event, neighbours)
    mu = 1.0 / (noise * releases.DOWN)
    if poisson:
        return PoissonSelection(mu, mean, neighbours)
    return NegativeBinomialSelection(mu, mean, event["shape"], neighbours)


# --- sampling ------------------------------------------------------------------------------------
def _poisson(event: Event, neighbours: Adjacency) -> Any:
    rate = float(check_probability(event["sampling_probability"], "sampling_probability"))
    return _sampled(event, neighbours, PoissonSampling(rate), Adjacency.ADD_OR_REMOVE)


def _without_replacement(event: Event, neighbours: Adjacency) -> Any:
    if neighbours is Adjacency.ADD_OR_REMOVE:
        raise DoesNotApply(
            f"A batch of fixed size needs a dataset of fixed size, so a record can only be "
            f"replaced or zeroed; got {neighbours.value} neighbours. Say REPLACE_ONE (as "
            "dp_accounting requires) or REPLACE_SPECIAL."
        )
    size = check_count(event["source_dataset_size"], "source_dataset_size", low=1)
    batch = check_count(event["sample_size"], "sample_size")
    if batch > size:
        raise InvalidInput(f"A batch of {batch} cannot be drawn from {size} records.")
    return _sampled(event, neighbours, FixedSizeSampling(batch / size), Adjacency.REPLACE_ONE)


def _sampled(
    event: Event, neighbours: Adjacency, sampling: AbstractSampling, amplifies_under: Adjacency
) -> Any:
    """Gaussian noise as a step, single numbers and zCDP; else what sampling leaves of epsilon."""
    inner = event_of(event["event"])
    fixed = isinstance(sampling, FixedSizeSampling)
    concentrated = inner.name == "ZCDpEvent" and neighbours is Adjacency.ADD_OR_REMOVE
    if not fixed and (concentrated or (inner.name in _NUMBERS and _is_one_number(inner))):
        release = _READERS[inner.name](inner, Adjacency.ADD_OR_REMOVE)
        return SampledRelease(release, sampling.rate, neighbours)
    pair = releases.epsilon_delta(inner, neighbours)
    if pair is not None and neighbours is amplifies_under:
        left = amplified(*pair, sampling.rate, neighbours, fixed_size=fixed)
        return DeclaredApproxDP(*left, neighbours)
    how = FullBatch() if sampling.rate == 1.0 else sampling
    return NoisySGD(how, _one_gaussian(event), 1, neighbours)


def _is_one_number(inner: Event) -> bool:
    """Noise on one number that is not endless."""
    if inner.name == "DiscreteGaussianDpEvent":
        return bool(inner["dimension"] == 1)
    return inner.name != "DiscreteLaplaceDpEvent" or bool(inner["noise_parameter"] != 0)


def _truncated(event: Event, neighbours: Adjacency) -> Any:
    how = TruncatedPoissonSampling(
        event["sampling_probability"], event["truncated_batch_size"], event["dataset_size"]
    )
    return NoisySGD(how, event["noise_multiplier"], 1, neighbours)


def _allocation(event: Event, neighbours: Adjacency) -> Any:
    batches = check_count(event["num_steps"], "num_steps", low=1)
    joins = event["num_selected"]
    sampling: AbstractSampling = BallsInBinsSampling(batches)
    if joins != 1:
        sampling = RandomAllocationSampling(batches, joins)
    return NoisySGD(sampling, _one_gaussian(event), batches, neighbours)


def _one_gaussian(event: Event) -> float:
    """The noise of the Gaussian that all releases on one batch are together: 1/noise^2 add up."""
    inner, odd = list(leaves(event["event"])), _not_gaussian(event["event"])
    noises = [
        (float(check_non_negative(leaf["noise_multiplier"], "noise_multiplier")), count)
        for leaf, count in inner
        if leaf.name == "GaussianDpEvent" and count > 0
    ]
    if odd or not noises:
        raise DoesNotApply(
            f"{event.name} is read around Gaussian noise, and around releases known by epsilon and "
            f"delta where these amplify (Poisson: add-or-remove, fixed size: replace-one); got "
            f"{', '.join(odd) or 'nothing'} inside. Sampled releases of another kind are not a "
            "process of Tightrope yet: declare what is proved about them as EpsilonDeltaDpEvent."
        )
    if len(noises) == 1 and noises[0][1] == 1:
        return noises[0][0]
    if any(noise == 0.0 for noise, _ in noises):
        return 0.0
    return releases.DOWN / math.sqrt(math.fsum(count / noise**2 for noise, count in noises))


def _not_gaussian(given: object) -> list[str]:
    """What is inside beside Gaussian noise and its compositions."""
    around = _names(given) - {"ComposedDpEvent", "SelfComposedDpEvent"}
    return sorted(
        around | {leaf.name for leaf, _ in leaves(given)} - {"GaussianDpEvent", "NoOpDpEvent"}
    )


def _names(given: object) -> set[str]:
    """The classes of all events that have events inside."""
    event = event_of(given)
    below: set[str] = set().union(*(_names(part) for part in _inside(event)))
    return below | {event.name} if _holds_events(event) else below


# --- composition ---------------------------------------------------------------------------------
def _repeated(event: Event, neighbours: Adjacency) -> Any:
    """A sampled step repeated is a run of so many steps."""
    inner, count = process_of(event["event"], neighbours), check_count(event["count"], "count")
    return _of_users([inner], lambda parts: _many(event, parts[0], count))


def _many(event: Event, inner: Process, count: int) -> Any:
    if _is_step(event["event"]) and isinstance(inner, NoisySGD):
        return replace(inner, steps=inner.steps * count)
    return Repeated(inner, count)


def _is_step(given: object) -> bool:
    return event_of(given).name in (*_SAMPLED, "MixtureOfGaussiansDpEvent")


def _of_users(parts: list[Any], make: Callable[[list[Any]], Any]) -> Any:
    """The records of one user are said of the whole: all parts must have as many."""
    sizes = {part.records if isinstance(part, UserLevel) else 1 for part in parts}
    if len(sizes) > 1:
        raise DoesNotApply(
            f"These events protect users with different numbers of records ({sorted(sizes)}), so "
            "they cannot be accounted for together. Read them one by one."
        )
    runs = [part.run if isinstance(part, UserLevel) else part for part in parts]
    size = sizes.pop()
    return make(runs) if size == 1 else UserLevel(make(runs), size)


def _composed(event: Event, neighbours: Adjacency) -> Any:
    """Single Poisson steps of one rate are a schedule of noises."""
    parts = [part for part in event["events"] if event_of(part).name != "NoOpDpEvent"]
    found = [process_of(part, neighbours) for part in parts]
    if not found:
        return releases.nothing(event, neighbours)
    return _of_users(found, lambda runs: _in_order(parts, runs, neighbours))


def _in_order(parts: list[Any], found: list[Any], neighbours: Adjacency) -> Any:
    steps = [p for p in found if isinstance(p, NoisySGD)]
    bare = all(event_of(part).name == "PoissonSampledDpEvent" for part in parts)
    one_way = len(steps) == len(found) and len({step.sampling for step in steps}) == 1
    if bare and one_way and neighbours is not Adjacency.REPLACE_ONE:
        noises = tuple(step.noise_multiplier for step in steps)
        return NoiseSchedule(steps[0].sampling, noises, neighbours)
    return Sequence(tuple(found))


# --- what becomes of each event ------------------------------------------------------------------
_LATER = {
    "UnsupportedDpEvent": "UnsupportedDpEvent means that nothing is known about the event.",
    "SampledWithReplacementDpEvent": (
        "No accountant, theirs included, covers batches drawn with replacement. Draw them "
        "without replacement, or by Poisson sampling."
    ),
}


def _refused(why: str, event: Event, neighbours: Adjacency) -> Any:
    raise DoesNotApply(_LATER[why])


_READERS: dict[str, Reader] = {
    "NoOpDpEvent": releases.nothing,
    "NonPrivateDpEvent": releases.not_private,
    "UnsupportedDpEvent": partial(_refused, "UnsupportedDpEvent"),
    "GaussianDpEvent": releases.gaussian,
    "LaplaceDpEvent": releases.laplace,
    "DiscreteLaplaceDpEvent": releases.discrete_laplace,
    "DiscreteGaussianDpEvent": releases.discrete_gaussian,
    "RandomizedResponseDpEvent": releases.randomized_response,
    "ExponentialMechanismDpEvent": releases.exponential,
    "PermuteAndFlipDpEvent": releases.permute_and_flip,
    "EpsilonDeltaDpEvent": releases.approx,
    "ZCDpEvent": releases.concentrated,
    "MixtureOfGaussiansDpEvent": releases.mixture,
    "ComposedDpEvent": _composed,
    "SelfComposedDpEvent": _repeated,
    "PoissonSampledDpEvent": _poisson,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "SampledWithReplacementDpEvent": partial(_refused, "SampledWithReplacementDpEvent"),
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "RandomAllocationDpEvent": _allocation,
    "SingleEpochTreeAggregationDpEvent": releases.tree,
    "RepeatAndSelectDpEvent": _selection,
}
