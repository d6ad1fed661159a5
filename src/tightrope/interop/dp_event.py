"""Events of dp_accounting as processes. The table at the end says what becomes of each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.approx.simple import amplified
from tightrope.interop.events import Event, event_of
from tightrope.interop.reading import Neighbours
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    DeclaredApproxDP,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    PoissonSelection,
    RandomizedResponse,
    Repeated,
    Sequence,
)
from tightrope.validate import (
    check_count,
    check_delta,
    check_epsilon,
    check_non_negative,
    check_positive,
    check_probability,
)

__all__ = ["process_of", "leaves"]

_DOWN = 1.0 - 1e-14  # more than what a few roundings can add to a noise
_SAMPLED = (
    "PoissonSampledDpEvent",
    "SampledWithoutReplacementDpEvent",
    "RandomAllocationDpEvent",
)

Reader = Callable[[Event, Neighbours], Any]


def process_of(given: Any, neighbours: Neighbours = Neighbours.ADD_OR_REMOVE) -> Any:
    """The process that an event describes; DoesNotApply where there is none (yet)."""
    event = event_of(given)
    return _READERS[event.name](event, neighbours)


def leaves(given: Any, times: int = 1) -> Iterator[tuple[Event, int]]:
    """Every event in a tree that has no event inside, and how often it is run."""
    event = event_of(given)
    count = times * event["count"] if event.name == "SelfComposedDpEvent" else times
    if not _holds_events(event):
        yield event, count
    for part in _inside(event):
        yield from leaves(part, count)


def _holds_events(event: Event) -> bool:
    return "event" in event.values or "events" in event.values


def _inside(event: Event) -> list[Any]:
    return [event["event"]] if "event" in event.values else list(event.values.get("events", ()))


# --- releases ------------------------------------------------------------------------------------
def _moved(noise: Any, neighbours: Neighbours) -> float:
    """Noise relative to the sensitivity; a replaced record moves a sum by two bounds."""
    found = float(check_non_negative(noise, "noise_multiplier"))
    return found / 2.0 if neighbours is Neighbours.REPLACE_ONE else found


def _gaussian(event: Event, neighbours: Neighbours) -> Any:
    return GaussianMechanism(_moved(event["noise_multiplier"], neighbours), neighbours.adjacency)


def _laplace(event: Event, neighbours: Neighbours) -> Any:
    return LaplaceMechanism(_moved(event["noise_multiplier"], neighbours), neighbours.adjacency)


def _discrete_gaussian(event: Event, neighbours: Neighbours) -> Any:
    """One number exactly; several as the zCDP they have (Canonne, Kamath, Steinke 2020, Prop 5)."""
    sigma, moved = event["sigma"], event["sensitivity"]
    if event["dimension"] == 1:
        whole = check_count(moved, "sensitivity", low=1)
        return DiscreteGaussianMechanism(sigma, whole, neighbours.adjacency)
    rho = check_positive(moved, "sensitivity") ** 2 / (2.0 * check_positive(sigma, "sigma") ** 2)
    return DeclaredZeroConcentrated(rho / _DOWN, neighbours.adjacency)


def _randomized_response(event: Event, neighbours: Neighbours) -> Any:
    if neighbours is not Neighbours.REPLACE_ONE:
        raise DoesNotApply(
            f"Randomised response compares two answers of one person, so it needs replace-one "
            f"neighbours; got {neighbours.value}. Say REPLACE_ONE, as dp_accounting must."
        )
    return RandomizedResponse(event["noise_parameter"], event["num_buckets"])


def _approx(event: Event, neighbours: Neighbours) -> Any:
    pair = _epsilon_delta(event, neighbours)
    assert pair is not None
    return DeclaredApproxDP(*pair, neighbours.adjacency)


def _epsilon_delta(event: Event, neighbours: Neighbours) -> tuple[float, float] | None:
    """(epsilon, delta) of one release, where a single pair is known."""
    if event.name == "EpsilonDeltaDpEvent":
        return check_epsilon(event["epsilon"]), check_delta(event["delta"])
    if event.name in ("ExponentialMechanismDpEvent", "PermuteAndFlipDpEvent"):
        return check_epsilon(event["epsilon"]), 0.0
    moved = 2.0 if neighbours is Neighbours.REPLACE_ONE else 1.0
    if event.name == "DiscreteLaplaceDpEvent":
        scale = check_non_negative(event["noise_parameter"], "noise_parameter")
        reach = check_count(event["sensitivity"], "sensitivity", low=1)
        return scale * reach * moved / _DOWN, 0.0
    if event.name == "LaplaceDpEvent" and event["noise_multiplier"] != 0:
        return moved / (check_positive(event["noise_multiplier"], "noise_multiplier") * _DOWN), 0.0
    return None


def _concentrated(event: Event, neighbours: Neighbours) -> Any:
    if event["xi"] != 0:
        raise DoesNotApply(_LATER["ZCDpEvent with xi above 0"])
    return DeclaredZeroConcentrated(event["rho"], neighbours.adjacency)


def _tree(event: Event, neighbours: Neighbours) -> Any:
    """Each record is in the nodes above one leaf: a Gaussian release of that many sums."""
    if neighbours is not Neighbours.ZERO_OUT:
        raise DoesNotApply(
            f"A tree keeps its shape only if a record is replaced by a zero one; got "
            f"{neighbours.value}. Say REPLACE_SPECIAL (zero-out), as dp_accounting must."
        )
    counts = event["step_counts"]
    counts = counts if isinstance(counts, list | tuple) else [counts]
    depth = max((check_count(n, "step_counts", low=1).bit_length() for n in counts), default=1)
    noise = float(check_non_negative(event["noise_multiplier"], "noise_multiplier"))
    return GaussianMechanism(noise / math.sqrt(depth) * _DOWN, neighbours.adjacency)


def _nothing(event: Event, neighbours: Neighbours) -> Any:
    return DeclaredApproxDP(0.0, 0.0, neighbours.adjacency)


def _not_private(event: Event, neighbours: Neighbours) -> Any:
    return GaussianMechanism(0.0, neighbours.adjacency)


def _selection(event: Event, neighbours: Neighbours) -> Any:
    if event["shape"] != math.inf:
        raise DoesNotApply(_LATER["RepeatAndSelectDpEvent"])
    noise = _moved(_one_gaussian(event), neighbours)
    if noise == 0.0:
        return _not_private(event, neighbours)
    return PoissonSelection(1.0 / (noise * _DOWN), event["mean"], neighbours.adjacency)


# --- sampling ------------------------------------------------------------------------------------
def _poisson(event: Event, neighbours: Neighbours) -> Any:
    rate = float(check_probability(event["sampling_probability"], "sampling_probability"))
    return _sampled(event, neighbours, PoissonSampling(rate), Neighbours.ADD_OR_REMOVE)


def _without_replacement(event: Event, neighbours: Neighbours) -> Any:
    if neighbours is not Neighbours.REPLACE_ONE:
        raise DoesNotApply(
            f"A batch of fixed size needs a dataset of fixed size, so a record can only be "
            f"replaced; got {neighbours.value} neighbours. Say REPLACE_ONE, as dp_accounting must."
        )
    size = check_count(event["source_dataset_size"], "source_dataset_size", low=1)
    batch = check_count(event["sample_size"], "sample_size")
    if batch > size:
        raise InvalidInput(f"A batch of {batch} cannot be drawn from {size} records.")
    return _sampled(event, neighbours, FixedSizeSampling(batch / size), Neighbours.REPLACE_ONE)


def _sampled(
    event: Event, neighbours: Neighbours, sampling: Any, amplifies_under: Neighbours
) -> Any:
    """Gaussian noise as a step; what is known by (epsilon, delta) alone by what sampling leaves."""
    inner = event_of(event["event"])
    pair = _epsilon_delta(inner, neighbours)
    if pair is not None and neighbours is amplifies_under:
        fixed = isinstance(sampling, FixedSizeSampling)
        left = amplified(*pair, sampling.rate, neighbours.adjacency, fixed_size=fixed)
        return DeclaredApproxDP(*left, neighbours.adjacency)
    how = FullBatch() if sampling.rate == 1.0 else sampling
    return NoisySGD(how, _one_gaussian(event), 1, neighbours.adjacency)


def _allocation(event: Event, neighbours: Neighbours) -> Any:
    if event["num_selected"] != 1:
        raise DoesNotApply(_LATER["RandomAllocationDpEvent with num_selected above 1"])
    batches = check_count(event["num_steps"], "num_steps", low=1)
    sampling = BallsInBinsSampling(batches)
    return NoisySGD(sampling, _one_gaussian(event), batches, neighbours.adjacency)


def _one_gaussian(event: Event) -> float:
    """The noise of the Gaussian that all releases on one batch are together: 1/noise^2 add up."""
    inner = list(leaves(event["event"]))
    around = _names(event["event"]) - {"ComposedDpEvent", "SelfComposedDpEvent"}
    odd = sorted(around | {leaf.name for leaf, _ in inner} - {"GaussianDpEvent", "NoOpDpEvent"})
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
    return _DOWN / math.sqrt(math.fsum(count / noise**2 for noise, count in noises))


def _names(given: Any) -> set[str]:
    """The classes of all events that have events inside."""
    event = event_of(given)
    below: set[str] = set().union(*(_names(part) for part in _inside(event)))
    return below | {event.name} if _holds_events(event) else below


# --- composition ---------------------------------------------------------------------------------
def _repeated(event: Event, neighbours: Neighbours) -> Any:
    """A sampled step repeated is a run of so many steps."""
    inner, count = process_of(event["event"], neighbours), check_count(event["count"], "count")
    if event_of(event["event"]).name in _SAMPLED and isinstance(inner, NoisySGD):
        steps = inner.steps * count
        return NoisySGD(inner.sampling, inner.noise_multiplier, steps, inner.adjacency)
    return Repeated(inner, count)


def _composed(event: Event, neighbours: Neighbours) -> Any:
    """Single Poisson steps of one rate are a schedule of noises."""
    parts = [part for part in event["events"] if event_of(part).name != "NoOpDpEvent"]
    found = [process_of(part, neighbours) for part in parts]
    if not found:
        return _nothing(event, neighbours)
    steps = [p for p in found if isinstance(p, NoisySGD)]
    bare = all(event_of(part).name == "PoissonSampledDpEvent" for part in parts)
    one_way = len(steps) == len(found) and len({step.sampling for step in steps}) == 1
    if bare and one_way and neighbours.adjacency is Adjacency.ADD_OR_REMOVE:
        return NoiseSchedule(steps[0].sampling, tuple(step.noise_multiplier for step in steps))
    return Sequence(tuple(found))


# --- what becomes of each event ------------------------------------------------------------------
_LATER = {
    "UnsupportedDpEvent": "UnsupportedDpEvent says itself that nothing is known about it.",
    "ZCDpEvent with xi above 0": (
        "zCDP with xi above 0 is not a process of Tightrope yet. Its Renyi divergences are known: "
        "declare them as DeclaredRenyi(orders, [xi + rho * order ...])."
    ),
    "RandomAllocationDpEvent with num_selected above 1": (
        "Random allocation to several of the steps is not a process of Tightrope yet. A bound: "
        "where num_selected divides num_steps, num_selected allocations to one of num_steps / "
        "num_selected steps each."
    ),
    "RepeatAndSelectDpEvent": (
        "The best of a random number of trials is read for Poisson(mean) trials (shape infinity) "
        "of Gaussian releases. Account other shapes by a declared release."
    ),
    "MixtureOfGaussiansDpEvent": (
        "Mixtures of Gaussians are not a process of Tightrope yet. For several records of one "
        "person, read the run as PoissonSampledDpEvent and ask for --group."
    ),
    "TruncatedSubsampledGaussianDpEvent": (
        "Poisson batches cut at a largest size are not a process of Tightrope yet, and the number "
        "of plain Poisson batches does not cover them."
    ),
    "SampledWithReplacementDpEvent": (
        "No accountant is known for batches drawn with replacement, theirs included. Draw them "
        "without replacement, or by Poisson sampling."
    ),
}


def _refused(why: str, event: Event, neighbours: Neighbours) -> Any:
    raise DoesNotApply(_LATER[why])


_READERS: dict[str, Reader] = {
    "NoOpDpEvent": _nothing,
    "NonPrivateDpEvent": _not_private,
    "UnsupportedDpEvent": partial(_refused, "UnsupportedDpEvent"),
    "GaussianDpEvent": _gaussian,
    "LaplaceDpEvent": _laplace,
    "DiscreteLaplaceDpEvent": _approx,
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "RandomizedResponseDpEvent": _randomized_response,
    "ExponentialMechanismDpEvent": _approx,
    "PermuteAndFlipDpEvent": _approx,
    "EpsilonDeltaDpEvent": _approx,
    "ZCDpEvent": _concentrated,
    "MixtureOfGaussiansDpEvent": partial(_refused, "MixtureOfGaussiansDpEvent"),
    "ComposedDpEvent": _composed,
    "SelfComposedDpEvent": _repeated,
    "PoissonSampledDpEvent": _poisson,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "SampledWithReplacementDpEvent": partial(_refused, "SampledWithReplacementDpEvent"),
    "TruncatedSubsampledGaussianDpEvent": partial(_refused, "TruncatedSubsampledGaussianDpEvent"),
    "RandomAllocationDpEvent": _allocation,
    "SingleEpochTreeAggregationDpEvent": _tree,
    "RepeatAndSelectDpEvent": _selection,
}
