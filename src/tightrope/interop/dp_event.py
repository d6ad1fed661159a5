"""Events of dp_accounting as processes. The table at the end says what becomes of each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.approx.simple import amplified
from tightrope.interop.events import Event, event_of
from tightrope.interop.reading import Neighbours
from tightrope.process import (
    AbstractSampling,
    Adjacency,
    BallsInBinsSampling,
    DeclaredApproxDP,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    DiscreteGaussianVector,
    DiscreteLaplaceMechanism,
    ExponentialMechanism,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoiseSchedule,
    NoisySGD,
    PermuteAndFlip,
    PoissonSampling,
    PoissonSelection,
    RandomAllocationSampling,
    RandomizedResponse,
    Repeated,
    SampledRelease,
    Sequence,
    TreeAggregation,
    TruncatedPoissonSampling,
    UserLevel,
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

_UP = 1.0 + 4e-12  # weights of a mixture are binomial ones up to rounding, 1e-12
_DOWN = 1.0 - 1e-14  # more than what a few roundings can add to a noise
_SAMPLED = (
    "PoissonSampledDpEvent",
    "SampledWithoutReplacementDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
    "RandomAllocationDpEvent",
)
_NUMBERS = ("LaplaceDpEvent", "DiscreteLaplaceDpEvent", "DiscreteGaussianDpEvent")

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


def _discrete_laplace(event: Event, neighbours: Neighbours) -> Any:
    """A replaced record moves the number by two sensitivities."""
    decay = float(check_non_negative(event["noise_parameter"], "noise_parameter"))
    reach = check_count(event["sensitivity"], "sensitivity", low=1)
    if decay == 0.0:  # endless noise
        return _nothing(event, neighbours)
    moved = 2 * reach if neighbours is Neighbours.REPLACE_ONE else reach
    return DiscreteLaplaceMechanism(decay, moved, neighbours.adjacency)


def _discrete_gaussian(event: Event, neighbours: Neighbours) -> Any:
    """One number, several, or an unknown number of them: the last as the zCDP that they have."""
    sigma, moved, numbers = event["sigma"], event["sensitivity"], event["dimension"]
    if numbers == 1:
        whole = check_count(moved, "sensitivity", low=1)
        return DiscreteGaussianMechanism(sigma, whole, neighbours.adjacency)
    if numbers is not None:
        return DiscreteGaussianVector(sigma, moved, numbers, neighbours.adjacency)
    rho = check_positive(moved, "sensitivity") ** 2 / (2.0 * check_positive(sigma, "sigma") ** 2)
    return DeclaredZeroConcentrated(rho / _DOWN, neighbours.adjacency)


def _exponential(event: Event, neighbours: Neighbours) -> Any:
    return ExponentialMechanism(event["epsilon"], neighbours.adjacency)


def _permute_and_flip(event: Event, neighbours: Neighbours) -> Any:
    return PermuteAndFlip(event["epsilon"], neighbours.adjacency)


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
    return DeclaredZeroConcentrated(event["rho"], neighbours.adjacency, event["xi"])


def _tree(event: Event, neighbours: Neighbours) -> Any:
    """Several trees of one pass: a record is in one of them, at worst in the deepest."""
    if neighbours is not Neighbours.ZERO_OUT:
        raise DoesNotApply(
            f"A tree keeps its shape only if a record is replaced by a zero one; got "
            f"{neighbours.value}. Say REPLACE_SPECIAL (zero-out), as dp_accounting must."
        )
    counts = event["step_counts"]
    counts = counts if isinstance(counts, list | tuple) else [counts]
    largest = max((check_count(n, "step_counts", low=1) for n in counts), default=1)
    return TreeAggregation(event["noise_multiplier"], largest, neighbours.adjacency)


def _mixture(event: Event, neighbours: Neighbours) -> Any:
    """Binomial weights on 0, 1, ... sensitivities: the records of one user on a Poisson sample."""
    noise = check_positive(event["standard_deviation"], "standard_deviation")
    steps, chances = _listed(event, "sensitivities"), _listed(event, "sampling_probs")
    size, unit = len(steps) - 1, max(steps, default=0.0) / max(len(steps) - 1, 1)
    rate = math.fsum(k * p for k, p in enumerate(chances)) / max(size, 1)
    expected = [math.comb(size, k) * rate**k * (1.0 - rate) ** (size - k) for k in range(size + 1)]
    alike = len(chances) == len(steps) and all(
        math.isclose(k * unit, step, rel_tol=1e-12, abs_tol=0.0)
        and math.isclose(chance, p, rel_tol=1e-12, abs_tol=0.0)
        for k, (step, chance, p) in enumerate(zip(steps, chances, expected, strict=False))
    )
    if size < 1 or not alike or neighbours is Neighbours.REPLACE_ONE:
        raise DoesNotApply(_LATER["MixtureOfGaussiansDpEvent"])
    run = NoisySGD(PoissonSampling(min(rate * _UP, 1.0)), noise / unit * _DOWN, 1)
    return run if size == 1 else UserLevel(run, size)


def _listed(event: Event, field: str) -> list[float]:
    return [float(check_non_negative(value, field)) for value in event[field]]


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
    """Gaussian noise as a step, single numbers exactly; else what sampling leaves of epsilon."""
    inner = event_of(event["event"])
    fixed = isinstance(sampling, FixedSizeSampling)
    if not fixed and inner.name in _NUMBERS and _is_one_number(inner):
        release = _READERS[inner.name](inner, Neighbours.ADD_OR_REMOVE)
        return SampledRelease(release, sampling.rate, neighbours.adjacency)
    pair = _epsilon_delta(inner, neighbours)
    if pair is not None and neighbours is amplifies_under:
        left = amplified(*pair, sampling.rate, neighbours.adjacency, fixed_size=fixed)
        return DeclaredApproxDP(*left, neighbours.adjacency)
    how = FullBatch() if sampling.rate == 1.0 else sampling
    return NoisySGD(how, _one_gaussian(event), 1, neighbours.adjacency)


def _is_one_number(inner: Event) -> bool:
    """Noise on one number that is not endless."""
    if inner.name == "DiscreteGaussianDpEvent":
        return bool(inner["dimension"] == 1)
    return inner.name != "DiscreteLaplaceDpEvent" or bool(inner["noise_parameter"] != 0)


def _truncated(event: Event, neighbours: Neighbours) -> Any:
    """Under zero-out neighbours the bound for a removed record holds a fortiori."""
    how = TruncatedPoissonSampling(
        event["sampling_probability"], event["truncated_batch_size"], event["dataset_size"]
    )
    return NoisySGD(how, event["noise_multiplier"], 1, neighbours.adjacency)


def _allocation(event: Event, neighbours: Neighbours) -> Any:
    batches = check_count(event["num_steps"], "num_steps", low=1)
    joins = event["num_selected"]
    sampling: AbstractSampling = BallsInBinsSampling(batches)
    if joins != 1:
        sampling = RandomAllocationSampling(batches, joins)
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
    return _of_users([inner], lambda parts: _many(event, parts[0], count))


def _many(event: Event, inner: Any, count: int) -> Any:
    if _is_step(event["event"]) and isinstance(inner, NoisySGD):
        return replace(inner, steps=inner.steps * count)
    return Repeated(inner, count)


def _is_step(given: Any) -> bool:
    return event_of(given).name in (*_SAMPLED, "MixtureOfGaussiansDpEvent")


def _of_users(parts: list[Any], make: Callable[[list[Any]], Any]) -> Any:
    """The records of one user are said of the whole: all parts must have as many."""
    sizes = {part.records if isinstance(part, UserLevel) else 1 for part in parts}
    if len(sizes) > 1:
        raise DoesNotApply(
            f"These events protect users of different numbers of records ({sorted(sizes)}), so "
            "they have no account together. Read them one by one."
        )
    runs = [part.run if isinstance(part, UserLevel) else part for part in parts]
    size = sizes.pop()
    return make(runs) if size == 1 else UserLevel(make(runs), size)


def _composed(event: Event, neighbours: Neighbours) -> Any:
    """Single Poisson steps of one rate are a schedule of noises."""
    parts = [part for part in event["events"] if event_of(part).name != "NoOpDpEvent"]
    found = [process_of(part, neighbours) for part in parts]
    if not found:
        return _nothing(event, neighbours)
    return _of_users(found, lambda runs: _in_order(parts, runs, neighbours))


def _in_order(parts: list[Any], found: list[Any], neighbours: Neighbours) -> Any:
    steps = [p for p in found if isinstance(p, NoisySGD)]
    bare = all(event_of(part).name == "PoissonSampledDpEvent" for part in parts)
    one_way = len(steps) == len(found) and len({step.sampling for step in steps}) == 1
    if bare and one_way and neighbours.adjacency is Adjacency.ADD_OR_REMOVE:
        return NoiseSchedule(steps[0].sampling, tuple(step.noise_multiplier for step in steps))
    return Sequence(tuple(found))


# --- what becomes of each event ------------------------------------------------------------------
_LATER = {
    "UnsupportedDpEvent": "UnsupportedDpEvent says itself that nothing is known about it.",
    "RepeatAndSelectDpEvent": (
        "The best of a random number of trials is read for Poisson(mean) trials (shape infinity) "
        "of Gaussian releases. Account other shapes by a declared release."
    ),
    "MixtureOfGaussiansDpEvent": (
        "Mixtures of Gaussians are read where they are those of several records of one person on a "
        "Poisson sample: sensitivities 0, c, 2c, ..., binomial weights, add-or-remove or zero-out "
        "neighbours. Other mixtures are not a process of Tightrope."
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
    "DiscreteLaplaceDpEvent": _discrete_laplace,
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "RandomizedResponseDpEvent": _randomized_response,
    "ExponentialMechanismDpEvent": _exponential,
    "PermuteAndFlipDpEvent": _permute_and_flip,
    "EpsilonDeltaDpEvent": _approx,
    "ZCDpEvent": _concentrated,
    "MixtureOfGaussiansDpEvent": _mixture,
    "ComposedDpEvent": _composed,
    "SelfComposedDpEvent": _repeated,
    "PoissonSampledDpEvent": _poisson,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "SampledWithReplacementDpEvent": partial(_refused, "SampledWithReplacementDpEvent"),
    "TruncatedSubsampledGaussianDpEvent": _truncated,
    "RandomAllocationDpEvent": _allocation,
    "SingleEpochTreeAggregationDpEvent": _tree,
    "RepeatAndSelectDpEvent": _selection,
}
