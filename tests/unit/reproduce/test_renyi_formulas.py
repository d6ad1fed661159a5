"""Formulas of papers about Renyi DP: areas, Gaussian composition, Proposition 1, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from tests.renyi_golden import cases, encloses, just_above, read

from tightrope.errors import DoesNotApply, InvalidInput, NotCertified
from tightrope.guarantee.renyi import best_for_delta
from tightrope.guarantee.renyi.optimal import (
    optimal_delta,
)
from tightrope.guarantee.renyi.regions import type_ii
from tightrope_reproduce.formulas import (
    abadi_lemma3,
    area,
    improved_moments_accountant,
    lemma3,
    moments_accountant,
    proposition1,
    question_two,
    theorem5,
)


def test_closed_areas_agree_with_the_enclosure():
    found = area.of_tradeoff(lambda t: (ndtr(ndtri(1 - t) - 1.0),) * 2)
    assert found.lower <= area.of_gaussian(1.0) <= found.upper

    def approx(t):
        value = np.maximum(0.9 - np.exp(1.0) * t, np.exp(-1.0) * (0.9 - t))
        return (np.maximum(value, 0.0),) * 2

    found = area.of_tradeoff(approx)
    assert found.lower <= area.of_approx(1.0, 0.1) <= found.upper
    assert area.of_approx(0.0) == area.of_gaussian(0.0) == 0.0
    assert area.of_approx(1e4) == 0.5


def test_area_of_a_renyi_region_exceeds_that_of_the_mechanism_behind_it():
    found = area.of_renyi(2.0, 1.0, tolerance=1e-4)
    assert found.upper - found.lower <= 1e-4
    assert area.of_gaussian(1.0) < found.lower < 0.5
    with pytest.raises(NotCertified, match="Ask for less"):
        area.of_tradeoff(lambda t: (0.0 * t, 1.0 - t), tolerance=1e-3)


def test_what_is_no_trade_off_function_is_refused():
    with pytest.raises(InvalidInput, match="convex"):
        proposition1.renyi_of_tradeoff(2.0, lambda t: 1 + t, lambda t: np.ones_like(t))


def test_a_trade_off_function_that_ends_early_has_infinite_divergence():
    found = proposition1.renyi_of_tradeoff(
        2.0, lambda t: np.maximum(1 - 2 * t, 0), lambda t: np.where(t < 0.5, 2.0, 0.0)
    )
    assert found == (np.inf, np.inf)


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [(50.0, 1e-5, "epsilon < 2"), (1e-5, 1e-2, "1/delta"), (15.0, 1e-5, "denominator")],
)
def test_theorem_5_refuses_outside_its_conditions(epsilon, delta, words):
    with pytest.raises(DoesNotApply, match=words):
        theorem5.noise_multiplier(epsilon, delta, 1)


def test_leading_terms_of_theorem_5_would_be_unsafe_where_109_is_not():
    truth = question_two.smallest_noise_multiplier(0.01, 1e-5, 1).exact ** 2
    assert 55523 < truth < theorem5.noise_multiplier(0.01, 1e-5, 1) ** 2


def test_steps_and_noise_answer_the_same_question():
    for epsilon in (0.5, 4.0):
        steps = question_two.largest_steps(epsilon, 1e-5, 20)
        assert steps.classical <= steps.improved <= steps.exact
        for name, count in steps._asdict().items():
            noise = getattr(question_two.smallest_noise_multiplier(epsilon, 1e-5, count), name)
            more = getattr(question_two.smallest_noise_multiplier(epsilon, 1e-5, count + 1), name)
            assert noise <= 20.0 * (1 + 1e-9) < more * (1 + 2e-9)


def test_abadi_conditions_hold_where_they_should():
    assert abadi_lemma3.broken_conditions(3.0, 0.001, 4.0) == []


@pytest.mark.parametrize(
    ("order", "gamma", "type_i"), [(2.0, 0.5, 0.1), (8.0, 0.2, 0.4), (1.2, 2.0, 0.01)]
)
def test_lemma_3_is_the_best_line_of_its_family_and_attains_lemma_4(order, gamma, type_i):
    """(43): the largest of 1 - d - e^e t and e^-e (1 - d - t) over epsilon, d = delta(epsilon)."""
    eps = np.geomspace(1e-3, 60.0, 4000)
    deltas = optimal_delta(order, gamma, eps).upper
    lines = np.maximum(1 - deltas - np.exp(eps) * type_i, np.exp(-eps) * (1 - deltas - type_i))
    found = lemma3.type_ii(order, gamma, type_i)
    assert found == pytest.approx(lines.max(), rel=1e-4)
    exact = type_ii(order, gamma, type_i)
    assert exact.lower - 1e-9 <= found <= exact.upper + 1e-15


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
