"""Symmetrising, intersecting, multiplying and grouping trade-off functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope.guarantee.approx import group as approx_group
from tightrope_reproduce.formulas.optimal_composition import delta_optimal
from tightrope_reproduce.formulas.product import _product, group, tensor
from tightrope_reproduce.tradeoff.bracket import TradeoffBracket, bracket, coarsened
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff, LaplaceTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff, SampledGaussianTradeoff
from tightrope_reproduce.tradeoff.hull import intersection, symmetrise
from tightrope_reproduce.tradeoff.subsampled import SubsampledGaussianTradeoff

ALPHA = np.concatenate([[0.0, 1e-12, 1e-6, 1e-3], np.linspace(0.01, 0.99, 33), [1 - 1e-9, 1.0]])
EPS = np.linspace(0.0, 4.0, 17)
SKEW = DiscreteTradeoff(np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.2, 0.6, 0.1]))


def encloses(outer: TradeoffBracket, curve, width: float) -> None:
    low, high = outer.bounds(ALPHA)
    inner_low, inner_high = curve.bounds(ALPHA)
    assert (low <= inner_high).all() and (inner_low <= high).all()
    assert np.max(high - low) <= width


@pytest.mark.parametrize(
    ("curve", "width"),
    [
        (GaussianTradeoff(1.0), 1e-5),
        (GaussianTradeoff(0.01), 1e-7),
        (GaussianTradeoff(8.0), 1e-3),
        (SampledGaussianTradeoff(0.25, 2.5), 3e-5),
        (SampledGaussianTradeoff(0.01, 1.0).inverse(), 1e-4),
        (SubsampledGaussianTradeoff(0.25, 2.5), 3e-5),
        (LaplaceTradeoff(1.3), 1e-6),
        (ApproxTradeoff(1.0, 1e-5), 1e-11),
        (SKEW, 1e-12),
    ],
)
def test_bracket_encloses_the_curve(curve, width):
    encloses(bracket(curve), curve, width)
    low, high = bracket(curve).delta_bounds(EPS)
    inner_low, inner_high = curve.delta_bounds(EPS)
    assert (low <= inner_high).all() and (inner_low <= high).all()


def test_symmetrise_is_the_hull_of_both_orders():
    both = symmetrise(SKEW)
    assert both.type_ii(ALPHA) == pytest.approx(both.inverse().type_ii(ALPHA), abs=1e-14)
    pointwise = np.minimum(SKEW.type_ii(ALPHA), SKEW.inverse().type_ii(ALPHA))
    assert (both.type_ii(ALPHA) <= pointwise + 1e-14).all()
    # 1 + h*(-e^eps) = max of the two conjugates
    assert both.delta_one_way(EPS) == pytest.approx(SKEW.delta(EPS), abs=1e-14)
    # it is the LARGEST such curve: the convex hull of the pointwise minimum, by brute force
    x = np.linspace(0, 1, 801)
    low = np.minimum(SKEW.type_ii(x), SKEW.inverse().type_ii(x))
    for a in (0.13, 0.4, 0.62):
        left, right = x <= a, x >= a
        chord = (
            low[left][:, None] * (x[right] - a) + low[right] * (a - x[left])[:, None]
        ) / np.maximum(x[right] - x[left][:, None], 1e-12)
        slow = np.min(chord[(x[right] - x[left][:, None]) > 1e-9])
        assert both.type_ii(a) == pytest.approx(slow, abs=2e-3)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.0, 0.0, 1.0], [0.32448549, 0.43665855, 0.23885596]),
        ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]),
        ([0.3, 0.7], [0.0, 1.0]),
        ([1.0], [1.0]),
    ],
)
def test_symmetrise_with_vertical_and_flat_pieces(p, q):
    curve = DiscreteTradeoff(np.array(p), np.array(q))
    both = symmetrise(curve)
    assert both.delta_one_way(EPS) == pytest.approx(curve.delta(EPS), abs=1e-14)
    assert both.inverse().delta_one_way(EPS) == pytest.approx(curve.delta(EPS), abs=1e-14)


def test_symmetrised_sampled_gaussian_is_the_closed_form():
    forward = SampledGaussianTradeoff(0.25, 2.5)
    closed = symmetrise(forward)
    assert isinstance(closed, SubsampledGaussianTradeoff)
    encloses(bracket(forward).map(symmetrise), closed, 3e-5)
    assert symmetrise(closed) is closed


def test_intersection_is_the_pointwise_maximum():
    family = [(0.0, 0.3), (0.5, 0.1), (1.0, 0.01), (2.0, 1e-6), (1.5, 0.2), (0.5, 0.15)]
    curve = intersection(family)
    x = np.linspace(0, 1, 501)
    slow = np.max([ApproxTradeoff(e, d).type_ii(x) for e, d in family], axis=0)
    assert curve.type_ii(x) == pytest.approx(slow, abs=1e-14)
    for e, d in family:
        assert curve.delta(e) <= d * (1 + 1e-12)
    assert curve.delta(2.0) == pytest.approx(1e-6, rel=1e-9)
    assert curve.inverse().type_ii(x) == pytest.approx(slow, abs=1e-14)


def test_intersection_keeps_tiny_deltas_on_both_sides():
    curve = intersection([(1.0, 1e-3), (5.0, 1e-40)])
    assert curve.delta_one_way(5.0) == pytest.approx(1e-40, rel=1e-9)
    assert curve.inverse().delta_one_way(5.0) == pytest.approx(1e-40, rel=1e-9)
    assert intersection([(0.0, 1.0)]).type_ii(0.2) == 0.0
    assert intersection([(0.0, 0.0)]).type_ii(0.2) == pytest.approx(0.8)


def test_profile_of_a_gaussian_gives_its_curve_back():
    """f -> delta(eps) -> f: the lines of a fine family come back to the curve from below."""
    gaussian = GaussianTradeoff(1.0)
    eps = np.linspace(0.0, 8.5, 4000)
    back = intersection(list(zip(eps, gaussian.delta_bounds(eps)[1], strict=True)))
    assert (back.type_ii(ALPHA) <= gaussian.bounds(ALPHA)[1]).all()
    assert back.type_ii(ALPHA) == pytest.approx(gaussian.type_ii(ALPHA), abs=2e-6)


def test_product_of_discrete_curves_is_exact():
    once = ApproxTradeoff(0.4, 1e-3)
    three = tensor(once, once, once)
    low, high = three.delta_bounds(EPS)
    for e, a, b in zip(EPS, low, high, strict=True):
        truth = delta_optimal(e, 0.4, 1e-3, 3)
        assert a <= truth.upper and truth.lower <= b and b - a < 1e-10


def test_product_by_hand():
    p, q = np.array([0.2, 0.8]), np.array([0.7, 0.3])
    coin = DiscreteTradeoff(p, q)
    two = DiscreteTradeoff(np.outer(p, p).ravel(), np.outer(q, q).ravel())
    encloses(tensor(coin, coin), two, 1e-12)


def test_gaussians_multiply_in_closed_form():
    total = tensor(GaussianTradeoff(3.0), GaussianTradeoff(4.0))
    assert isinstance(total.lower, GaussianTradeoff)
    assert total.lower.mu == pytest.approx(5.0, rel=1e-14)
    assert tensor(GaussianTradeoff(3.0)).upper == GaussianTradeoff(3.0)


def test_lattice_product_encloses_the_closed_form():
    parts = [bracket(GaussianTradeoff(m), 256) for m in (0.5, 1.0)]
    product = TradeoffBracket(
        _product(parts[0].lower, parts[1].lower, 256, up=False),
        _product(parts[0].upper, parts[1].upper, 256, up=True),
    )
    encloses(product, GaussianTradeoff(math.sqrt(1.25)), 5e-4)


def test_mixed_product_is_below_its_parts_and_order_free():
    one = tensor(LaplaceTradeoff(0.5), SampledGaussianTradeoff(0.1, 1.0), resolution=512)
    two = tensor(SampledGaussianTradeoff(0.1, 1.0), LaplaceTradeoff(0.5), resolution=512)
    a, b = one.bounds(ALPHA), two.bounds(ALPHA)
    assert (a[0] <= b[1]).all() and (b[0] <= a[1]).all()
    assert (a[0] <= LaplaceTradeoff(0.5).bounds(ALPHA)[1]).all()
    assert np.max(a[1] - a[0]) < 5e-4


def test_coarsening_keeps_its_side():
    rng = np.random.default_rng(8)
    p, q = rng.dirichlet(np.ones(3000)), rng.dirichlet(np.ones(3000))
    exact = DiscreteTradeoff(p, q)
    pair = TradeoffBracket(
        coarsened(p, q, 1e-14, 200, up=False), coarsened(p, q, 1e-14, 200, up=True)
    )
    assert pair.lower.p.size < 500
    encloses(pair, exact, 2e-2)


def test_group_of_gaussians_and_of_lattices():
    closed = group(GaussianTradeoff(0.5), 4)
    assert closed.lower.mu == pytest.approx(2.0, rel=1e-14)
    # the same through polygons: 1 - (1 - f)^{o 2}
    polygons = bracket(GaussianTradeoff(0.5))
    total = TradeoffBracket(group(polygons.lower, 2).lower, group(polygons.upper, 2).upper)
    encloses(total, GaussianTradeoff(1.0), 2e-5)


def test_group_iterates_the_curve():
    curve = LaplaceTradeoff(0.5)
    three = group(curve, 3)
    slow = ALPHA
    for _ in range(3):
        slow = 1 - curve.type_ii(np.minimum(slow, 1.0))
    low, high = three.bounds(ALPHA)
    assert (low <= 1 - slow + 1e-13).all() and (1 - slow <= high + 1e-13).all()
    assert np.max(high - low) < 1e-5


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_group_of_an_approx_curve_is_the_classical_formula(size):
    eps, delta = approx_group(0.3, 1e-4, size)
    low, high = group(ApproxTradeoff(0.3, 1e-4), size).delta_bounds(eps)
    assert low <= delta <= high * (1 + 1e-11)
    assert high == pytest.approx(delta, rel=1e-6)


def test_group_symmetrises_first():
    low = group(SKEW, 2).bounds(ALPHA)[0]
    once = symmetrise(SKEW).bounds(ALPHA)[1]
    assert (low <= once).all()


def test_half_masses_are_not_lost():
    """Cuts exactly in the middle of [0, 1] belong to both ends of the overlay."""
    coin = DiscreteTradeoff(np.array([0.5, 0.5]), np.array([0.9, 0.1]))
    one = symmetrise(coin)
    two = group(coin, 2)
    slow = one.type_ii(1 - one.type_ii(ALPHA))
    low, high = two.bounds(ALPHA)
    assert (low <= slow + 1e-12).all() and (slow <= high + 1e-12).all()


def test_refusals():
    with pytest.raises(InvalidInput, match="at least one"):
        tensor()
    with pytest.raises(InvalidInput, match="at least one"):
        intersection([])
    with pytest.raises(InvalidInput, match="whole number"):
        group(GaussianTradeoff(1.0), 1.5)
    with pytest.raises(InvalidInput):
        intersection([(1.0, 1.5)])
