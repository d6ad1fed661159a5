"""The Gaussian profile, its inverses and its trade-off function against 80-digit values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from mpmath import erfc, exp, log, mp, mpf, sqrt

from tightrope.accounting import account
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.gaussian import (
    compose_mu,
    group_mu,
)
from tightrope.process import GaussianMechanism
from tightrope_reproduce.formulas.gaussian_noise import analytic_noise, classical_noise

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tradeoff.json").read_text())


def cases(name: str) -> list[dict]:
    return [c for c in CASES if c["name"] == name]


def close(value: float, case: dict, key: str) -> bool:
    truth = mpf(case["outputs"][key])
    return abs(mpf(float(value)) - truth) <= mpf(case["rtol"]) * abs(truth)


def inside(bounds: tuple[float, float], case: dict, key: str) -> bool:
    truth = mpf(case["outputs"][key])
    # a decimal input that is no double moves the truth by its own rounding
    room = 0 if case["inputs"].get("binary") else mpf("1e-14") * abs(truth)
    return mpf(float(bounds[0])) - room <= truth <= mpf(float(bounds[1])) + room


@pytest.mark.parametrize("case", cases("gdp_delta"))
def test_delta_and_log_delta_to_1e_12(case):
    eps, mu = float(case["inputs"]["eps"]), float(case["inputs"]["mu"])
    assert close(profile.delta(eps, mu), case, "delta")
    assert inside(profile.delta_bounds(eps, mu), case, "delta")
    truth = float(log(mpf(case["outputs"]["delta"])))
    assert profile.log_delta(eps, mu) == pytest.approx(truth, rel=1e-14, abs=1e-13)
    low, high = profile.log_delta_bounds(eps, mu)
    assert low <= truth <= high


@pytest.mark.parametrize("case", cases("gdp_eps"))
def test_epsilon_to_1e_12(case):
    delta, mu = float(case["inputs"]["delta"]), float(case["inputs"]["mu"])
    assert close(profile.epsilon(delta, mu), case, "eps")
    low, high = profile.epsilon_bounds(delta, mu)
    assert inside((low, high), case, "eps")
    assert profile.delta_bounds(high, mu)[1] <= delta or high == 0.0


@pytest.mark.parametrize("case", cases("gdp_mu"))
def test_mu_to_1e_12(case):
    eps, delta = float(case["inputs"]["eps"]), float(case["inputs"]["delta"])
    assert close(profile.mu(eps, delta), case, "mu")
    assert inside(profile.mu_bounds(eps, delta), case, "mu")
    assert profile.delta_bounds(eps, profile.mu_bounds(eps, delta)[0])[1] <= delta


@pytest.mark.parametrize("case", cases("tradeoff_gaussian"))
def test_tradeoff_to_1e_12(case):
    alpha, mu = float(case["inputs"]["alpha"]), float(case["inputs"]["mu"])
    assert close(profile.tradeoff(alpha, mu), case, "beta")
    assert inside(profile.tradeoff_bounds(alpha, mu), case, "beta")


@pytest.mark.parametrize("case", cases("gaussian_sigma"))
def test_noise_calibration(case):
    eps, delta = float(case["inputs"]["eps"]), float(case["inputs"]["delta"])
    sigma = analytic_noise(eps, delta)
    assert close(sigma, case, "analytic")
    assert mpf(sigma) >= mpf(case["outputs"]["analytic"]) * (1 - mpf("1e-15"))
    assert analytic_noise(eps, delta, sensitivity=3.0) == pytest.approx(3.0 * sigma, rel=1e-14)
    if eps < 1:
        assert close(classical_noise(eps, delta), case, "classical")
        assert sigma < classical_noise(eps, delta)
    else:
        with pytest.raises(DoesNotApply, match="epsilon < 1"):
            classical_noise(eps, delta)


def test_random_points_lie_inside_the_bounds_and_the_margin_is_wide():
    mp.dps = 60
    rng = np.random.default_rng(20240)
    mu = 10 ** rng.uniform(-6, 3, 400)
    a = rng.uniform(-38, 37, 400)
    a[::3] = rng.uniform(-1, 5, a[::3].size)  # where the two terms cancel
    eps = np.where(rng.random(400) < 0.2, -1.0, 1.0) * np.abs(mu * (a + mu / 2))
    lower, upper = profile.delta_bounds(eps, mu)
    values = profile.delta(eps, mu)
    for e, m, low, high, value in zip(eps, mu, lower, upper, values, strict=True):
        e, m = mpf(float(e)), mpf(float(m))
        truth = erfc((e / m - m / 2) / sqrt(2)) / 2 - exp(e) * erfc((e / m + m / 2) / sqrt(2)) / 2
        assert mpf(float(low)) <= truth <= mpf(float(high))
        if truth > mpf("1e-300"):
            assert abs(mpf(float(value)) / truth - 1) < mpf("5e-15")


def test_arrays_equal_scalars():
    eps, mu = np.array([[-2.0, 0.0, 0.3], [4.0, 40.0, 1e3]]), np.array([1e-3, 1.0, 45.0])
    table = profile.delta(eps, mu)
    assert table.shape == (2, 3)
    for (i, j), value in np.ndenumerate(table):
        assert value == profile.delta(float(eps[i, j]), float(mu[j]))
    deltas = np.array([1e-300, 1e-9, 0.4])
    assert [profile.epsilon(d, 2.0) for d in deltas] == list(profile.epsilon(deltas, 2.0))
    assert [profile.mu(1.0, d) for d in deltas] == list(profile.mu(1.0, deltas))
    assert isinstance(profile.delta(1, 1), float)


EXTREME_EPS = [-1e150, -700.0, -1.0, -1e-300, 0.0, 5e-324, 1e-10, 1.0, 700.0, 1e5, 1e150]
EXTREME_MU = [0.0, 5e-324, 1e-300, 1e-6, 1.0, 40.0, 1e3, 1e10, 1e100, 1e101, math.inf]
EXTREME_DELTA = [0.0, 5e-324, 1e-300, 1e-10, 0.5, 1 - 1e-12, 1 - 2**-53, 1.0]


def ordered(low, value, high):
    table = np.array([low, value, high])
    assert not np.isnan(table).any()
    assert (table[0] <= table[1]).all() and (table[1] <= table[2]).all()


def test_extremes_are_ordered_and_never_nan():
    eps, mu = np.array(EXTREME_EPS)[:, None], np.array(EXTREME_MU)
    low, high = profile.delta_bounds(eps, mu)
    ordered(low, profile.delta(eps, mu), high)
    low, high = profile.log_delta_bounds(eps, mu)
    ordered(low, profile.log_delta(eps, mu), high)
    delta = np.array(EXTREME_DELTA)[:, None]
    low, high = profile.epsilon_bounds(delta, mu)
    ordered(low, profile.epsilon(delta, mu), high)
    assert (low >= 0).all()
    eps = np.array([e for e in EXTREME_EPS if e >= 0])
    low, high = profile.mu_bounds(eps, delta)
    ordered(low, profile.mu(eps, delta), high)
    low, high = profile.tradeoff_bounds(delta, mu)
    ordered(low, profile.tradeoff(delta, mu), high)


def test_ends_of_the_scale():
    assert profile.delta(0.5, 0.0) == 0.0
    assert profile.delta(-1.0, 0.0) == pytest.approx(1 - math.exp(-1), rel=1e-15)
    assert profile.delta(3.0, math.inf) == 1.0
    assert profile.epsilon(0.0, 1.0) == math.inf and profile.epsilon(0.0, 0.0) == 0.0
    assert profile.epsilon(1.0, 50.0) == 0.0
    assert profile.mu(1.0, 0.0) == 0.0 and profile.mu(1.0, 1.0) == math.inf
    assert profile.tradeoff(0.3, 0.0) == 0.7 and profile.tradeoff(0.3, math.inf) == 0.0


def test_composition_and_groups():
    assert compose_mu([3.0, 4.0]) == pytest.approx(5.0, rel=1e-15)
    assert compose_mu([0.1], [10_000]) == pytest.approx(10.0, rel=1e-14)
    assert compose_mu([0.1] * 50) == pytest.approx(compose_mu([0.1], [50]), rel=1e-15)
    assert compose_mu([]) == 0.0 and compose_mu([2.5]) == 2.5
    assert compose_mu([1.0, math.inf]) == math.inf and compose_mu([1.0, math.inf], [1, 0]) == 1.0
    assert compose_mu([1e-200, 1e-200]) == pytest.approx(math.sqrt(2) * 1e-200, rel=1e-15)
    assert compose_mu([0.1] * 3) >= math.sqrt(0.03)
    assert group_mu(0.5, 4) == pytest.approx(2.0, rel=1e-14) and group_mu(0.5, 1) == 0.5


@pytest.mark.parametrize(
    "call",
    [
        lambda: profile.delta(math.nan, 1.0),
        lambda: profile.delta(1.0, -1.0),
        lambda: profile.delta(math.inf, 1.0),
        lambda: profile.delta("1", 1.0),
        lambda: profile.delta([], 1.0),
        lambda: profile.delta(True, 1.0),
        lambda: profile.epsilon(-0.1, 1.0),
        lambda: profile.epsilon(1.1, 1.0),
        lambda: profile.mu(-1.0, 0.1),
        lambda: profile.tradeoff(1.5, 1.0),
        lambda: compose_mu([1.0], [1, 2]),
        lambda: compose_mu([1.0], [1.5]),
        lambda: group_mu(1.0, 0),
        lambda: classical_noise(0.0, 1e-5),
        lambda: classical_noise(0.5, 0.0),
        lambda: analytic_noise(1.0, 1e-5, sensitivity=0.0),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [
        (-7.941535884226739e-07, 11.622155878961621),
        (-0.07774093725249374, 9.601345941937291),
        (-4.626640383018735e-08, 8.494307147441864),
        (-0.00047805648649488125, 7.874332174595365),
        (-30.0, 0.5),
    ],
)
def test_a_delta_close_to_one_of_a_negative_epsilon(epsilon, mu):
    """Three roundings next to 1 were more than the one that the bounds had room for."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        truth = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        lower, upper = profile.delta_bounds(epsilon, mu)
        assert lower <= truth <= upper


