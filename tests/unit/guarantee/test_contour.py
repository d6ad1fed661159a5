"""The contour method against closed forms, identities and laws; refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.guarantee.complex_cumulant import cumulant

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss import contour, profile
from tightrope.guarantee.loss.abstract import Components, sum_law
from tightrope.guarantee.loss.contour import are_reversed, certified_value, log_chernoff
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    Direction,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.pairs.sampling import log_ratio
from tightrope.guarantee.loss.renyi import renyi
from tightrope.numerics.interval import Interval

PAIRS: list[AbstractLossPair] = [
    GaussianPair(0.7),
    SampledGaussianPair(0.01, 1.0, "remove"),
    SampledGaussianPair(0.01, 1.0, "add"),
    SampledGaussianPair(0.3, 3.0, "remove"),
    SampledGaussianPair(1e-6, 0.1, "add"),
    FixedSizeGaussianPair(0.05, 1.5),
    LaplacePair(2.0),
    randomized_response_pair(1.0),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_cumulant_is_zero_at_0_and_at_minus_1(pair: AbstractLossPair) -> None:
    for z in (0.0, -1.0):  # E_P[1] = 1 and E_P[e^-L] = Q-mass = 1
        at = cumulant(pair, z)
        assert abs(complex(at.value)) <= float(at.error) + 1e-16
        assert float(at.error) < 1e-13


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_cumulant_of_the_reversed_pair_is_the_mirror_image(pair: AbstractLossPair) -> None:
    z = np.array([0.3, 2.0, 1.0 + 2.0j, 4.0 - 5.0j])
    here, there = cumulant(pair, z), cumulant(pair.reversed(), -1.0 - z)
    gap = np.exp(here.value - there.value) - 1.0
    assert np.all(np.abs(gap) <= 2 * (here.error + there.error) + 1e-12)


@pytest.mark.parametrize("z", [2.5, 1.0 + 6.0j, 0.5 + 30.0j])
def test_cumulant_error_contains_a_slow_integral(z: complex) -> None:
    q, mu, step = 0.02, 1.3, mpmath.mpf(1) / 60
    with mpmath.workdps(25):
        terms = []
        for n in range(-13 * 60, 18 * 60):
            s = n * step
            r = 1 + q * (mpmath.exp(mu * s - mpmath.mpf(mu) ** 2 / 2) - 1)
            terms.append(step * mpmath.npdf(s) * mpmath.exp((1 + z) * mpmath.log(r)))
        truth = complex(mpmath.log(mpmath.fsum(terms)))
    at = cumulant(SampledGaussianPair(q, mu), z)
    gap = complex(at.value) - truth
    turns = round(gap.imag / (2 * math.pi))
    assert abs(gap - 2j * math.pi * turns) <= float(at.error) + 1e-15
    assert float(at.error) < 1e-12


@pytest.mark.parametrize("order", [1 + 1e-9, 1.0001, 2.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_renyi_answers_from_order_one_to_a_million(pair: AbstractLossPair, order: float) -> None:
    lower, upper = renyi(pair, order)
    assert 0.0 < lower <= upper <= lower * (1 + 1e-10)
    wider = renyi(pair, order * (1 + 1e-6) if order > 1.1 else 1 + 2 * (order - 1))
    assert wider[1] >= lower  # Renyi divergences rise with the order


def test_renyi_of_a_pair_with_infinite_loss_is_infinite() -> None:
    assert renyi(approx_pair(0.5, 1e-6), 2.0) == (math.inf, math.inf)


def conditioned(masses: list[tuple[float, float]], mu: float, epsilon: float) -> float:
    """delta of (a law of losses) then one Gaussian release: E_P of the Gaussian profile."""
    return math.fsum(
        m * math.exp(log_gaussian_delta(epsilon - loss, mu).upper) for loss, m in masses
    )


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.7, 5.0])
def test_one_sampled_release_and_a_gaussian(direction: Direction, epsilon: float) -> None:
    q, mu, step = 0.4, 1.2, 1 / 64
    s = step * np.arange(-12 * 64, 14 * 64)
    ratio = log_ratio(s, q, mu)
    weight = step * np.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)
    law = (ratio, weight * np.exp(ratio)) if direction == "remove" else (-ratio, weight)
    truth = conditioned(list(zip(*(v.tolist() for v in law), strict=True)), 0.5, epsilon)
    pair = SampledGaussianPair(q, mu, direction)
    found = contour.log_delta(((pair, 1), (GaussianPair(0.5), 1)), epsilon)
    assert found.lower - 1e-12 <= math.log(truth) <= found.upper + 1e-12
    assert found.width < 1e-10


def test_one_laplace_release_and_a_gaussian() -> None:
    top = 1.0
    x, w = np.polynomial.legendre.leggauss(40)
    x, w = 0.5 * (x + 1), 0.5 * w
    law = list(
        zip((top * (1 - 2 * x)).tolist(), (w * top / 2 * np.exp(-top * x)).tolist(), strict=True)
    )
    law += [(top, 0.5), (-top, 0.5 * math.exp(-top))]
    truth = conditioned(law, 0.8, 0.4)
    found = contour.log_delta(((LaplacePair(1 / top), 1), (GaussianPair(0.8), 1)), 0.4)
    assert found.lower - 1e-12 <= math.log(truth) <= found.upper + 1e-12


def test_epsilon_at_delta_zero_is_the_largest_loss() -> None:
    q, steps = 0.01, 10
    found = contour.epsilon(((SampledGaussianPair(q, 1.0, "add"), steps),), 0.0)
    assert found.upper == pytest.approx(-steps * math.log1p(-q))
    assert contour.epsilon(((GaussianPair(1.0), 1),), 0.0).upper == math.inf
    assert contour.log_delta(((SampledGaussianPair(q, 1.0, "add"), steps),), 0.2).upper == -math.inf


@pytest.mark.parametrize("delta", [1e-2, 1e-20, 1e-100, 1e-300])
def test_epsilon_down_to_tiny_delta(delta: float) -> None:
    parts = ((SampledGaussianPair(0.02, 1.0), 2000),)
    found = contour.epsilon(parts, delta)
    assert found.relative_width < 1e-9
    assert contour.log_delta(parts, found.upper).upper <= math.log(delta) + 1e-9
    assert contour.log_delta(parts, found.lower).lower >= math.log(delta) - 1e-9


@pytest.mark.parametrize("steps", [10**3, 10**5, 10**7, 10**9])
def test_steps_up_to_a_billion(steps: int) -> None:
    # rate * sqrt(steps) is kept: the limit is Gaussian
    rate = 0.5 / math.sqrt(steps)
    found = contour.epsilon(((SampledGaussianPair(rate, 1.0), steps),), 1e-5, 1e-8)
    limit = 0.5 * math.sqrt(math.expm1(1.0))
    assert found.relative_width < 1e-8
    if steps >= 10**9:
        assert log_gaussian_delta(found.upper, limit).upper == pytest.approx(
            math.log(1e-5), rel=2e-3
        )


@settings(max_examples=25, deadline=None)
@given(st.floats(0.6, 4.0), st.floats(0.005, 0.5), st.floats(3.0, 300.0), st.floats(1e-12, 1e-3))
def test_epsilon_rises_with_steps_and_rate_and_falls_with_noise_and_delta(
    sigma: float, rate: float, hits: float, delta: float
) -> None:
    steps = math.ceil(hits / rate)

    def eps(s: float, r: float, t: int, d: float) -> tuple[float, float]:
        found = contour.epsilon(((SampledGaussianPair(r, 1 / s), t),), d, 1e-6)
        return found.lower, found.upper

    base = eps(sigma, rate, steps, delta)
    assert base[0] <= eps(sigma, rate, steps + steps // 10 + 1, delta)[1]
    assert base[0] <= eps(sigma, min(1.0, 1.05 * rate), steps, delta)[1]
    assert eps(1.05 * sigma, rate, steps, delta)[0] <= base[1]
    assert eps(sigma, rate, steps, 2 * delta)[0] <= base[1]


def test_many_distinct_noise_levels_lie_between_the_extreme_ones() -> None:
    sigmas = np.linspace(0.9, 1.3, 40)
    parts = tuple((SampledGaussianPair(0.02, 1 / float(s)), 25) for s in sigmas)
    found = contour.epsilon(parts, 1e-6)
    worst = contour.epsilon(((SampledGaussianPair(0.02, 1 / 0.9), 1000),), 1e-6)
    best = contour.epsilon(((SampledGaussianPair(0.02, 1 / 1.3), 1000),), 1e-6)
    assert best.upper < found.lower <= found.upper < worst.lower
    assert found.relative_width < 1e-9


def test_purely_discrete_laws_are_refused_quickly() -> None:
    with pytest.raises(NotCertified, match="lattice"):
        contour.log_delta(((randomized_response_pair(0.1), 100),), 0.5)


def test_enclosure_names_its_error_terms() -> None:
    law = sum_law(((SampledGaussianPair(256 / 60000, 1 / 1.1), 14062),))
    found, _ = certified_value(law, 2.0, 1e-6)
    terms = (found.quadrature, found.aliasing, found.truncation, found.rounding)
    assert all(0.0 <= t < 1e-11 for t in terms)
    assert found.width <= 4 * sum(terms)
    assert found.interval.lower == found.lower


@pytest.mark.parametrize(
    "sigma,rate,steps,delta",
    [
        (53.8, 2.05e-6, 12016995, 3.39e-146),
        (7.18, 8.66e-4, 10540, 2.05e-84),
        (12.938473657564895, 2.643863827557723e-08, 6199661, 2.9665197828802157e-12),
        (0.952, 5.9e-5, 2352129, 1.36e-12),
    ],
)
def test_tails_beyond_the_phase_transition(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    # 2 sigma^2 ln(1/rate) is where the tilted law of one step gets a second mode
    parts = ((SampledGaussianPair(rate, 1 / sigma), steps),)
    found = contour.epsilon(parts, delta)
    assert 0.0 < found.lower <= found.upper <= found.lower * (1 + 1e-6)
    assert contour.log_delta(parts, found.upper).upper <= math.log(delta) + 1e-6


# ---- the contour method and the cumulants against 20-digit values (tests/golden/generate_sgm.py)
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


# ---- the worse of the two orders of the neighbours, without computing the other one
MNIST = 256 / 60000


def orders(rate: float, noise: float, steps: int) -> tuple[Components, Components]:
    remove, add = (SampledGaussianPair(rate, 1.0 / noise, way) for way in ("remove", "add"))
    return ((remove, steps),), ((add, steps),)


SETTINGS = [
    (MNIST, 1.1, 14062, 1e-5),  # one line, read twice
    (MNIST, 1.1, 14062, 1e-2),
    (MNIST, 1.1, 14062, 1e-20),  # Chernoff's bound
    (0.01, 1.0, 10**6, 1e-5),  # neither: both are computed
    (0.001, 100.0, 10**4, 1e-6),  # nearly the same in both orders
    (0.01, 1.0, 20, 1e-5),  # jumps apart
    (0.3, 2.0, 40, 1e-6),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), SETTINGS)
def test_the_worse_order_is_that_of_both_computed(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    both = orders(rate, noise, steps)
    plain = Interval.worst([profile.epsilon(order, delta) for order in both])
    found = profile.worst_epsilon(both, delta)
    assert found.meets(plain) and found.relative_width <= 1e-6
    at = profile.worst_delta(both, plain.upper)
    assert at.meets(Interval.worst([profile.delta(order, plain.upper) for order in both]))
    assert at.upper <= delta * (1.0 + 1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.0, 2.4])
def test_the_bound_on_the_other_order_holds_and_is_near(epsilon: float) -> None:
    remove, add = orders(MNIST, 1.1, 14062)
    for one, other in ((remove, add), (add, remove)):
        bound = contour.log_delta_and_reverse(one, epsilon, 1e-10)[1]
        truth = contour.log_delta(other, epsilon, 1e-10)
        assert truth.lower <= bound <= truth.upper + 0.05


def test_chernoff_bounds_what_it_proves_and_says_nothing_else() -> None:
    _, add = orders(MNIST, 1.1, 14062)
    truth = contour.log_delta(add, 5.68).upper
    bound = log_chernoff(add, 5.68, math.log(1e-20))
    assert truth < bound < truth + 3.0
    assert log_chernoff(add, 5.68, truth) == 0.0
    assert log_chernoff(add, 0.0, -10.0) == 0.0


def test_a_negative_epsilon_is_worse_the_other_way_round() -> None:
    both = orders(0.02, 1.0, 500)
    found = profile.worst_delta(both, -0.5)
    remove, add = (profile.delta(order, -0.5) for order in both)
    assert add.lower > remove.upper and found.meets(add) and not found.meets(remove)


def test_which_orders_are_each_others_reverse() -> None:
    remove, add = orders(0.02, 1.0, 500)
    symmetric: Components = ((GaussianPair(0.1), 3), (LaplacePair(2.0), 2))
    assert are_reversed(remove, add) and are_reversed(symmetric, symmetric)
    assert are_reversed((*symmetric, *remove), (*add, *symmetric))
    assert not are_reversed(remove, remove)
    assert not are_reversed(remove, orders(0.02, 1.0, 501)[1])
    response: Components = ((randomized_response_pair(1.0), 1),)
    assert not are_reversed(response, response)  # not looked into
