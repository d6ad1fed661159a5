"""Optimal composition of (epsilon, delta) guarantees, equal and different."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from mpmath import exp, log, loggamma, mp, mpf

from tightrope.errors import InvalidInput
from tightrope.guarantee.approx import advanced
from tightrope.guarantee.compose import compose
from tightrope.guarantee.gaussian import epsilon as gaussian_epsilon
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope_reproduce.formulas.optimal_composition import delta_optimal, epsilon_optimal, log_pmf
from tightrope_reproduce.formulas.simple_composition import basic

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tradeoff.json").read_text())


def golden(name: str) -> list[dict]:
    return [c for c in CASES if c["name"] == name]


def around(interval, case: dict, key: str) -> bool:
    truth, rtol = mpf(case["outputs"][key]), mpf(case["rtol"])
    inside = mpf(interval.lower) <= truth <= mpf(interval.upper)
    return inside and mpf(interval.upper) - mpf(interval.lower) <= 10 * rtol * truth


@pytest.mark.parametrize("trials", [1, 2, 3, 30, 1000, 10**6])
@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.3, 5.0, 200.0])
def test_binomial_logarithms(trials, eps):
    mp.dps = 40
    q = 1 / (1 + math.exp(eps))
    spread = math.sqrt(trials * q) * np.array([-36, -9, -1, 0, 1, 9, 36])
    flips = np.unique(np.clip(np.round(trials * q + spread), 0, trials))
    flips = np.unique(np.concatenate([flips, [0, trials // 2, trials]]))
    for x, value in zip(flips, log_pmf(flips, trials, eps), strict=True):
        n, e = int(x), mpf(eps)
        truth = loggamma(trials + 1) - loggamma(n + 1) - loggamma(trials - n + 1)
        truth -= n * e + trials * log(1 + exp(-e))
        if truth > -730:
            assert abs(mpf(float(value)) - truth) < mpf("5e-13")


@pytest.mark.parametrize("case", golden("kov_delta"))
def test_delta_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    assert around(delta_optimal(i["at"], i["eps"], i["delta"], i["k"]), case, "delta")


@pytest.mark.parametrize("case", golden("kov_epsilon"))
def test_epsilon_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    assert around(epsilon_optimal(i["target"], i["eps"], i["delta"], i["k"]), case, "eps")


@pytest.mark.parametrize("case", golden("kov_heterogeneous"))
def test_different_golden(case):
    parts = [ApproxGuarantee(float(e), 0.0) for e in case["inputs"]["eps"].split()]
    found, truth = compose(parts).delta(float(case["inputs"]["at"])), mpf(case["outputs"]["delta"])
    assert found.lower <= truth <= found.upper and found.relative_width < 1e-6


def test_printed_theorem():
    """KOV Theorem 3.3 at its own points ((k - 2i) eps, delta_i)."""
    k, eps, delta = 9, 0.35, 1e-4
    for i in range(k // 2 + 1):
        total = sum(
            math.comb(k, j) * (math.exp((k - j) * eps) - math.exp((k - 2 * i + j) * eps))
            for j in range(i)
        )
        truth = 1 - (1 - delta) ** k * (1 - total / (1 + math.exp(eps)) ** k)
        found = delta_optimal((k - 2 * i) * eps, eps, delta, k)
        assert found.lower - 1e-15 <= truth <= found.upper + 1e-15


def test_a_million_runs():
    few = epsilon_optimal(1e-6, 1e-3, 1e-13, 10**6)
    assert few.relative_width < 1e-11
    # randomised responses of tiny level are Gaussian in the limit: mu = sqrt(k) eps (1 + O(eps^2))
    limit = gaussian_epsilon(1e-6 - 1e-7, math.sqrt(10**6) * 1e-3)
    assert few.upper == pytest.approx(limit, rel=2e-3)
    deep = epsilon_optimal(1e-300, 1e-3, 0.0, 10**6)
    assert deep.relative_width < 1e-11 and deep.upper > few.upper


def test_ends():
    assert epsilon_optimal(1e-6, 1.0, 1e-6, 1).upper == pytest.approx(1.0, rel=1e-14)
    assert epsilon_optimal(1e-7, 1.0, 1e-6, 1).upper == math.inf
    assert epsilon_optimal(1.0, 1.0, 1e-6, 5).upper == 0.0
    assert epsilon_optimal(0.5, 0.0, 0.0, 5).upper == 0.0
    assert epsilon_optimal(0.0, 0.5, 0.0, 4).upper == pytest.approx(2.0, rel=1e-14)
    assert delta_optimal(0.3, 0.5, 0.0, 0).upper == 0.0
    assert delta_optimal(0.3, 0.5, 1.0, 3).lower == 1.0
    assert delta_optimal(100.0, 700.0, 0.0, 3).lower > 1 - 1e-11
    assert delta_optimal(2100.0, 700.0, 0.0, 3).upper <= 1e-12


def test_order_of_the_bounds():
    for k, eps, slack in ((10, 0.1, 1e-6), (100, 0.05, 1e-5), (1000, 0.3, 1e-9)):
        target_eps, target_delta = advanced([(eps, 1e-12)], slack, [k])
        best = epsilon_optimal(target_delta, eps, 1e-12, k)
        assert best.upper <= min(target_eps, basic([(eps, 1e-12)], [k])[0])


def brute_force(x: float, levels: list[float]) -> float:
    total = 0.0
    for signs in product((1, -1), repeat=len(levels)):
        loss = sum(s * e for s, e in zip(signs, levels, strict=True))
        mass = math.prod(1 / (1 + math.exp(-s * e)) for s, e in zip(signs, levels, strict=True))
        total += mass * -math.expm1(min(x - loss, 0.0))
    return total


def test_different_levels_against_all_outcomes():
    levels = [0.1, 0.2, 0.35, 0.5, 1.1, 0.05, 0.9, 0.33, 0.33]
    composed = compose([ApproxGuarantee(e, 0.0) for e in levels])
    for x in (0.0, 0.5, 2.5, 3.7):
        found = composed.delta(x)
        assert found.lower <= brute_force(x, levels) <= found.upper
        assert found.relative_width < 1e-5


def test_large_levels_among_small_ones():
    found = compose([ApproxGuarantee(e, 0.0) for e in (640.0, 0.5, 30.0)]).delta(650.0)
    slow = sum(
        mass * -math.expm1(min(650.0 - 640.0 - loss, 0.0))
        for loss, mass in (
            (30.5, 1 / (1 + math.exp(-0.5)) / (1 + math.exp(-30.0))),
            (29.5, 1 / (1 + math.exp(0.5)) / (1 + math.exp(-30.0))),
        )
    )
    assert found.lower <= slow * (1 + 1e-12) and slow * (1 - 1e-12) <= found.upper


@pytest.mark.parametrize(
    "call",
    [
        lambda: delta_optimal(-1.0, 0.1, 0.0, 3),
        lambda: delta_optimal(1.0, math.nan, 0.0, 3),
        lambda: delta_optimal(1.0, 0.1, 0.0, 2.5),
        lambda: epsilon_optimal(1.5, 0.1, 0.0, 3),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
