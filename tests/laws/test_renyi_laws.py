"""Laws of the Renyi conversions, over the whole range of their arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tightrope.accounting import account
from tightrope.guarantee.kinds.renyi import (
    LinearTerm,
    RenyiCurve,
    RenyiGuarantee,
    TableTerm,
    renyi_guarantee_of,
)
from tightrope.guarantee.renyi import best_delta, best_epsilon
from tightrope.guarantee.renyi.closed_forms import (
    balle_delta,
    balle_epsilon,
    classical_delta,
    classical_epsilon,
    lemma1_delta,
    lemma1_epsilon,
    theorem4_gamma,
)
from tightrope.guarantee.renyi.optimal import (
    one_sided_gamma,
    optimal_delta,
    optimal_epsilon,
    renyi_of_pure,
    two_sided_gamma,
)
from tightrope.guarantee.renyi.regions import type_ii
from tightrope.process import RandomizedResponse
from tightrope_reproduce.formulas import improved_moments_accountant, lemma3, moments_accountant
from tightrope_reproduce.formulas.kullback_leibler import type_ii_kullback_leibler


def powers(low, high):
    return st.floats(low, high).map(lambda x: 10.0**x)


orders = powers(-9, 9).map(lambda z: 1.0 + z)
moderate_orders = powers(-2, 2).map(lambda z: 1.0 + z)
deltas = st.one_of(powers(-300, -1e-9), powers(-12, -0.01), powers(-12, -0.31).map(lambda x: 1 - x))
epsilons = st.one_of(st.just(0.0), powers(-12, 3))
gammas = st.one_of(st.just(0.0), powers(-12, 3))
probabilities = st.one_of(st.floats(0.0, 1.0), powers(-15, 0))
factors = st.floats(1.0, 3.0)
quick = settings(max_examples=60, deadline=None)
few = settings(max_examples=10, deadline=None)


def sound(enclosure, low=0.0, high=math.inf):
    lower, upper = enclosure
    assert low <= lower <= upper <= high  # false for NaN
    return lower, upper


@quick
@given(orders, epsilons, deltas)
def test_two_sided_is_never_worse_than_one_sided_never_below_theorem_4(order, epsilon, delta):
    one = sound(one_sided_gamma(order, epsilon, delta))
    two = sound(two_sided_gamma(order, epsilon, delta))
    assert one[0] <= two[1] and two[0] >= one[0]
    assert theorem4_gamma(order, epsilon, delta) <= one[1]
    assert one[1] - one[0] <= 4e-12 * one[1] + 2.3e-308
    assert two[1] - two[0] <= 4e-12 * two[1] + 2.3e-308


@quick
@given(orders, gammas, deltas)
def test_epsilon_exact_below_lemma_1_below_balle_and_classical(order, gamma, delta):
    two = sound(optimal_epsilon(order, gamma, delta))
    one = sound(optimal_epsilon(order, gamma, delta, sides=1))
    assert two[1] <= one[1] <= lemma1_epsilon(order, gamma, delta)
    assert lemma1_epsilon(order, gamma, delta) <= classical_epsilon(order, gamma, delta)
    if order * delta < 1:
        assert lemma1_epsilon(order, gamma, delta) <= balle_epsilon(order, gamma, delta)


@quick
@given(orders, gammas, epsilons)
def test_delta_exact_below_lemma_1_below_balle_below_classical(order, gamma, epsilon):
    two = sound(optimal_delta(order, gamma, epsilon), high=1.0)
    one = sound(optimal_delta(order, gamma, epsilon, sides=1), high=1.0)
    closed = lemma1_delta(order, gamma, epsilon)
    assert two[1] <= one[1] <= closed <= balle_delta(order, gamma, epsilon)
    assert balle_delta(order, gamma, epsilon) <= classical_delta(order, gamma, epsilon)


@quick
@given(orders, gammas, deltas, st.sampled_from([1, 2]))
def test_going_to_epsilon_and_back_to_gamma_meets_the_start(order, gamma, delta, sides):
    level = {1: one_sided_gamma, 2: two_sided_gamma}[sides]
    epsilon = optimal_epsilon(order, gamma, delta, sides=sides)
    # the promise: the level at the upper end is enough
    assert level(order, epsilon.upper, delta).upper >= gamma * (1 - 1e-15)
    if epsilon.lower > 0:
        assert level(order, epsilon.lower, delta).lower <= gamma * (1 + 1e-15)


@quick
@given(orders, gammas, epsilons, st.sampled_from([1, 2]))
def test_going_to_delta_and_back_to_gamma_meets_the_start(order, gamma, epsilon, sides):
    level = {1: one_sided_gamma, 2: two_sided_gamma}[sides]
    delta = optimal_delta(order, gamma, epsilon, sides=sides)
    if delta.upper >= 1e-300:
        assert level(order, epsilon, delta.upper).upper >= gamma * (1 - 1e-15)
    if delta.lower >= 1e-300:
        assert level(order, epsilon, delta.lower).lower <= gamma * (1 + 1e-15)


@quick
@given(
    orders, epsilons, deltas, factors, factors, st.sampled_from([one_sided_gamma, two_sided_gamma])
)
def test_gamma_increases_with_epsilon_and_delta(order, epsilon, delta, more, wider, level):
    start = level(order, epsilon, delta).lower
    assert start <= level(order, epsilon * more, delta).upper
    assert start <= level(order, epsilon, min(1.0, delta * wider)).upper


@quick
@given(orders, gammas, deltas, factors, factors, st.sampled_from([1, 2]))
def test_epsilon_increases_with_gamma_and_decreases_with_delta_and_order(
    order, gamma, delta, more, wider, sides
):
    start = optimal_epsilon(order, gamma, delta, sides=sides)
    assert start.lower <= optimal_epsilon(order, gamma * more, delta, sides=sides).upper
    smaller = optimal_epsilon(order, gamma, min(1.0, delta * wider), sides=sides)
    assert smaller.lower <= start.upper
    # (order', gamma) implies (order, gamma) for order' >= order
    higher = optimal_epsilon(1 + (order - 1) * more, gamma, delta, sides=sides)
    assert higher.lower <= start.upper


@quick
@given(orders, gammas, epsilons, factors, factors, st.sampled_from([1, 2]))
def test_delta_increases_with_gamma_and_decreases_with_epsilon_and_order(
    order, gamma, epsilon, more, wider, sides
):
    start = optimal_delta(order, gamma, epsilon, sides=sides)
    assert start.lower <= optimal_delta(order, gamma * more, epsilon, sides=sides).upper
    assert optimal_delta(order, gamma, epsilon * wider, sides=sides).lower <= start.upper
    higher = optimal_delta(1 + (order - 1) * more, gamma, epsilon, sides=sides)
    assert higher.lower <= start.upper


@few
@given(moderate_orders, st.floats(0.0, 3.0), powers(-6, -0.01))
def test_the_minimum_agrees_with_a_grid_of_pairs(order, epsilon, delta):
    """Slow and obvious: d(p||q) and max{d(p||q), d(q||p)} on 20,001 points of the constraint."""
    logit = np.linspace(-20.0, 20.0, 20001)
    q = (1 - delta) / (1 + np.exp(-logit)) * math.exp(-epsilon)
    p, not_p = delta + q * math.exp(epsilon), (1 - delta) / (1 + np.exp(logit))
    with np.errstate(over="ignore"):
        there = p * (p / q) ** (order - 1) + not_p * (not_p / (1 - q)) ** (order - 1)
        back = q * (q / p) ** (order - 1) + (1 - q) * ((1 - q) / not_p) ** (order - 1)
    assume(np.isfinite(there.min()))
    one = math.log(there.min()) / (order - 1)
    two = math.log(np.maximum(there, back).min()) / (order - 1)
    rounding = 1e-14 / (order - 1)
    assert one_sided_gamma(order, epsilon, delta).lower <= one + rounding
    assert one_sided_gamma(order, epsilon, delta).upper >= one - 1e-4 * one - rounding
    assert two_sided_gamma(order, epsilon, delta).lower <= two + rounding
    assert two_sided_gamma(order, epsilon, delta).upper >= two - 1e-2 * two - rounding


@quick
@given(orders, epsilons)
def test_pure_dp_lies_below_the_simple_bound_and_converts_back_to_at_least_zero(order, epsilon):
    bound = renyi_of_pure(order, epsilon)
    assert 0.0 <= bound <= min(epsilon, 0.5 * order * epsilon**2) * (1 + 1e-13) + 1e-307
    # a conversion never tightens: delta at epsilon from the Renyi level is at least the true 0
    assert optimal_delta(order, bound, epsilon).upper >= 0.0


@quick
@given(orders, gammas, probabilities, factors)
def test_type_ii_error_is_a_trade_off_function_of_type_i(order, gamma, type_i, more):
    lower, upper = sound(type_ii(order, gamma, type_i), high=1.0)
    assert upper <= 1.0 - type_i + 1e-15
    assert type_ii(order, gamma, min(1.0, type_i * more)).lower <= upper
    assert type_ii(order, gamma * more, type_i).lower <= upper
    assert lower >= type_ii_kullback_leibler(gamma, type_i).lower * (1 - 1e-9) - 1e-300


@few
@given(powers(-1, 1).map(lambda z: 1 + z), powers(-3, 0.5), st.floats(0.001, 0.999))
def test_lemma_3_with_the_two_sided_delta_is_lemma_4(order, gamma, type_i):
    exact = type_ii(order, gamma, type_i)
    family = lemma3.type_ii(order, gamma, type_i)
    assert exact.lower - 1e-9 <= family <= exact.upper + 1e-15
    assert lemma3.type_ii(order, gamma, type_i, sides=1) <= family + 1e-12


@few
@given(powers(-4, 1), powers(-30, -1))
def test_one_order_is_never_better_than_the_best_order(rho, delta):
    def curve(order):
        return rho * order

    best = best_epsilon(curve, delta)
    some = 1.0 + np.geomspace(1e-3, 1e4, 40)
    assert best <= np.min(optimal_epsilon(some, curve(some), delta).upper) * (1 + 1e-10)
    assert best <= best_epsilon(curve, delta, route="lemma1") * (1 + 1e-12)
    assert best_delta(curve, best) <= delta * (1 + 1e-6)


@few
@given(powers(-1, 2), st.integers(1, 10**6), powers(-30, -1))
def test_improved_below_classical_and_noise_and_steps_invert(noise, steps, delta):
    epsilon = moments_accountant.epsilon(noise, steps, delta)
    assert improved_moments_accountant.epsilon(noise, steps, delta) <= epsilon
    rounding = 1e-9 + 8 * 2.0**-52 * epsilon  # of a large epsilon, which stands in an exponent
    assert moments_accountant.delta(noise, steps, epsilon) == pytest.approx(delta, rel=rounding)
    assert moments_accountant.noise_multiplier(epsilon, delta, steps) == pytest.approx(noise)
    assert abs(moments_accountant.steps(epsilon, delta, noise) - steps) <= 1
    enough = moments_accountant.noise_multiplier(epsilon, delta, steps)
    assert moments_accountant.epsilon(enough, steps, delta) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize("order", [1 + 1e-9, 1.5, 2, 1e9])
@pytest.mark.parametrize("delta", [1e-300, 1e-12, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("level", [0.0, 1e-12, 1.0, 1e3, 1e6])
def test_the_corners_of_the_range_give_numbers(order, delta, level):
    sound(one_sided_gamma(order, level, delta))
    sound(two_sided_gamma(order, level, delta))
    for sides in (1, 2):
        sound(optimal_epsilon(order, level, delta, sides=sides))
        sound(optimal_delta(order, level, level, sides=sides), high=1.0)
    sound(type_ii(order, level, delta), high=1.0)


# --- what Renyi DP is -----------------------------------------------------------------------------
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 7.0, 60.0])
@pytest.mark.parametrize("flip", [0.02, 0.5, 0.9])
def test_renyi_dp_is_the_divergence_of_the_worst_neighbours(order, flip):
    """(1/(a-1)) ln sum p^a q^(1-a), for a release whose laws can be written down."""
    p = np.array([1 - flip / 2, flip / 2])
    truth = math.log(np.sum(p**order * p[::-1] ** (1 - order))) / (order - 1)
    release = account(RandomizedResponse(flip)).guarantee()
    assert release.renyi(order).lower <= truth * (1 + 1e-12)
    assert release.renyi(order).upper >= truth * (1 - 1e-12)
    assert release.renyi(order).upper == pytest.approx(truth, rel=1e-9)
    view = renyi_guarantee_of(release)
    assert view.renyi(order).upper == pytest.approx(truth, rel=1e-9)
    # the log moment alpha(lambda) = ln E_P (p/q)^lambda at lambda = order - 1
    moment = math.log(np.sum(p * (p / p[::-1]) ** (order - 1)))
    assert view.renyi(order).upper * (order - 1) == pytest.approx(moment, rel=1e-9)


def test_a_renyi_guarantee_is_its_curve_and_epsilon_and_delta_follow_from_it():
    line = RenyiGuarantee(RenyiCurve.of(LinearTerm(0.2)))
    for order in (1.5, 3.0, 40.0):
        assert line.renyi(order).upper == pytest.approx(0.2 * order, rel=1e-12)
    one = RenyiGuarantee(RenyiCurve.of(TableTerm((4.0,), (0.5,))))
    for delta in (1e-2, 1e-5):  # nothing is known at other orders than 4
        known = optimal_epsilon(4.0, 0.5, delta)
        assert known.lower <= one.epsilon(delta).upper == pytest.approx(known.upper, rel=1e-4)
    known = optimal_delta(4.0, 0.5, 1.0)
    assert known.lower <= one.delta(1.0).upper == pytest.approx(known.upper, rel=1e-3)
