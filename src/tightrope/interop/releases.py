"""Single releases among the events of dp_accounting, as processes."""

from __future__ import annotations

import math
from typing import Any

from tightrope.errors import DoesNotApply
from tightrope.interop.events import Event
from tightrope.process import (
    Adjacency,
    DeclaredApproxDP,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    DiscreteGaussianVector,
    DiscreteLaplaceMechanism,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    MixtureOfGaussians,
    NoisySGD,
    PermuteAndFlip,
    PoissonSampling,
    RandomizedResponse,
    TreeAggregation,
    UserLevel,
)
from tightrope.validate import (
    check_count,
    check_delta,
    check_epsilon,
    check_non_negative,
    check_positive,
)

__all__ = ["DOWN", "epsilon_delta", "moved_by"]

_UP = 1.0 + 4e-12  # weights of a mixture are binomial ones up to rounding, 1e-12
DOWN = 1.0 - 1e-14  # more than what a few roundings can add to a noise


def moved_by(noise: float, neighbours: Adjacency) -> float:
    """Noise relative to the sensitivity; a replaced record moves a sum by two bounds."""
    return float(check_non_negative(noise, "noise_multiplier")) / neighbours.moved


def gaussian(event: Event, neighbours: Adjacency) -> Any:
    return GaussianMechanism(moved_by(event["noise_multiplier"], neighbours), neighbours)


def laplace(event: Event, neighbours: Adjacency) -> Any:
    return LaplaceMechanism(moved_by(event["noise_multiplier"], neighbours), neighbours)


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


def exponential(event: Event, neighbours: Adjacency) -> Any:
    return ExponentialMechanism(event["epsilon"], neighbours)


def permute_and_flip(event: Event, neighbours: Adjacency) -> Any:
    return PermuteAndFlip(event["epsilon"], neighbours)


def randomized_response(event: Event, neighbours: Adjacency) -> Any:
    if neighbours not in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        raise DoesNotApply(
            f"Randomised response compares two answers of one person, or one with a null record's, "
            f"so it needs replace-one or zero-out neighbours; got {neighbours.value}. Say "
            "REPLACE_ONE or REPLACE_SPECIAL, as dp_accounting must."
        )
    return RandomizedResponse(event["noise_parameter"], event["num_buckets"], neighbours)


def approx(event: Event, neighbours: Adjacency) -> Any:
    pair = epsilon_delta(event, neighbours)
    assert pair is not None
    return DeclaredApproxDP(*pair, neighbours)


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


def concentrated(event: Event, neighbours: Adjacency) -> Any:
    return DeclaredZeroConcentrated(event["rho"], neighbours, event["xi"])


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