def test_a_type_ii_error_below_every_normal_number():
    """The normal law's function gives 0 there."""
    with mpmath.workdps(60):
        truth = mpmath.ncdf(-mpmath.mpf(37.5))
        lower, upper = profile.tradeoff_bounds(0.5, 37.5)
        assert lower <= truth <= upper
    assert profile.tradeoff_bounds(0.5, 37.5)[1] < 1e-300


@pytest.mark.parametrize("order", [1.5, 2.0, 9.0])
@pytest.mark.parametrize("noise", [0.7, 3.0])
def test_the_gaussian_mechanism_is_what_its_definition_says(noise, order):
    """N(0, s^2) and N(1, s^2) by quadrature: mu = 1/s, and a Renyi divergence a/(2 s^2)."""
    guarantee = account(GaussianMechanism(noise)).guarantee()
    x = np.linspace(-14.0 * noise, 1.0 + 14.0 * noise * order, 400_001)
    log_p, log_q = (-0.5 * ((x - mean) / noise) ** 2 for mean in (1.0, 0.0))
    scale = (x[1] - x[0]) / (noise * math.sqrt(2 * math.pi))
    moment = float(np.sum(np.exp(order * log_p + (1 - order) * log_q)) * scale)
    assert guarantee.renyi(order).upper == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)
    stick = float(np.sum(np.maximum(np.exp(log_p) - math.e**0.3 * np.exp(log_q), 0.0)) * scale)
    assert guarantee.delta(0.3).upper == pytest.approx(stick, rel=1e-6)
    assert guarantee.gaussian_mu().upper == pytest.approx(1 / noise, rel=1e-12)
    best = profile.tradeoff(0.05, 1 / noise)
    assert guarantee.tradeoff(0.05).lower == pytest.approx(best, rel=1e-9)
