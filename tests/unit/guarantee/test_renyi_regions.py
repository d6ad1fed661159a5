"""Renyi DP and f-DP: regions, areas, Gaussian composition and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tightrope.errors import DoesNotApply, InvalidInput, NotCertified
from tightrope.guarantee.renyi.optimal import optimal_delta, optimal_epsilon
from tightrope.guarantee.renyi.regions import type_ii, type_ii_of_curve
from tightrope_reproduce.formulas import (
    abadi_lemma3,
    area,
    lemma3,
    proposition1,
    question_two,
    theorem5,
)
from tightrope_reproduce.formulas.kullback_leibler import type_ii_kullback_leibler

TYPE_I = np.array([0.0, 0.001, 0.05, 0.3, 0.5, 0.9, 0.999, 1.0])


def test_corollary_1_lies_between_the_kullback_leibler_region_and_the_truth():
    def curve(order):
        return 0.5 * order

    truth = ndtr(ndtri(1 - TYPE_I) - 1.0)
    found = type_ii_of_curve(curve, TYPE_I)
    weaker = type_ii_kullback_leibler(curve(1.0 + 1e-9), TYPE_I).lower
    assert np.all(weaker <= found + 1e-15) and np.all(found <= truth)
    one_order = type_ii(3.0, curve(3.0), TYPE_I).lower
    assert np.all(one_order <= found + 1e-14)


def test_the_boundary_is_symmetric():
    """Both directions are bounded alike, so the region is its own mirror image."""
    for order, gamma in [(2.0, 0.5), (10.0, 0.2), (1.5, 2.0)]:
        back = type_ii(order, gamma, type_ii(order, gamma, 0.05).lower)
        assert back.lower <= 0.05 * (1 + 1e-12) and back.upper >= 0.05 * (1 - 1e-12)


def test_the_boundary_is_convex_and_touches_every_dp_line():
    tau = np.linspace(0, 1, 20001)
    beta = type_ii(4.0, 0.3, tau).lower
    assert np.all(np.diff(beta, 2) >= -1e-13)
    for epsilon in (0.0, 0.2, 0.5):
        delta = optimal_delta(4.0, 0.3, epsilon)
        lines = tau * np.exp(epsilon) + beta
        assert lines.min() == pytest.approx(1 - delta.upper, abs=5e-5)
        assert lines.min() >= 1 - delta.upper - 1e-12


def test_nothing_and_everything():
    assert type_ii(2.0, 0.0, 0.3).upper == pytest.approx(0.7)
    assert type_ii(2.0, np.inf, 0.3) == (0.0, 0.0)
    assert optimal_epsilon(2.0, 0.0, 0.1) == (0.0, 0.0)
    assert optimal_epsilon(2.0, np.inf, 0.1) == (np.inf, np.inf)
    assert optimal_delta(2.0, np.inf, 1.0) == (1.0, 1.0)
    assert optimal_delta(2.0, 0.0, 1.0) == (0.0, 0.0)


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


@pytest.mark.parametrize("gamma", [1e80, 9.9e89, 1.1e90, 1e150, 1e300])
@pytest.mark.parametrize("sides", [1, 2])
def test_no_level_is_too_large_for_a_bound_on_the_safe_side(gamma, sides):
    """Randomised response with log-odds gamma has this level at most, and needs its epsilon."""
    for order in (1.001, 2.0, 64.0):
        assert optimal_epsilon(order, gamma, 1e-5, sides=sides).upper >= gamma * (1.0 - 1e-9)
        most = min(0.5 * gamma, 1e100)
        assert optimal_delta(order, gamma, most, sides=sides).upper >= 1.0 - 1e-9
        assert optimal_epsilon(order, gamma, 1e-5, sides=sides).lower <= gamma * (1.0 + 1e-9) + 1e4
