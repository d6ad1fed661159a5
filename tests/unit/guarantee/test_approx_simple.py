"""Closed forms for (epsilon, delta): basic and advanced composition, groups, sampling, curve."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from mpmath import mpf

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.approx import (
    advanced,
    amplified,
    group,
    implied_delta,
    tradeoff,
    tradeoff_interval,
)
from tightrope.process import Adjacency
from tightrope_reproduce.formulas.simple_composition import basic, shortcut

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tradeoff.json").read_text())


def golden(name: str) -> list[dict]:
    return [c for c in CASES if c["name"] == name]


def close(value: float, case: dict, key: str) -> bool:
    truth = mpf(case["outputs"][key])
    return abs(mpf(float(value)) - truth) <= mpf(case["rtol"]) * abs(truth)


@pytest.mark.parametrize("case", golden("advanced_composition"))
def test_advanced_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    eps, delta = advanced([(i["eps"], i["delta"])], i["delta_prime"], [i["k"]])
    assert close(eps, case, "eps_total") and close(delta, case, "delta_total")
    if case["outputs"]["shortcut_valid"]:
        assert close(shortcut(i["eps"], i["delta_prime"], i["k"]), case, "shortcut")
        assert shortcut(i["eps"], i["delta_prime"], i["k"]) >= eps
    else:
        with pytest.raises(DoesNotApply, match="Use `advanced`"):
            shortcut(i["eps"], i["delta_prime"], i["k"])


def test_shortcut_condition_is_exact():
    slack, k = 1e-5, 100
    limit = math.log1p(math.sqrt(2 * math.log(1 / slack) / k))
    assert shortcut(limit * (1 - 1e-12), slack, k) >= advanced([(limit, 0.0)], slack, [k])[0] * (
        1 - 1e-9
    )
    with pytest.raises(DoesNotApply):
        shortcut(limit * (1 + 1e-12), slack, k)


def test_advanced_of_different_parts():
    parts = [(0.1, 1e-8), (0.2, 0.0), (0.05, 1e-7)]
    eps, delta = advanced(parts, 1e-6)
    squares = sum(e * e for e, _ in parts)
    drift = sum(e * math.expm1(e) for e, _ in parts)
    assert eps == pytest.approx(math.sqrt(2 * math.log(1e6) * squares) + drift, rel=1e-14)
    assert delta == pytest.approx(1e-6 + 1.1e-7, rel=1e-14)
    assert advanced([(0.1, 0.0)] * 7, 1e-6) == pytest.approx(
        advanced([(0.1, 0.0)], 1e-6, [7]), rel=1e-14
    )


def test_basic():
    eps, delta = basic([(0.5, 1e-5), (0.25, 1e-6)], [2, 1])
    assert eps == pytest.approx(1.25, rel=1e-15) and eps >= 1.25
    assert delta == pytest.approx(1 - (1 - 1e-5) ** 2 * (1 - 1e-6), rel=1e-10)
    assert delta < 2e-5 + 1e-6
    assert basic([]) == (0.0, 0.0) and basic([(1.0, 1.0)]) == (1.0, 1.0)
    assert basic([(0.7, 0.1)]) == pytest.approx((0.7, 0.1), rel=1e-14)
    assert basic([(0.7, 1e-300)], [10])[1] == pytest.approx(1e-299, rel=1e-14)


def test_group():
    assert group(0.3, 1e-5, 1) == (0.3, 1e-5)
    eps, delta = group(0.3, 1e-5, 3)
    assert eps == pytest.approx(0.9, rel=1e-14)
    # (k-1) steps of delta -> delta + e^eps delta'
    assert delta == pytest.approx(1e-5 * (1 + math.exp(0.3) + math.exp(0.6)), rel=1e-11)
    assert group(0.0, 1e-5, 4) == pytest.approx((0.0, 4e-5), rel=1e-11)
    assert group(1e-12, 1e-5, 4)[1] == pytest.approx(4e-5, rel=1e-10)
    assert group(400.0, 1e-5, 5) == (pytest.approx(2000.0), 1.0)
    assert group(2.0, 0.0, 5) == (10.0, 0.0)


@pytest.mark.parametrize("case", golden("subsample_eps_delta"))
def test_sampling_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    for adjacency, fixed in ((Adjacency.ADD_OR_REMOVE, False), (Adjacency.REPLACE_ONE, True)):
        eps, delta = amplified(i["eps"], i["delta"], i["q"], adjacency, fixed_size=fixed)
        assert close(eps, case, "eps") and close(delta, case, "delta")


def test_sampling_ends_and_refusals():
    add, replace = Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
    assert amplified(1.0, 1e-5, 1.0, add) == (1.0, 1e-5)
    assert amplified(1.0, 1e-5, 0.0, add) == (0.0, 0.0)
    assert amplified(800.0, 0.0, 0.5, add)[0] == pytest.approx(800.0 + math.log(0.5), rel=1e-14)
    with pytest.raises(DoesNotApply, match="Poisson"):
        amplified(1.0, 1e-5, 0.1, replace)
    with pytest.raises(DoesNotApply, match="without replacement"):
        amplified(1.0, 1e-5, 0.1, add, fixed_size=True)


def test_curve_and_implied_delta():
    alpha = np.linspace(0, 1, 101)
    f = tradeoff(alpha, 0.7, 0.01)
    # implied_delta is the conjugate of the curve
    for x in (0.0, 0.3, 0.7, 2.0):
        slow = np.max(1 - f - math.exp(x) * alpha)
        assert slow <= implied_delta(x, 0.7, 0.01) + 1e-15
    corner = (1 - 0.01) / (1 + math.exp(0.7))
    assert implied_delta(0.3, 0.7, 0.01) == pytest.approx(
        1 - corner * (1 + math.exp(0.3)), rel=1e-13
    )
    assert tradeoff(0.2, math.inf, 0.0) == 0.0 and tradeoff(0.0, math.inf, 0.0) == 1.0
    assert tradeoff_interval(0.2, 0.7, 0.01).lower <= tradeoff(0.2, 0.7, 0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda: basic([(-1.0, 0.0)]),
        lambda: basic([(1.0, 1.5)]),
        lambda: basic([(1.0, 0.1)], [1, 2]),
        lambda: advanced([(1.0, 0.1)], 0.0),
        lambda: advanced([(1.0, 0.1)], 1e-5, [2.5]),
        lambda: group(1.0, 0.1, 0),
        lambda: shortcut(0.1, 1e-5, 0),
        lambda: amplified(1.0, 0.1, 1.5, Adjacency.ADD_OR_REMOVE),
        lambda: implied_delta(-0.1, 1.0, 0.0),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
