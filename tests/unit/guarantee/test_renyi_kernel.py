"""The kernel and the binary divergence against many digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from tightrope.guarantee.renyi.kernel import log_expm1, log_kernel, softplus
from tightrope.guarantee.renyi.optimal import divergence_bounds, log_odds_bounds

ULP = 2.0**-52


def exact_log_kernel(t, z):
    """ln((x^(1+z) - 1 - (1+z)(x-1))/z) - max(t, 0) at enough digits for the cancellation."""
    with mpmath.workdps(90):
        t, z = mpmath.mpf(t), mpmath.mpf(z)
        value = (mpmath.exp((1 + z) * t) - 1 - (1 + z) * mpmath.expm1(t)) / z
        return mpmath.log(value) - max(t, 0)


@pytest.mark.parametrize("seed", range(4))
def test_log_kernel_keeps_its_digits(seed):
    rng = np.random.default_rng(seed)
    z = 10.0 ** rng.uniform(-9, 5, 100)
    t = rng.choice([-1, 1], 100) * 10.0 ** rng.uniform(-20, 1, 100)
    t[::2] /= np.maximum(1.0, z[::2])
    for ti, zi, found in zip(t, z, log_kernel(t, z), strict=True):
        if zi * ti > 1000:
            continue
        allowed = 4 * ULP * (1 + abs(found) + zi * max(ti, 0))
        assert abs(found - exact_log_kernel(ti, zi)) <= allowed


def test_helpers_at_their_ends():
    assert log_kernel(np.array([0.0]), np.array([1.0]))[0] == -np.inf
    assert log_expm1(np.array([0.0]))[0] == -np.inf
    assert log_expm1(np.array([1e6]))[0] == 1e6
    assert softplus(np.array([-800.0]))[0] == 0.0
    assert softplus(np.array([800.0]))[0] == 800.0


def test_log_odds_invert_randomised_response():
    rng = np.random.default_rng(5)
    z, U = 10.0 ** rng.uniform(-9, 9, 500), 10.0 ** rng.uniform(-8, 3, 500)
    gamma = divergence_bounds(U, z)
    assert np.all(gamma.lower <= gamma.upper) and np.all(gamma.upper <= U)
    assert np.all(log_odds_bounds(gamma.lower, z).lower <= U)
    assert np.all(log_odds_bounds(gamma.upper, z).upper >= U)
    found = log_odds_bounds(gamma.upper, z)
    assert np.all(found.upper - found.lower <= 1e-12 * U)


def test_log_odds_of_nothing_and_of_everything():
    z = np.array([1.0, 1.0])
    found = log_odds_bounds(np.array([0.0, np.inf]), z)
    assert found.lower.tolist() == found.upper.tolist() == [0.0, np.inf]
