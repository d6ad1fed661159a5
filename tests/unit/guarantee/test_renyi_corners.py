"""Conversions of one Renyi level in the corners: orders next to one, levels below 1e-22."""

from __future__ import annotations

import mpmath
import pytest

from tightrope.guarantee.renyi.closed_forms import lemma1_delta, lemma1_epsilon, theorem4_f
from tightrope.guarantee.renyi.kernel import checked_delta, checked_epsilon, excess_order
from tightrope.guarantee.renyi.optimal import optimal_delta, optimal_epsilon, two_sided_gamma
from tightrope.numerics.arrays import elementwise

lower_bound_f = elementwise(excess_order, checked_epsilon, checked_delta)(theorem4_f)


@pytest.fixture(autouse=True)
def _exact():
    with mpmath.workdps(700):
        yield


def randomised_response(order, log_odds):
    a, u = mpmath.mpf(order), mpmath.mpf(log_odds)
    return mpmath.log((mpmath.exp(a * u) + mpmath.exp((1 - a) * u)) / (1 + mpmath.exp(u))) / (a - 1)


@pytest.mark.parametrize("order", [1 + 2.0**-52, 1 + 1e-12, 1 + 1e-9, 1 + 1e-5])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0096, 0.5), (1e-3, 0.9), (1e-3, 1 - 1e-12)])
def test_two_sided_optimum_of_orders_near_one(order, epsilon, delta):
    """Here the curves cross: a test cut off at a share of 0.999 said no, and left out the truth."""
    e, d = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(delta)
    log_odds = mpmath.log((e + d) / (1 - d))
    assert order * e * mpmath.sinh((order - 1) * log_odds) <= (order - 1) * mpmath.sinh(
        order * log_odds
    )
    truth = randomised_response(order, log_odds)
    found = two_sided_gamma(order, epsilon, delta)
    assert found.lower <= truth <= found.upper
    assert found.upper - found.lower <= 1e-12 * truth
    assert optimal_epsilon(order, float(truth), delta).lower <= epsilon * (1 + 1e-9)
    assert optimal_delta(order, float(truth), epsilon).lower <= delta


@pytest.mark.parametrize(
    ("order", "gamma", "delta"),
    [(1000.0, 2e-39, 1e-30), (1.0 + 1e-12, 1.4e-49, 3.3e-48), (2.0, 1e-60, 1e-50)],
)
def test_tiny_levels_do_not_give_a_smaller_epsilon_than_one_side_proves(order, gamma, delta):
    """No crossing is at 0 here, so both sides say what one says: 1e-12, once 8e-18."""
    one, two = (optimal_epsilon(order, gamma, delta, sides=sides) for sides in (1, 2))
    assert two.upper >= one.lower
    assert two.lower <= one.upper
    assert two_sided_gamma(order, two.upper, delta).upper >= gamma


@pytest.mark.parametrize(
    ("order", "gamma", "delta"),
    [
        (1.0 + 1e-12, 1e-300, 3.3377183180419176e-48),
        (1.000000000000129, 1e-300, 0.32000639852741747),
    ],
)
def test_closed_epsilon_of_a_product_below_every_normal_number(order, gamma, delta):
    z = mpmath.mpf(order) - 1
    truth = mpmath.log1p(mpmath.expm1(z * gamma) / ((1 + z) * mpmath.mpf(delta))) / z
    assert lemma1_epsilon(order, gamma, delta) >= truth


@pytest.mark.parametrize("gamma", [1.5425903806950397e-20, 1e-100, 1e-300])
@pytest.mark.parametrize("ratio", [1.5, 10.0, 1412.7, 12345.6])
@pytest.mark.parametrize("order", [1.0 + 1e-12, 1.0 + 1e-6, 1.5])
def test_closed_delta_is_rounded_upwards(order, gamma, ratio):
    epsilon = gamma * ratio
    z = mpmath.mpf(order) - 1
    second = mpmath.expm1(z * gamma) / mpmath.expm1(z * epsilon) / (1 + z)
    first = mpmath.exp(z * (gamma - epsilon) - z * mpmath.log1p(1 / z)) / (1 + z)
    assert lemma1_delta(order, gamma, epsilon) >= min(first, second)


@pytest.mark.parametrize(
    ("order", "delta"), [(1.0000000000000093, 0.5), (1.0000000000000073, 0.2572707310384807)]
)
def test_lower_bound_f_of_a_product_below_every_normal_number(order, delta):
    a, e, d = mpmath.mpf(order), mpmath.exp(mpmath.mpf(1e-300)), mpmath.mpf(delta)
    inner = (e - a * d) * ((1 - d) / (e - d)) ** a + a * d
    assert lower_bound_f(order, 1e-300, delta) <= 1e-300 + mpmath.log(inner) / (a - 1)


def test_lower_bound_f_has_no_subnormal_numbers():
    assert lower_bound_f(1.0000063436873745, 1.6799975902655963e-19, 1e-300) == 0.0
