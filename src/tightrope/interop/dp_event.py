"""Events of dp_accounting as processes. The table at the end says what becomes of each of them.

An event is plain data, in whichever form it comes; nothing of dp_accounting is imported.

    {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": {...}}

That is a named tuple of theirs by `_asdict()`; the same tuple written as a JSON list (module name,
class name, fields in order), live events and live named tuples are read, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.approx import amplified
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
    MixtureOfGaussians,
    NegativeBinomialSelection,
    NoiseSchedule,
    NoisySGD,
    PermuteAndFlip,
    PoissonSampling,
    PoissonSelection,
    RandomAllocationSampling,
    RandomizedResponse,
    RepeatAndSelect,
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

# Every event of dp_accounting's main branch in 2026, with its fields; version 0.6 has fewer.
FIELDS: dict[str, tuple[str, ...]] = {
    "NoOpDpEvent": (),
    "NonPrivateDpEvent": (),
    "UnsupportedDpEvent": (),
    "GaussianDpEvent": ("noise_multiplier",),
    "LaplaceDpEvent": ("noise_multiplier",),
    "DiscreteLaplaceDpEvent": ("noise_parameter", "sensitivity"),
    "DiscreteGaussianDpEvent": ("sigma", "sensitivity", "dimension"),
    "RandomizedResponseDpEvent": ("noise_parameter", "num_buckets"),
    "ExponentialMechanismDpEvent": ("epsilon",),
    "PermuteAndFlipDpEvent": ("epsilon",),
    "EpsilonDeltaDpEvent": ("epsilon", "delta"),
    "ZCDpEvent": ("rho", "xi"),
    "MixtureOfGaussiansDpEvent": ("standard_deviation", "sensitivities", "sampling_probs"),
    "ComposedDpEvent": ("events",),
    "SelfComposedDpEvent": ("event", "count"),
    "PoissonSampledDpEvent": ("sampling_probability", "event"),
    "SampledWithoutReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "SampledWithReplacementDpEvent": ("source_dataset_size", "sample_size", "event"),
    "TruncatedSubsampledGaussianDpEvent": (
        "dataset_size",
        "sampling_probability",
        "truncated_batch_size",
        "noise_multiplier",
    ),
    "RandomAllocationDpEvent": ("event", "num_selected", "num_steps"),
    "SingleEpochTreeAggregationDpEvent": ("noise_multiplier", "step_counts"),
    "RepeatAndSelectDpEvent": ("event", "mean", "shape"),
}
_DEFAULTS = {"sensitivity": 1.0, "dimension": None, "xi": 0.0}


@final
@dataclass(frozen=True)
class Event:
    """One event: its class and its fields, inner events not yet read."""

    name: str
    values: Mapping[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.values[field]


def looks_like_event(given: object) -> bool:
    """Is this an event, whichever one it is?"""
    if isinstance(given, Mapping):
        return str(given.get("class_name", "")).endswith("DpEvent")
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        return len(given) > 1 and str(given[1]).endswith("DpEvent")
    return _class_of(given).endswith("DpEvent")


def event_of(given: object) -> Event:
    """The event in any of its forms."""
    if not looks_like_event(given):
        raise InvalidInput(
            f"An event of dp_accounting has its class with it, as in "
            f'{{"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}}; got {given!r:.80}. '
            "Write event.to_named_tuple()._asdict() for every event (attr.asdict loses the class)."
        )
    name, values = _parts(given)
    if name not in FIELDS:
        raise InvalidInput(
            f"{name} is an event of dp_accounting that is not known here. Known are "
            f"{', '.join(FIELDS)}."
        )
    found = {key: values[key] for key in FIELDS[name] if key in values}
    missing = [key for key in FIELDS[name] if key not in found and key not in _DEFAULTS]
    odd = sorted(set(values) - set(FIELDS[name]))
    if missing or odd:
        raise InvalidInput(
            f"{name} has the fields {', '.join(FIELDS[name]) or 'none'}; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(odd) or 'none'}."
        )
    if "events" in found and not isinstance(found["events"], list | tuple):
        raise InvalidInput(f"{name} holds a list of events; got {found['events']!r:.80}.")
    return Event(name, {**{key: _DEFAULTS.get(key) for key in FIELDS[name]}, **found})


def _parts(given: object) -> tuple[str, dict[str, Any]]:
    if isinstance(given, Mapping):
        values = {k: v for k, v in given.items() if k not in ("class_name", "module_name")}
        return str(given["class_name"]), values
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        name = str(given[1])
        return name, dict(zip(FIELDS.get(name, ()), given[2:], strict=False))
    name = _class_of(given)
    fields = [key for key in FIELDS.get(name, ()) if hasattr(given, key)]
    return name, {key: getattr(given, key) for key in fields}


def _class_of(given: object) -> str:
    """The class of a live event, or the one that a named tuple of theirs speaks of."""
    claim = getattr(given, "class_name", type(given).__name__)
    return claim.decode() if isinstance(claim, bytes) else str(claim)


_UP = 1.0 + 4e-12  # weights of a mixture are binomial ones up to rounding, 1e-12
DOWN = 1.0 - 1e-14  # more than what a few roundings can add to a noise


def moved_by(noise: float, neighbours: Adjacency) -> float:
    """Noise relative to the sensitivity; a replaced record moves a sum by two bounds."""
    return float(check_non_negative(noise, "noise_multiplier")) / neighbours.moved


def discrete_laplace(event: Event, neighbours: Adjacency) -> Any:
    """A replaced record moves the number by two sensitivities."""
    decay = float(check_non_negative(event["noise_parameter"], "noise_parameter"))
    reach = check_count(event["sensitivity"], "sensitivity", low=1)
    if decay == 0.0:  # endless noise
        return nothing(event, neighbours)
    return DiscreteLaplaceMechanism(decay, reach * int(neighbours.moved), neighbours)


def discrete_gaussian(event: Event, neighbours: Adjacency) -> Any:
    """One number, several, or an unknown number of them: the last as the zCDP that they have.

    The event calls `sensitivity` that of the function, and sigma / sensitivity a Gaussian's noise
    multiplier, which is relative to the bound on one record. The latter is the safe reading: a
    replaced record moves two of it.
    """
    sigma, numbers = event["sigma"], event["dimension"]
    moved = float(check_positive(event["sensitivity"], "sensitivity")) * neighbours.moved
    if numbers == 1:
        whole = check_count(moved, "sensitivity", low=1)
        return DiscreteGaussianMechanism(sigma, whole, neighbours)
    if numbers is not None:
        return DiscreteGaussianVector(sigma, moved, numbers, neighbours)
    rho = moved**2 / (2.0 * check_positive(sigma, "sigma") ** 2)
    return DeclaredZeroConcentrated(rho / DOWN, neighbours)


def randomized_response(event: Event, neighbours: Adjacency) -> Any:
    if neighbours not in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        raise DoesNotApply(
            f"Randomised response compares two answers of one person, or one with a null record's, "
            f"so it needs replace-one or zero-out neighbours; got {neighbours.value}. Say "
            "REPLACE_ONE or REPLACE_SPECIAL, as dp_accounting must."
        )
    return RandomizedResponse(event["noise_parameter"], event["num_buckets"], neighbours)


def epsilon_delta(event: Event, neighbours: Adjacency) -> tuple[float, float] | None:
    """(epsilon, delta) of one release, where a single pair is known."""
    if event.name == "EpsilonDeltaDpEvent":
        return check_epsilon(event["epsilon"]), check_delta(event["delta"])
    if event.name in ("ExponentialMechanismDpEvent", "PermuteAndFlipDpEvent"):
        return check_epsilon(event["epsilon"]), 0.0
    moved = neighbours.moved
    if event.name == "DiscreteLaplaceDpEvent":
        scale = check_non_negative(event["noise_parameter"], "noise_parameter")
        reach = check_count(event["sensitivity"], "sensitivity", low=1)
        return scale * reach * moved / DOWN, 0.0
    if event.name == "LaplaceDpEvent" and event["noise_multiplier"] != 0:
        return moved / (check_positive(event["noise_multiplier"], "noise_multiplier") * DOWN), 0.0
    return None


def tree(event: Event, neighbours: Adjacency) -> Any:
    """Several trees of one pass: a record is in one of them, at worst in the deepest."""
    if neighbours is not Adjacency.ZERO_OUT:
        raise DoesNotApply(
            f"A tree keeps its shape only if a record is replaced by a zero one; got "
            f"{neighbours.value}. Say REPLACE_SPECIAL (zero-out), as dp_accounting must."
        )
    counts = event["step_counts"]
    counts = counts if isinstance(counts, list | tuple) else [counts]
    largest = max((check_count(n, "step_counts", low=1) for n in counts), default=1)
    return TreeAggregation(event["noise_multiplier"], largest, neighbours)


def mixture(event: Event, neighbours: Adjacency) -> Any:
    """With binomial weights on 0, c, 2c, ...: the records of one user on a Poisson sample."""
    if neighbours not in (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT):
        raise DoesNotApply(
            f"A mixture of Gaussians says what a record that is added, removed or zeroed moves; "
            f"got {neighbours.value} neighbours. Say ADD_OR_REMOVE_ONE or REPLACE_SPECIAL."
        )
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
    if size < 1 or not alike:
        return MixtureOfGaussians(float(noise), tuple(steps), tuple(chances), neighbours)
    run = NoisySGD(PoissonSampling(min(rate * _UP, 1.0)), noise / unit * DOWN, 1, neighbours)
    return run if size == 1 else UserLevel(run, size)


def _listed(event: Event, field: str) -> list[float]:
    return [float(check_non_negative(value, field)) for value in event[field]]


def nothing(event: Event, neighbours: Adjacency) -> Any:
    return DeclaredApproxDP(0.0, 0.0, neighbours)


def not_private(event: Event, neighbours: Adjacency) -> Any:
    return GaussianMechanism(0.0, neighbours)


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
    noise = moved_by(_one_gaussian(event), neighbours)
    if noise == 0.0:
        return not_private(event, neighbours)
    mu = 1.0 / (noise * DOWN)
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
    pair = epsilon_delta(inner, neighbours)
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


def _allocation(event: Event, neighbours: Adjacency) -> Any:
    batches, joins = check_count(event["num_steps"], "num_steps", low=1), event["num_selected"]
    one = joins == 1
    sampling = BallsInBinsSampling(batches) if one else RandomAllocationSampling(batches, joins)
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
    return DOWN / math.sqrt(math.fsum(count / noise**2 for noise, count in noises))


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
    step = event_of(event["event"]).name in (*_SAMPLED, "MixtureOfGaussiansDpEvent")

    def many(parts: list[Any]) -> Any:
        if step and isinstance(parts[0], NoisySGD):
            return replace(parts[0], steps=parts[0].steps * count)
        return Repeated(parts[0], count)

    return _of_users([inner], many)


def _of_users(parts: list[Any], make: Callable[[list[Any]], Any]) -> Any:
    """The records of one user belong to the whole: all parts must have as many."""
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
        return nothing(event, neighbours)
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
_UNKNOWN = "UnsupportedDpEvent means that nothing is known about the event."
_REPLACED = (
    "No accountant, theirs included, covers batches drawn with replacement. Draw them without "
    "replacement, or by Poisson sampling."
)


def _refused(why: str, event: Event, neighbours: Adjacency) -> Any:
    raise DoesNotApply(why)


_READERS: dict[str, Reader] = {
    "NoOpDpEvent": nothing,
    "NonPrivateDpEvent": not_private,
    "UnsupportedDpEvent": partial(_refused, _UNKNOWN),
    "GaussianDpEvent": lambda e, who: GaussianMechanism(moved_by(e["noise_multiplier"], who), who),
    "LaplaceDpEvent": lambda e, who: LaplaceMechanism(moved_by(e["noise_multiplier"], who), who),
    "DiscreteLaplaceDpEvent": discrete_laplace,
    "DiscreteGaussianDpEvent": discrete_gaussian,
    "RandomizedResponseDpEvent": randomized_response,
    "ExponentialMechanismDpEvent": lambda e, who: ExponentialMechanism(e["epsilon"], who),
    "PermuteAndFlipDpEvent": lambda e, who: PermuteAndFlip(e["epsilon"], who),
    "EpsilonDeltaDpEvent": lambda e, who: DeclaredApproxDP(e["epsilon"], e["delta"], who),
    "ZCDpEvent": lambda e, who: DeclaredZeroConcentrated(e["rho"], who, e["xi"]),
    "MixtureOfGaussiansDpEvent": mixture,
    "ComposedDpEvent": _composed,
    "SelfComposedDpEvent": _repeated,
    "PoissonSampledDpEvent": _poisson,
    "SampledWithoutReplacementDpEvent": _without_replacement,
    "SampledWithReplacementDpEvent": partial(_refused, _REPLACED),
    "TruncatedSubsampledGaussianDpEvent": lambda e, who: NoisySGD(
        TruncatedPoissonSampling(
            e["sampling_probability"], e["truncated_batch_size"], e["dataset_size"]
        ),
        e["noise_multiplier"],
        1,
        who,
    ),
    "RandomAllocationDpEvent": _allocation,
    "SingleEpochTreeAggregationDpEvent": tree,
    "RepeatAndSelectDpEvent": _selection,
}
