"""A profile known by bounds at some epsilons becomes a pair that is nowhere below the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope import GaussianMechanism, account, compose
from tightrope.guarantee.gaussian import delta_bounds
from tightrope.guarantee.kinds.profile import ProfileGuarantee, _convex_below, pair_above


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [0.001, 0.05, 1.0])
def test_the_convex_function_lies_between_the_truth_and_its_bounds(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = scale * np.cumsum(rng.exponential(size=50))
    truth = np.maximum(0.0, 1.0 - x / x[-1]) ** 2  # convex, falling
    bounds = truth + rng.exponential(scale=0.1, size=50) * (rng.random(50) < 0.7)
    kept = _convex_below(x, bounds - np.maximum(1.0 - x, 0.0))
    found = np.interp(x, x[kept], bounds[kept])
    assert np.all(found >= truth * (1 - 1e-14)) and np.all(found <= bounds * (1 + 1e-14))
    assert np.all(np.diff(np.diff(found) / np.diff(x)) >= -1e-12 / scale)
    touched = np.isclose(found, bounds, rtol=1e-12)
    assert touched[0] and touched[-1]  # it is the largest one


@pytest.mark.parametrize("top", [5.0, 60.0, 400.0])
def test_a_grid_that_reaches_far_loses_no_mass(top: float) -> None:
    """Near e^-60 a profile is 1 less rounding: slopes there once made a tenth of it infinite."""
    mu, grid = 0.5, np.concatenate([np.linspace(0.0, 5.0, 1001), np.linspace(5.01, top, 200)])
    pair = pair_above(*(2 * [lambda epsilon: delta_bounds(epsilon, mu).upper]), grid)
    assert pair.infinite_mass < delta_bounds(5.0, mu).upper + 1e-14
    for epsilon in (0.0, 0.1, 1.0, 2.5):
        found, true = math.exp(pair.log_delta_single(epsilon).upper), delta_bounds(epsilon, mu)
        assert true.lower <= found <= true.upper * (1 + 1e-3) + 1e-14


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_bounds_that_are_no_profile_compose_above_the_truth(mu: float) -> None:
    """Loose around epsilon 0, where a bound may be 1, and close where it matters."""

    def bound(epsilon: float) -> float:
        return min(1.0, delta_bounds(epsilon, mu).upper * (1.0 + 3.0 * math.exp(-8.0 * epsilon)))

    loose = ProfileGuarantee(bound)
    other = account(GaussianMechanism(2.0)).guarantee(1e-5)
    found = compose([loose, other]).epsilon(1e-5).upper
    truth = account(GaussianMechanism(1.0 / math.hypot(mu, 0.5))).epsilon(1e-5).lower
    assert truth <= found <= 1.05 * truth
