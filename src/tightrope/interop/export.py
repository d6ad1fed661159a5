"""Processes as events of dp_accounting: plain data, or its live objects if you hand it over."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any

from tightrope.errors import DoesNotApply
from tightrope.process import (
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
    NoiseSchedule,
    NoisySGD,
    PermuteAndFlip,
    PoissonSampling,
    Process,
    RandomAllocationSampling,
    RandomizedResponse,
    RepeatAndSelect,
    Repeated,
    SampledRelease,
    Sequence,
    TreeAggregation,
    TruncatedPoissonSampling,
)
from tightrope.process.sampling import AbstractSampling

_MODULE = "dp_accounting.dp_event"
_EPOCHS = (BallsInBinsSampling, RandomAllocationSampling)


def to_dp_event(process: Process, dp_event: ModuleType | None = None) -> Any:
    """The event for a process: `{"class_name": ..., ...}`, which `read` turns back into the same.

    dp_event: the module `dp_accounting.dp_event`, to get its objects in place of plain data. The
    neighbours are not part of an event: give an accountant the process's own.
    """
    for kind, write in _WRITERS.items():
        if isinstance(process, kind):
            data = write(process)
            return data if dp_event is None else _live(data, dp_event)
    raise DoesNotApply(
        f"There is no event for {type(process).__name__}. Events exist for "
        f"{', '.join(kind.__name__ for kind in _WRITERS)}; another process can be declared by the "
        "guarantee that `account` gives for it."
    )


def _live(data: object, dp_event: ModuleType) -> Any:
    if isinstance(data, list):
        return [_live(item, dp_event) for item in data]
    if not isinstance(data, dict):
        return data
    make = getattr(dp_event, data["class_name"], None)
    if make is None:
        raise DoesNotApply(
            f"This dp_accounting has no {data['class_name']}; install one that has, or take the "
            "event as plain data."
        )
    fields = {k: v for k, v in data.items() if k not in ("class_name", "module_name")}
    return make(**{key: _live(value, dp_event) for key, value in fields.items()})


def _event(name: str, **fields: Any) -> dict[str, Any]:
    return {"module_name": _MODULE, "class_name": name, **fields}


def _noise(process: Any) -> float:
    """Noise relative to the bound on one record, of which a replaced one moves two."""
    return float(process.noise_multiplier * process.adjacency.moved)


def _gaussian(noise: float) -> dict[str, Any]:
    return _event("GaussianDpEvent", noise_multiplier=noise)


def _step(sampling: AbstractSampling, noise: float) -> dict[str, Any]:
    """One draw of a batch with its release; the whole epoch where a record has one batch in it."""
    if isinstance(sampling, FullBatch | PoissonSampling):
        rate, inner = sampling.rate, _gaussian(noise)
        return _event("PoissonSampledDpEvent", sampling_probability=rate, event=inner)
    if isinstance(sampling, FixedSizeSampling):
        sizes = _sizes(sampling.rate)
        return _event("SampledWithoutReplacementDpEvent", **sizes, event=_gaussian(noise))
    if isinstance(sampling, TruncatedPoissonSampling):
        return _event(
            "TruncatedSubsampledGaussianDpEvent",
            dataset_size=sampling.dataset_size,
            sampling_probability=sampling.join_rate,
            truncated_batch_size=sampling.largest_batch,
            noise_multiplier=noise,
        )
    if isinstance(sampling, _EPOCHS):
        fields = {"num_selected": getattr(sampling, "joins", 1)}
        fields["num_steps"] = sampling.batches_per_epoch
        return _event("RandomAllocationDpEvent", event=_gaussian(noise), **fields)
    raise DoesNotApply(
        f"There is no event for {sampling}. dp_accounting knows Poisson batches, batches of fixed "
        "size and, in its main branch, one random batch an epoch."
    )


def _sizes(rate: float) -> dict[str, int]:
    """Whole numbers whose quotient is the rate, small ones where there are any."""
    found = Fraction(rate)
    for digits in range(1, 16):
        near = found.limit_denominator(10**digits)
        if near.numerator / near.denominator == rate:
            found = near
            break
    return {"source_dataset_size": found.denominator, "sample_size": found.numerator}


def _run(run: NoisySGD) -> dict[str, Any]:
    count, step = run.steps, _step(run.sampling, run.noise_multiplier)
    if isinstance(run.sampling, _EPOCHS):
        count, left = divmod(run.steps, run.sampling.batches_per_epoch)
        if left:
            raise DoesNotApply(f"There is no event for a part of an epoch; got {left} steps of it.")
    return _event("SelfComposedDpEvent", event=step, count=count)


def _of_one_record(release: DiscreteLaplaceMechanism | DiscreteGaussianMechanism) -> int:
    """The sensitivity of an event is that to one record, of which a replaced one moves two."""
    parts, odd = divmod(release.sensitivity, int(release.adjacency.moved))
    if odd:
        raise DoesNotApply(
            f"The event's sensitivity is half of that to a replaced record; got {release}."
        )
    return parts


def _tree(release: TreeAggregation) -> dict[str, Any]:
    if release.adjacency is not Adjacency.ZERO_OUT:
        raise DoesNotApply(
            f"dp_accounting's tree keeps its shape under zero-out neighbours only; got {release}."
        )
    fields = {"noise_multiplier": release.noise_multiplier, "step_counts": release.leaves}
    return _event("SingleEpochTreeAggregationDpEvent", **fields)


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    NoisySGD: _run,
    NoiseSchedule: lambda p: _event(
        "ComposedDpEvent", events=[_step(p.sampling, noise) for noise in p.noise_multipliers]
    ),
    GaussianMechanism: lambda p: _gaussian(_noise(p)),
    LaplaceMechanism: lambda p: _event("LaplaceDpEvent", noise_multiplier=_noise(p)),
    DiscreteLaplaceMechanism: lambda p: _event(
        "DiscreteLaplaceDpEvent", noise_parameter=p.decay, sensitivity=_of_one_record(p)
    ),
    DiscreteGaussianMechanism: lambda p: _event(
        "DiscreteGaussianDpEvent", sigma=p.sigma, sensitivity=_of_one_record(p), dimension=1
    ),
    DiscreteGaussianVector: lambda p: _event(
        "DiscreteGaussianDpEvent",
        sigma=p.sigma,
        sensitivity=p.sensitivity / p.adjacency.moved,
        dimension=p.dimension,
    ),
    TreeAggregation: _tree,
    SampledRelease: lambda p: _event(
        "PoissonSampledDpEvent", sampling_probability=p.rate, event=to_dp_event(p.release)
    ),
    ExponentialMechanism: lambda p: _event("ExponentialMechanismDpEvent", epsilon=p.epsilon),
    PermuteAndFlip: lambda p: _event("PermuteAndFlipDpEvent", epsilon=p.epsilon),
    RandomizedResponse: lambda p: _event(
        "RandomizedResponseDpEvent", noise_parameter=p.flip, num_buckets=p.categories
    ),
    MixtureOfGaussians: lambda p: _event(
        "MixtureOfGaussiansDpEvent",
        standard_deviation=p.noise_std,
        sensitivities=list(p.sensitivities),
        sampling_probs=list(p.chances),
    ),
    RepeatAndSelect: lambda p: _event(
        "RepeatAndSelectDpEvent",
        event=to_dp_event(p.trial),
        mean=p.mean_trials,
        shape=math.inf if p.shape is None else p.shape,
    ),
    DeclaredApproxDP: lambda p: _event("EpsilonDeltaDpEvent", epsilon=p.epsilon, delta=p.delta),
    DeclaredZeroConcentrated: lambda p: _event("ZCDpEvent", rho=p.rho, xi=p.xi),
    Repeated: lambda p: _event("SelfComposedDpEvent", event=to_dp_event(p.inner), count=p.count),
    Sequence: lambda p: _event("ComposedDpEvent", events=[to_dp_event(part) for part in p.parts]),
}
