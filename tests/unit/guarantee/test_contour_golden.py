"""The contour method and the cumulants against 20-digit values (tests/golden/generate_sgm.py)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import pytest

from tightrope.guarantee.loss import contour
from tightrope.guarantee.loss.pairs import FixedSizeGaussianPair, SampledGaussianPair
from tightrope.guarantee.loss.renyi import renyi

FILE = Path(__file__).parents[2] / "golden" / "sgm.json"
CASES = json.loads(FILE.read_text())


def named(name: str) -> list[Any]:
    return [
        pytest.param(c["inputs"], c["outputs"], float(c["rtol"]), id="-".join(c["inputs"].values()))
        for c in CASES
        if c["name"] == name
    ]


def components(inputs: dict[str, str], direction: str = "remove") -> Any:
    pair = SampledGaussianPair(float(inputs["q"]), 1 / float(inputs["sigma"]), direction)  # type: ignore[arg-type]
    return ((pair, int(inputs["T"])),)


def check_log(found: Any, truth: str, rtol: float) -> None:
    value = math.log(float(truth))
    # the golden inputs are decimals, ours the doubles next to them: a few ulp of freedom
    slack = 1e-13 * (1 + abs(value))
    assert found.lower - slack <= value <= found.upper + slack
    assert found.width <= rtol


@pytest.mark.parametrize("inputs,outputs,rtol", named("sgm_delta"))
def test_delta(inputs: dict[str, str], outputs: dict[str, str], rtol: float) -> None:
    for direction, truth in outputs.items():
        found = contour.log_delta(components(inputs, direction), float(inputs["eps"]))
        check_log(found, truth, rtol)


@pytest.mark.parametrize("inputs,outputs,rtol", named("fixed_size_delta"))
def test_fixed_size(inputs: dict[str, str], outputs: dict[str, str], rtol: float) -> None:
    pair = FixedSizeGaussianPair(float(inputs["q"]), float(inputs["mu"]))
    found = contour.log_delta(((pair, int(inputs["T"])),), float(inputs["eps"]))
    check_log(found, outputs["delta"], rtol)


@pytest.mark.parametrize("inputs,outputs,rtol", named("sgm_eps"))
def test_epsilon(inputs: dict[str, str], outputs: dict[str, str], rtol: float) -> None:
    found = contour.epsilon(components(inputs), float(inputs["delta"]))
    truth = float(outputs["remove"])
    assert found.lower * (1 - 1e-13) <= truth <= found.upper * (1 + 1e-13)
    assert found.relative_width <= rtol


@pytest.mark.parametrize("name", ["rdp_sgm_integer", "rdp_sgm_fractional"])
def test_renyi(name: str) -> None:
    for case in (c for c in CASES if c["name"] == name):
        inputs, order = case["inputs"], float(case["inputs"]["alpha"])
        for direction, truth in case["outputs"].items():
            pair = SampledGaussianPair(float(inputs["q"]), 1 / float(inputs["sigma"]), direction)
            lower, upper = renyi(pair, order)
            slack = 1e-13 * float(truth)
            assert lower - slack <= float(truth) <= upper + slack
            assert upper - lower <= float(case["rtol"]) * upper


@pytest.mark.parametrize("inputs,outputs,rtol", named("sgm_tradeoff_point"))
def test_tradeoff_point(inputs: dict[str, str], outputs: dict[str, str], rtol: float) -> None:
    """delta(eps) = P(L > eps) - e^eps Q(L > eps), at the threshold of the golden test."""
    at = float(inputs["lnLR"])
    with mpmath.workdps(25):
        alpha, beta = mpmath.mpf(outputs["type1_alpha"]), mpmath.mpf(outputs["type2_beta"])
        delta = 1 - beta - mpmath.exp(at) * alpha
    check_log(contour.log_delta(components(inputs), at), str(delta), rtol)
