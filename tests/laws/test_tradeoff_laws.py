"""Laws of the Gaussian profile, of trade-off functions and of (epsilon, delta) composition."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.approx import advanced, amplified, group
from tightrope.guarantee.gaussian import compose_mu
from tightrope.process import Adjacency
from tightrope_reproduce.formulas.gaussian_noise import analytic_noise, classical_noise
from tightrope_reproduce.formulas.optimal_composition import delta_optimal, epsilon_optimal
from tightrope_reproduce.formulas.product import group as group_of_curve
from tightrope_reproduce.formulas.product import tensor
from tightrope_reproduce.formulas.simple_composition import basic
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff, LaplaceTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff, SampledGaussianTradeoff
from tightrope_reproduce.tradeoff.hull import intersection, symmetrise
from tightrope_reproduce.tradeoff.subsampled import SubsampledGaussianTradeoff

laws = settings(max_examples=60, deadline=None, derandomize=True)
few = settings(max_examples=25, deadline=None, derandomize=True)

mus = st.floats(-6.0, 3.0).map(lambda x: 10.0**x)
epsilons = st.one_of(st.just(0.0), st.floats(-8.0, 5.0).map(lambda x: 10.0**x))
signed = st.tuples(epsilons, st.sampled_from([-1.0, 1.0])).map(lambda t: t[0] * t[1])
deltas = st.floats(-300.0, -0.05).map(lambda x: 10.0**x)
near_one = st.floats(-15.0, -1.0).map(lambda x: 1 - 10.0**x)
rates = st.floats(0.0, 1.0)
type_is = st.one_of(st.floats(0.0, 1.0), st.floats(-300.0, 0.0).map(lambda x: 10.0**x))
small = st.floats(0.0, 2.0)
counts = st.integers(1, 30)


@st.composite
def pairs(draw: st.DrawFn) -> DiscreteTradeoff:
    size = draw(st.integers(1, 7))
    weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=size, max_size=size)
    p, q = np.array(draw(weights)), np.array(draw(weights))
    assume(p.sum() > 0 and q.sum() > 0)
    return DiscreteTradeoff(p / p.sum(), q / q.sum())


closed_curves = st.one_of(
    st.floats(0.0, 30.0).map(GaussianTradeoff),
    st.floats(0.0, 30.0).map(LaplaceTradeoff),
    st.builds(ApproxTradeoff, st.floats(0.0, 30.0), rates),
    st.builds(SampledGaussianTradeoff, rates, st.floats(1e-3, 9.0), st.booleans()),
    st.builds(SubsampledGaussianTradeoff, rates, st.floats(1e-3, 9.0)),
)
curves = st.one_of(closed_curves, pairs())


# --- the Gaussian profile ---------------------------------------------------------------------
@laws
@given(signed, mus, st.floats(1.0, 1.5))
def test_delta_rises_with_mu_and_falls_with_epsilon(eps, mu, factor):
    value = profile.delta(eps, mu)
    assert 0.0 <= value <= 1.0
    assert profile.delta(eps, mu * factor) >= value * (1 - 1e-14)
    assert profile.delta(eps + (factor - 1) * (abs(eps) + mu), mu) <= value * (1 + 1e-14)


@laws
@given(epsilons, mus)
def test_both_signs_of_epsilon_agree(eps, mu):
    """delta(-e) = 1 - e^-e + e^-e delta(e)."""
    other = -math.expm1(-eps) + math.exp(-eps) * profile.delta(eps, mu)
    assert math.isclose(profile.delta(-eps, mu), other, rel_tol=1e-13)


@laws
@given(deltas, mus)
def test_epsilon_inverts_delta(delta, mu):
    low, high = profile.epsilon_bounds(delta, mu)
    assert 0.0 <= low <= profile.epsilon(delta, mu) <= high
    assert profile.delta_bounds(high, mu)[1] <= delta or high == 0.0
    assert low == 0.0 or profile.delta_bounds(low, mu)[0] >= delta


@laws
@given(epsilons, deltas)
def test_mu_inverts_delta(eps, delta):
    low, high = profile.mu_bounds(eps, delta)
    assert low <= profile.mu(eps, delta) <= high <= low * (1 + 1e-11)
    assert (
        profile.delta_bounds(eps, low)[1]
        <= delta
        <= profile.delta_bounds(eps, high)[0] * (1 + 1e-15)
    )


@laws
@given(epsilons, near_one)
def test_mu_near_delta_one_keeps_its_sides(eps, delta):
    """Here the doubles next to delta are far apart in mu, so only the sides can be promised."""
    low, high = profile.mu_bounds(eps, delta)
    assert low <= profile.mu(eps, delta) <= high
    assert profile.delta_bounds(eps, low)[1] <= delta <= profile.delta_bounds(eps, high)[0]


@laws
@given(type_is, mus)
def test_gaussian_curve_is_its_own_inverse(type_i, mu):
    low, high = profile.tradeoff_bounds(type_i, mu)
    beta = profile.tradeoff(type_i, mu)
    assert low <= beta <= high <= np.nextafter(1 - type_i, 2)
    if 1e-290 < beta < 0.999 and 1e-290 < type_i < 0.999:
        assert math.isclose(profile.tradeoff(beta, mu), type_i, rel_tol=1e-11)


@laws
@given(st.floats(1e-6, 0.999), deltas)
def test_analytic_noise_never_exceeds_the_classical(eps, delta):
    assert analytic_noise(eps, delta) <= classical_noise(eps, delta)


@laws
@given(mus, counts)
def test_n_times_mu_equals_a_list_of_n(mu, n):
    assert math.isclose(compose_mu([mu] * n), compose_mu([mu], [n]), rel_tol=1e-14)


# --- trade-off functions ----------------------------------------------------------------------
@laws
@given(curves, type_is, type_is)
def test_curves_fall_are_below_guessing_and_never_nan(curve, a, b):
    a, b = min(a, b), max(a, b)
    fa, fb = curve.type_ii(a), curve.type_ii(b)
    low, high = curve.bounds(a)
    assert 0.0 <= low <= fa <= high <= 1.0
    assert fb <= fa * (1 + 1e-12) + 1e-15 and fa <= 1 - a + 2e-16


@laws
@given(curves, type_is, st.floats(-30.0, 30.0))
def test_every_line_of_the_profile_lies_below_the_curve(curve, a, eps):
    """f(a) >= 1 - delta(eps) - e^eps a (Fenchel-Young)."""
    upper = curve.bounds(a)[1]
    assert upper >= 1 - curve._delta_bounds(np.array(eps))[1] - math.exp(eps) * a - 1e-14


@laws
@given(pairs())
def test_duality_twice_is_the_identity(curve):
    """f -> 1 + f*(-e^eps) at its own slopes -> the maximum of those lines."""
    ratios = curve.log_ratios
    eps = ratios[np.isfinite(ratios) & (np.abs(ratios) < 700)]
    a = np.linspace(0.0, 1.0, 41)
    lines = (
        [1 - d - math.exp(e) * a for e, d in zip(eps, curve.delta_one_way(eps), strict=True)]
        if eps.size
        else []
    )
    back = np.max([np.zeros_like(a), *lines], axis=0)
    assert np.allclose(back[1:], curve.type_ii(a)[1:], atol=1e-12)


@laws
@given(pairs(), st.floats(-20.0, 20.0))
def test_symmetrised_profile_is_the_larger_of_both_orders(curve, eps):
    both = symmetrise(curve)
    assert math.isclose(both.delta_one_way(eps), curve.delta(eps), rel_tol=1e-11, abs_tol=1e-13)
    again = symmetrise(both)
    a = np.linspace(0, 1, 21)
    assert np.allclose(again.type_ii(a), both.type_ii(a), atol=1e-13)


@laws
@given(curves, st.floats(0.0, 30.0), st.floats(0.0, 5.0))
def test_profiles_fall(curve, eps, more):
    assert curve.delta(eps + more) <= curve.delta(eps) * (1 + 1e-12) + 1e-15


@laws
@given(pairs(), pairs(), st.floats(0.0, 3.0))
def test_products_commute_and_cost_privacy(f, g, eps):
    one, two = tensor(f, g), tensor(g, f)
    first, second = one.delta_bounds(eps), two.delta_bounds(eps)
    assert math.isclose(first[1], second[1], rel_tol=1e-10, abs_tol=1e-13)
    # releasing more cannot hide what was released before
    assert first[1] >= f.delta(eps) - 1e-12
    assert first[1] <= f.delta(0.0) + g.delta(eps) + 1e-12


@few
@given(pairs(), st.integers(2, 4), type_is)
def test_groups_cost_privacy(curve, size, a):
    low, high = group_of_curve(curve, size).bounds(a)
    assert low <= high
    assert low <= symmetrise(curve).bounds(a)[1]


@laws
@given(pairs())
def test_gaussian_mu_lies_below_the_curve(curve):
    mu = curve.gaussian_mu().upper
    a = np.linspace(0, 1, 101)
    if mu < 1e6:
        assert (profile.tradeoff(a, mu) <= curve.bounds(a)[1] + 1e-13).all()


@laws
@given(st.lists(st.tuples(st.floats(0.0, 20.0), deltas), min_size=1, max_size=6), type_is)
def test_intersection_is_the_maximum(family, a):
    curve = intersection(family)
    slow = max(ApproxTradeoff(e, d).type_ii(a) for e, d in family)
    low, high = curve.bounds(a)
    assert low <= slow * (1 + 1e-12) + 1e-14 and slow <= high * (1 + 1e-12) + 1e-14


@laws
@given(closed_curves)
def test_arrays_equal_scalars(curve):
    a = np.array([0.0, 1e-9, 0.2, 0.7, 1.0])
    assert [curve.type_ii(float(x)) for x in a] == list(curve.type_ii(a))
    e = np.array([-1.0, 0.0, 0.5])
    assert [curve.delta(float(x)) for x in e] == list(curve.delta(e))


# --- (epsilon, delta) -------------------------------------------------------------------------
@few
@given(small, deltas, st.integers(1, 200), deltas)
def test_optimal_is_below_advanced_and_basic(eps, delta, count, slack):
    advanced_eps, advanced_delta = advanced([(eps, delta)], slack, [count])
    assume(advanced_delta < 1.0)
    best = epsilon_optimal(advanced_delta, eps, delta, count)
    basic_eps, basic_delta = basic([(eps, delta)], [count])
    assert best.lower <= advanced_eps
    assert delta_optimal(basic_eps, eps, delta, count).lower <= basic_delta
    # kov at the total epsilon of basic composition is basic composition
    assert math.isclose(
        delta_optimal(basic_eps * (1 + 1e-15), eps, delta, count).upper,
        basic_delta,
        rel_tol=1e-9,
        abs_tol=1e-300,
    )


@laws
@given(small, deltas, rates)
def test_sampling_amplifies(eps, delta, rate):
    new_eps, new_delta = amplified(eps, delta, rate, Adjacency.ADD_OR_REMOVE)
    assert 0.0 <= new_eps <= eps and new_delta <= delta
    # (e^new - 1) = q (e^eps - 1)
    assert math.isclose(math.expm1(new_eps), rate * math.expm1(eps), rel_tol=1e-12, abs_tol=1e-300)


@laws
@given(small, deltas, st.integers(1, 9), st.integers(1, 9))
def test_groups_of_groups(eps, delta, a, b):
    """A group of a*b is a group of a inside a group of b."""
    inner = group(eps, delta, a)
    assume(inner[1] < 0.5)
    outer, direct = group(*inner, b), group(eps, delta, a * b)
    assert math.isclose(outer[0], direct[0], rel_tol=1e-13)
    assert math.isclose(outer[1], direct[1], rel_tol=1e-10)
