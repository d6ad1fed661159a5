"""Renyi divergences by cells: around the truth on both sides, narrow, and unlike the quadrature."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightrope.guarantee.loss.pairs import (
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.renyi import composed_renyi_by_cells, renyi, renyi_by_cells

ORDERS = (1.01, 1.5, 2.0, 8.0, 64.0)
PAIRS = [
    SampledGaussianPair(0.01, 1.0),
    SampledGaussianPair(0.01, 1.0, "add"),
    SampledGaussianPair(0.5, 3.0),
    SampledGaussianPair(0.5, 3.0, "add"),
    SampledGaussianPair(1e-5, 0.2),
    SampledGaussianPair(1e-4, 5.0),
    SampledGaussianPair(1.0, 0.8),
    FixedSizeGaussianPair(0.05, 1.0),
    LaplacePair(0.5),
    LaplacePair(3.0),
    DiscretePair((-0.5, 0.4), (0.3, 0.7)),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_both_methods_agree(pair, order: float) -> None:  # type: ignore[no-untyped-def]
    found, (low, high) = renyi_by_cells(pair, order), renyi(pair, order)
    assert found.lower <= high and low <= found.upper
    assert found.width <= 1e-3 * high


@pytest.mark.parametrize("mu", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("order", ORDERS)
def test_a_gaussian_has_half_order_mu_squared(mu: float, order: float) -> None:
    found = renyi_by_cells(GaussianPair(mu), order)
    assert found.lower <= 0.5 * order * mu * mu <= found.upper
    assert found.relative_width < 3e-4


@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.9])
def test_order_two_has_a_closed_form(rate: float) -> None:
    """E_Q r^2 = 1 + rate^2 (e^{mu^2} - 1)."""
    found = renyi_by_cells(SampledGaussianPair(rate, 1.3), 2.0)
    truth = math.log1p(rate**2 * math.expm1(1.3**2))
    assert found.lower <= truth <= found.upper


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("mu", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("order", [*ORDERS, 101.0])
def test_a_pair_that_takes_every_record_is_gaussian(order: float, mu: float, direction) -> None:  # type: ignore[no-untyped-def]
    found = renyi_by_cells(SampledGaussianPair(1.0, mu, direction), order)
    assert found.lower <= 0.5 * order * mu * mu <= found.upper
    assert found.relative_width < 3e-4


@settings(max_examples=60)
@given(
    st.floats(-7.0, 0.0),
    st.floats(-2.0, 0.8),
    st.floats(-2.0, 2.0),
    st.sampled_from(["remove", "add"]),
)
def test_never_on_the_wrong_side(log_rate: float, log_mu: float, log_z: float, direction) -> None:  # type: ignore[no-untyped-def]
    pair = SampledGaussianPair(10.0**log_rate, 10.0**log_mu, direction)
    order = 1.0 + 10.0**log_z
    found, (low, high) = renyi_by_cells(pair, order), renyi(pair, order)
    assert found.lower <= high * (1 + 1e-12) and low <= found.upper * (1 + 1e-12)


def test_infinite_losses_and_sums() -> None:
    assert renyi_by_cells(DiscretePair((0.1,), (0.9,), 0.1), 2.0).lower == math.inf
    parts = ((SampledGaussianPair(0.1, 1.0), 3), (LaplacePair(2.0), 2))
    whole = composed_renyi_by_cells(parts, 4.0)
    summed = sum(n * renyi_by_cells(pair, 4.0).upper for pair, n in parts)
    assert whole.upper == pytest.approx(summed, rel=1e-9)


@pytest.mark.parametrize("order", [1 + 1e-12, 1 + 1e-9, 1 + 1e-6, 1.001, 5.0, 1e3])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1, 1.0, 50.0])
def test_randomised_response_of_orders_near_one_and_small_losses(order, epsilon):
    """x^order - 1 - order (x - 1) cancels there: the upper end was 6e-4 below the truth."""
    with mpmath.workdps(80):
        a, u = mpmath.mpf(order), mpmath.mpf(epsilon)
        total = (mpmath.exp(a * u) + mpmath.exp((1 - a) * u)) / (1 + mpmath.exp(u))
        truth = mpmath.log(total) / (a - 1)
        found = renyi_by_cells(randomized_response_pair(epsilon), order)
        assert found.lower <= truth <= found.upper


@pytest.mark.parametrize("order", [1 + 1e-12, 1 + 1e-9, 1 + 1e-6, 1.001])
@pytest.mark.parametrize("scale", [0.01, 1.0, 3.0, 10.0, 1e4])
def test_laplace_noise_of_orders_near_one(order, scale):
    with mpmath.workdps(80):
        a, b = mpmath.mpf(order), mpmath.mpf(scale)
        upper, lower = a * mpmath.exp((a - 1) / b), (a - 1) * mpmath.exp(-a / b)
        truth = mpmath.log((upper + lower) / (2 * a - 1)) / (a - 1)
        found = renyi_by_cells(LaplacePair(scale), order)
        assert found.lower <= truth <= found.upper
