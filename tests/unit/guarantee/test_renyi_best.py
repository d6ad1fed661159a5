"""Curves of orders: finite domains, tables, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi import (
    ROUTES,
    TabulatedCurve,
    best_delta,
    best_epsilon,
    best_for_delta,
    best_for_epsilon,
)
from tightrope.guarantee.renyi.best import route_named
from tightrope.guarantee.renyi.optimal import optimal_delta, optimal_epsilon


def gaussian(order):
    return 1.25 * order


def test_routes_are_ordered_from_tight_to_loose():
    found = [best_epsilon(gaussian, 1e-5, route=name) for name in ROUTES]
    assert found == sorted(found)
    found = [best_delta(gaussian, 4.0, route=name) for name in ROUTES]
    assert found == sorted(found)


def test_the_optimum_over_orders_agrees_with_a_fine_grid():
    orders = 1.0 + np.geomspace(0.5, 20.0, 4001)
    grid = optimal_epsilon(orders, gaussian(orders), 1e-5).upper.min()
    assert grid * (1 - 1e-6) <= best_epsilon(gaussian, 1e-5) <= grid
    grid = optimal_delta(orders, gaussian(orders), 6.0).upper.min()
    assert grid * (1 - 1e-5) <= best_delta(gaussian, 6.0) <= grid


def test_orders_beyond_a_curve_are_never_used():
    def short(order):
        return np.where(order < 2.5, gaussian(order), np.inf)

    best = best_for_delta(short, 1e-5)
    assert best.order < 2.5
    edge = optimal_epsilon(2.5, gaussian(2.5), 1e-5).upper
    assert edge <= best.bound <= edge * (1 + 1e-4)


def test_a_narrow_domain_is_found():
    def narrow(order):
        return np.where((order > 3.0) & (order < 3.1), gaussian(order), np.inf)

    assert 3.0 < best_for_delta(narrow, 1e-5).order < 3.1


def test_limits_of_the_search_are_respected():
    best = best_for_delta(gaussian, 1e-5, lowest=8.0, highest=64.0)
    assert best.order == pytest.approx(8.0, rel=1e-12)
    assert best.bound == pytest.approx(optimal_epsilon(8.0, 10.0, 1e-5).upper, rel=1e-9)
    with pytest.raises(InvalidInput, match="swap"):
        best_epsilon(gaussian, 1e-5, lowest=8.0, highest=2.0)


def test_nothing_known_gives_nothing():
    def unknown(order):
        return np.full_like(order, np.inf)

    assert best_epsilon(unknown, 1e-5) == np.inf
    assert best_delta(unknown, 1.0) == 1.0


def test_no_loss_gives_no_loss():
    assert best_epsilon(np.zeros_like, 1e-5) == 0.0
    assert best_delta(np.zeros_like, 0.0) == 0.0


def test_extreme_deltas():
    assert best_epsilon(gaussian, 1.0) == 0.0
    assert best_epsilon(gaussian, 0.0) == np.inf
    assert 0.0 < best_epsilon(gaussian, 1e-300) < np.inf
    assert best_epsilon(gaussian, 1 - 1e-12) == 0.0


def test_a_table_is_used_at_and_between_its_orders():
    orders = [1.5, 2.0, 4.0, 8.0, 64.0]
    table = TabulatedCurve(orders, gaussian(np.array(orders)))
    at_orders = optimal_epsilon(np.array(orders), table(np.array(orders)), 1e-5).upper.min()
    best = best_for_delta(table, 1e-5)
    assert best_epsilon(gaussian, 1e-5) <= best.bound <= at_orders
    assert table(np.array([100.0]))[0] == np.inf
    between = table(np.array([1.2, 3.0, 30.0]))
    assert np.all(between >= gaussian(np.array([1.2, 3.0, 30.0])) * (1 - 1e-15))
    assert np.all(between <= [gaussian(1.5), gaussian(4.0), gaussian(64.0)])


def test_a_table_reads_any_order_and_drops_infinities():
    table = TabulatedCurve([4.0, 2.0, 8.0], [0.5, 0.7, np.inf])
    assert table(np.array([2.0, 4.0])).tolist() == pytest.approx([0.5, 0.5])
    assert best_for_epsilon(table, 1.0).order <= 4.0


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        (lambda order: np.full_like(order, np.nan), "NaN"),
        (lambda order: -order, "negative"),
        (lambda order: 1.0, "vectorize"),
    ],
)
def test_curves_that_make_no_sense_are_refused(curve, words):
    with pytest.raises(InvalidInput, match=words):
        best_epsilon(curve, 1e-5)


def test_refusals_name_what_is_allowed():
    with pytest.raises(InvalidInput, match="classical"):
        route_named("magic")
    with pytest.raises(InvalidInput, match="sides"):
        optimal_epsilon(2, 1, 1e-5, sides=3)
    with pytest.raises(InvalidInput, match="1e-300"):
        optimal_epsilon(2, 1, 1e-310)
    with pytest.raises(InvalidInput, match="one gamma for each order"):
        TabulatedCurve([2.0, 3.0], [1.0])
    with pytest.raises(InvalidInput, match="infinite"):
        TabulatedCurve([2.0], [np.inf])


@pytest.mark.parametrize("order", [1.0, 0.5, np.nan, np.inf, True, "2", None, [], 2j])
def test_orders_that_make_no_sense_are_refused(order):
    with pytest.raises(InvalidInput, match="order"):
        optimal_epsilon(order, 1.0, 1e-5)


def test_integers_numpy_scalars_and_lists_read_the_same():
    want = optimal_epsilon(2.0, 1.0, 0.25)
    assert optimal_epsilon(2, 1, np.float64(0.25)) == want
    assert optimal_epsilon(np.int64(2), [1], 0.25).upper.tolist() == [want.upper]


def test_broadcasting_keeps_the_shape():
    found = optimal_epsilon(np.array([[2.0], [8.0]]), 0.5, np.array([1e-3, 1e-5, 1e-7]))
    assert found.lower.shape == found.upper.shape == (2, 3)
    one = optimal_epsilon(8.0, 0.5, 1e-5)
    assert found.upper[1, 1] == pytest.approx(one.upper, rel=1e-14)
