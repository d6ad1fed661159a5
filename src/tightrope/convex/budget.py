"""The least noise for a budget, taken from the certified account of what will run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise
from tightrope.convex.problem import Problem
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee import gaussian
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.numerics.roots import crossing
from tightrope.process import NoisySGD
from tightrope.validate import check_delta, check_positive

_LARGEST_NOISE, _SMALLEST_NOISE = 1e12, 1e-6


@final
@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) for the whole fit."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive(self.epsilon, "epsilon"))
        object.__setattr__(self, "delta", check_delta(self.delta))
        if not 0.0 < self.delta < 1.0:
            raise InvalidInput(
                f"delta must lie strictly between 0 and 1; got {self.delta!r}. Gaussian noise "
                "cannot reach 0. Choose one well below 1/(number of people)."
            )

    @property
    def mu(self) -> float:
        """The Gaussian DP parameter that spends this budget."""
        return float(gaussian.mu(self.epsilon, self.delta))

    def met_by(self, guarantee: Guarantee) -> bool:
        return guarantee.delta(self.epsilon).upper <= self.delta


def calibrated(algorithm: Any, problem: Any, budget: Budget) -> tuple[Any, Guarantee]:
    """The algorithm with the least noise that meets the budget, and its guarantee."""
    unit = account(algorithm.with_noise(1.0).process(problem)).guarantee(budget.delta)
    if isinstance(unit, GaussianGuarantee):
        # every Gaussian DP bound of this package is a constant divided by the noise
        if math.isinf(unit.mu):
            raise NotCertified("No finite privacy loss is known for this process at any noise.")
        noise = unit.mu / budget.mu
    else:
        noise = _searched_noise(algorithm, problem, budget)
    for nudge in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):
        ready = algorithm.with_noise(noise * (1.0 + nudge))
        guarantee = account(ready.process(problem)).guarantee(budget.delta)
        if budget.met_by(guarantee):
            return ready, guarantee
    raise NotCertified(
        f"No noise was certified for epsilon {budget.epsilon:g} at delta {budget.delta:g} with "
        f"{type(algorithm).__name__}; choose algorithm='descent'."
    )


def _searched_noise(algorithm: Any, problem: Problem, budget: Budget) -> float:
    target = Target.approx_dp(budget.epsilon, budget.delta)
    process = algorithm.process(problem)
    if isinstance(process, NoisySGD):
        return float(find_noise(process, target).value)

    def excess(noise: float) -> float:
        described = algorithm.with_noise(noise).process(problem)
        return target.excess(account(described).guarantee(budget.delta))

    guess = problem.moved / budget.mu
    found = crossing(excess, guess, smallest=_SMALLEST_NOISE, largest=_LARGEST_NOISE)
    return float(found.below)
