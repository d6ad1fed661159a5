"""Every Renyi conversion against 50-digit values (tests/golden/generate_renyi.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tightrope.guarantee.renyi import best_for_delta
from tightrope.guarantee.renyi.closed_forms import (
    balle_delta,
    balle_epsilon,
    classical_delta,
    classical_epsilon,
    lemma1_epsilon,
    theorem4_f,
    theorem4_g,
    theorem4_gamma,
)
from tightrope.guarantee.renyi.kernel import checked_delta, checked_epsilon, excess_order
from tightrope.guarantee.renyi.optimal import (
    one_sided_gamma,
    optimal_delta,
    optimal_epsilon,
    renyi_of_pure,
    two_sided_gamma,
)
from tightrope.guarantee.renyi.regions import type_ii
from tightrope.numerics.arrays import elementwise
from tightrope_reproduce.formulas import (
    abadi_lemma3,
    improved_moments_accountant,
    moments_accountant,
    proposition1,
    question_two,
    theorem5,
)
from tightrope_reproduce.formulas.kullback_leibler import type_ii_kullback_leibler

CASES = json.loads((Path(__file__).parents[2] / "golden" / "renyi.json").read_text())


def cases(name):
    chosen = [case for case in CASES if case["name"] == name]
    assert chosen, f"no golden values named {name}"
    return pytest.mark.parametrize("case", chosen, ids=lambda c: "-".join(c["inputs"].values()))


def read(case):
    inputs = [float(value) for value in case["inputs"].values()]
    outputs = {key: float(value) for key, value in case["outputs"].items()}
    return inputs, outputs, case["rtol"]


def encloses(enclosure, truth, rtol):
    """The truth is inside (up to its own last digit) and the enclosure is narrow."""
    lower, upper = enclosure
    assert lower <= truth * (1 + 2e-16) and truth * (1 - 2e-16) <= upper
    assert upper - lower <= rtol * truth


def just_above(value, truth, rtol):
    assert truth * (1 - 2e-16) <= value <= truth * (1 + rtol) + 1e-300


@cases("thm3_gamma")
def test_theorem_3_gamma(case):
    inputs, truth, rtol = read(case)
    encloses(one_sided_gamma(*inputs), truth["one_sided"], rtol)
    encloses(two_sided_gamma(*inputs), truth["two_sided"], rtol)


@cases("thm3_gamma")
def test_theorem_4_bounds(case):
    inputs, truth, rtol = read(case)
    if "f" not in truth:
        assert theorem4_gamma(*inputs) == pytest.approx(truth["one_sided"], rel=rtol)
        return
    f, g = (
        elementwise(excess_order, checked_epsilon, checked_delta)(of)(*inputs)
        for of in (theorem4_f, theorem4_g)
    )
    assert f == pytest.approx(truth["f"], rel=rtol, abs=0.0)
    assert g == pytest.approx(truth["g"], rel=rtol)
    assert f <= truth["f"] and g <= truth["g"]
    assert max(f, g, 0.0) == theorem4_gamma(*inputs)


@cases("thm3_eps")
def test_epsilon(case):
    inputs, truth, rtol = read(case)
    encloses(optimal_epsilon(*inputs, sides=1), truth["one_sided"], rtol)
    encloses(optimal_epsilon(*inputs), truth["two_sided"], rtol)
    just_above(lemma1_epsilon(*inputs), truth["lemma1"], rtol)
    just_above(balle_epsilon(*inputs), truth["balle"], rtol)
    just_above(classical_epsilon(*inputs), truth["classical"], rtol)


@cases("thm3_delta")
def test_delta(case):
    inputs, truth, rtol = read(case)
    encloses(optimal_delta(*inputs, sides=1), truth["one_sided"], rtol)
    encloses(optimal_delta(*inputs), truth["two_sided"], rtol)
    just_above(balle_delta(*inputs), truth["balle"], rtol)
    just_above(classical_delta(*inputs), truth["classical"], rtol)


@cases("gaussian_composition")
def test_gaussian_composition(case):
    (noise, steps, delta), truth, rtol = read(case)
    just_above(moments_accountant.epsilon(noise, steps, delta), truth["moments_accountant"], rtol)
    terms = improved_moments_accountant.terms(noise, steps, delta)
    just_above(terms.eps0, truth["eps0"], rtol)
    just_above(terms.eps1, truth["eps1"], rtol)
    just_above(terms.third, truth["third"], rtol)
    just_above(improved_moments_accountant.epsilon(noise, steps, delta), truth["lemma2"], rtol)

    def curve(order):
        return order * steps / (2 * noise * noise)

    best = best_for_delta(curve, delta, route="lemma1")
    just_above(best.bound, truth["lemma2"], rtol)
    assert best.order == pytest.approx(truth["eps0_order"], rel=1e-4)
    assert truth["exact"] < best_for_delta(curve, delta).bound <= best.bound


@cases("thm5_sigma2")
def test_noise_for_gaussian_composition(case):
    (eps, delta, steps), truth, rtol = read(case)
    just_above(theorem5.noise_multiplier(eps, delta, steps) ** 2, truth["eq109"], rtol)
    noise = question_two.smallest_noise_multiplier(eps, delta, steps)
    just_above(noise.classical**2, truth["moments_accountant"], rtol)
    just_above(noise.exact**2, truth["exact"], 1e-11)
    assert truth["exact"] < noise.improved**2 < truth["moments_accountant"]
    assert noise.improved**2 <= truth["eq109"]


@cases("prop1_gaussian")
def test_proposition_1_for_the_gaussian(case):
    (order, mu), truth, _ = read(case)

    def slope(t):
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(mu * ndtri(1 - t) - mu * mu / 2)

    def tradeoff(t):
        return ndtr(ndtri(1 - t) - mu)

    tail = proposition1.gaussian_tail(mu)
    encloses(
        proposition1.renyi_of_tradeoff(order, tradeoff, slope, tail=tail), truth["renyi"], 1e-5
    )
    without = proposition1.renyi_of_tradeoff(order, tradeoff, slope)
    assert without.lower <= truth["renyi"] < without.upper == np.inf


@cases("prop1_outside")
def test_proposition_1_without_the_wrong_term(case):
    (order, delta), truth, rtol = read(case)
    found = proposition1.renyi_of_tradeoff(
        order, lambda t: (1 - delta) * (1 - t), lambda t: np.full_like(t, 1 - delta)
    )
    encloses(found, truth["renyi"], rtol)
    assert found.upper < truth["printed"]


@cases("lemma4_boundary")
def test_lemma_4(case):
    (order, gamma, type_i), truth, rtol = read(case)
    encloses(type_ii(order, gamma, type_i), truth["type_ii"], rtol)
    encloses(type_ii_kullback_leibler(gamma, type_i), truth["kullback_leibler"], rtol)


@cases("pure_renyi")
def test_pure_dp(case):
    (order, epsilon), truth, rtol = read(case)
    just_above(renyi_of_pure(order, epsilon), truth["renyi"], rtol)


@cases("rdp_abadi_lemma3")
def test_the_printed_rate_is_reproduced_and_its_broken_conditions_are_named(case):
    inputs, truth, rtol = read(case)
    assert abadi_lemma3.claimed_renyi(*inputs) == pytest.approx(truth["claimed"], rel=rtol)
    assert abadi_lemma3.broken_conditions(*inputs)


def test_a_better_bound_gives_a_hundred_rounds():
    """Fig. 3 of arXiv:2001.05990 (noise 20, delta 1e-5): 0.75 smaller epsilon, 100 more rounds."""
    steps = np.arange(1, 1001)
    classical = moments_accountant.epsilon(20, steps, 1e-5)
    improved = improved_moments_accountant.epsilon(20, steps, 1e-5)
    assert np.max(classical - improved) == pytest.approx(0.7588, abs=5e-5)
    at_six = question_two.largest_steps(6, 1e-5, 20)
    assert at_six.improved - at_six.classical == 102
    assert question_two.largest_steps(4, 1e-5, 20) == (238, 298, 342)
