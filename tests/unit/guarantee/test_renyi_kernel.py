"""The kernel and the binary divergence against many digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from tightrope.guarantee.renyi.kernel import (
    gamma_of_log_chi,
    log_chi,
    log_chi_of_gamma,
    log_chi_slack,
    log_expm1,
    log_kernel,
    softplus,
)
from tightrope.guarantee.renyi.optimal import divergence_bounds, log_odds_bounds
from tightrope.numerics.rounding import ULP


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


# ---- logarithms of chi divergences against 400 digits: stated roundings hold, for every order
ORDERS_LESS_ONE = [1e-200, 1e-12, 1e-6, 1e-3, 0.5, 3.0, 1e3, 1e6]
POINTS = 300


def digits(values):
    return [mpmath.mpf(float(value)) for value in values]


@pytest.fixture(autouse=True)
def _exact():
    with mpmath.workdps(400):
        yield


@pytest.mark.parametrize("z", ORDERS_LESS_ONE)
def test_chi_of_gamma(z):
    """Where ln z is taken apart, a small z leaves an error of ulp |ln z|: 150 of these ulp."""
    gamma = 10.0 ** np.random.default_rng(0).uniform(-8.0, 3.0, POINTS)
    found = log_chi_of_gamma(gamma, np.full(POINTS, z))
    for value, level in zip(found, digits(gamma), strict=True):
        truth = mpmath.log(mpmath.expm1(mpmath.mpf(z) * level) / mpmath.mpf(z))
        assert abs(value - truth) <= 4 * ULP * (1 + z * level + abs(truth))


@pytest.mark.parametrize("z", ORDERS_LESS_ONE)
def test_gamma_of_chi(z):
    value = np.random.default_rng(1).uniform(-600.0, 900.0, POINTS)
    found = gamma_of_log_chi(value, np.full(POINTS, z))
    for gamma, log in zip(found, digits(value), strict=True):
        truth = mpmath.log1p(mpmath.mpf(z) * mpmath.exp(log)) / mpmath.mpf(z)
        assert abs(gamma - truth) <= 8 * ULP * truth


@pytest.mark.parametrize("z", ORDERS_LESS_ONE)
def test_numbers_at_the_ends(z):
    assert log_chi_of_gamma(np.array([0.0, np.inf]), np.array([z, z])).tolist() == [-np.inf, np.inf]
    assert gamma_of_log_chi(np.array([-np.inf, np.inf]), np.array([z, z])).tolist() == [0.0, np.inf]
    finite = np.array([1e300, min(300.0 / z, 1e300)])
    assert np.isfinite(log_chi_of_gamma(finite, np.array([z, z]))).all()


@pytest.mark.parametrize("z", ORDERS_LESS_ONE)
def test_chi_of_a_pair_is_within_its_slack(z):
    draw = np.random.default_rng(2)
    q = 10.0 ** draw.uniform(-6.0, -0.1, POINTS)
    p = q + (1.0 - q) * draw.uniform(0.01, 0.99, POINTS)
    pairs = list(zip(digits(p), digits(q), strict=True))
    u = np.array([float(mpmath.log(a / b)) for a, b in pairs])
    v = np.array([float(mpmath.log((1 - a) / (1 - b))) for a, b in pairs])
    order = np.full(POINTS, z)
    found = log_chi(np.log(p), u, np.log1p(-q), v, order)
    slack = log_chi_slack(np.log(p), u, order, found)
    z_exact = mpmath.mpf(z)

    def kernel(x):
        return (x ** (1 + z_exact) - 1 - (1 + z_exact) * (x - 1)) / z_exact

    for value, room, (a, b) in zip(found, slack, pairs, strict=True):
        truth = mpmath.log(b * kernel(a / b) + (1 - b) * kernel((1 - a) / (1 - b)))
        assert abs(value - truth) <= room
