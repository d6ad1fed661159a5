"""Question Two: how many Gaussian steps, or how little noise, for a given (epsilon, delta)?

Statement: with unit sensitivity the loss depends on steps and noise through rho T = T/(2 s^2) only.
    Each analysis promises eps(rho T, delta), which increases in rho T: the largest T and the
    smallest s are read off the largest rho T that is still allowed. `exact` is Gaussian DP with
    mu = sqrt(2 rho T), which is the truth for Gaussian composition.
Conditions: epsilon > 0, 0 < delta < 1, noise_multiplier > 0, steps >= 1.
Validity: bound (classical, improved), exact (exact).
Source: Section IV of arXiv:2008.06529.
Error: the allowed rho T is rounded downwards; it is checked by evaluating the analysis there.
Vectors: T at epsilon 4: 238, 298, 342 (noise 20, delta 1e-5); see tests/golden/renyi.json.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tightrope.errors import NotCertified
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_positive
from tightrope_reproduce.formulas import moments_accountant
from tightrope_reproduce.formulas.improved_moments_accountant import epsilon_of_rate
from tightrope_reproduce.formulas.moments_accountant import checked_inner_delta

__all__ = ["Answers", "largest_steps", "smallest_noise_multiplier"]


class Answers(NamedTuple):
    """The same question answered by three analyses."""

    classical: float
    improved: float
    exact: float


def largest_steps(epsilon: float, delta: float, noise_multiplier: float) -> Answers:
    """The most steps of this noise within (epsilon, delta), by each analysis."""
    s = check_positive(noise_multiplier, "noise_multiplier")
    rates = _allowed_rates(epsilon, delta)
    return Answers(*(math.floor(2.0 * s * s * rate * (1.0 - 8.0 * ULP)) for rate in rates))


def smallest_noise_multiplier(epsilon: float, delta: float, steps: float) -> Answers:
    """The least noise for this many steps within (epsilon, delta), by each analysis."""
    t = check_positive(steps, "steps")
    rates = _allowed_rates(epsilon, delta)
    return Answers(*(math.sqrt(0.5 * t / rate) * (1.0 + 8.0 * ULP) for rate in rates))


def _allowed_rates(epsilon: float, delta: float) -> Answers:
    """The largest rho T that each analysis allows, rounded downwards."""
    from tightrope.guarantee import gaussian as profile

    eps, d = check_positive(epsilon, "epsilon"), checked_inner_delta(delta)
    noise = moments_accountant.noise_multiplier(eps, d, 1.0)
    mu = profile.mu_bounds(eps, d)[0]
    return Answers(
        classical=0.5 / (noise * noise) * (1.0 - 8.0 * ULP),
        improved=_improved_rate(eps, d, 0.5 * mu * mu),
        exact=0.5 * mu * mu * (1.0 - 8.0 * ULP),
    )


def _improved_rate(eps: float, delta: float, high: float) -> float:
    """The largest rho T with Lemma 2 at most eps; the truth `high` is never exceeded."""
    low, d = high / 16.0, np.full(32, delta)
    while epsilon_of_rate(np.array([low]), d[:1])[0] > eps:
        low /= 16.0
        if low < 1e-290:
            raise NotCertified(
                f"Lemma 2 allows no measurable number of steps at epsilon={eps:g} and "
                f"delta={delta:g}. Ask for a larger epsilon."
            )
    for _ in range(12):  # each round divides the bracket by 31
        grid = np.linspace(low, high, 32)
        allowed = np.flatnonzero(epsilon_of_rate(grid, d) <= eps)
        last = int(allowed[-1]) if allowed.size else 0
        low, high = grid[last], grid[min(last + 1, 31)]
    return float(low)
