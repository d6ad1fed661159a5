"""Corners of trade-off curves, pairs and groups: the truth, to fifty digits, is inside."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from tightrope.guarantee import approx as simple
from tightrope.guarantee.approx import tradeoff_interval
from tightrope.guarantee.base import belief
from tightrope.guarantee.gaussian import compose_mu, group_mu
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.guarantee.loss.pairs import GaussianPair, SampledGaussianPair, approx_pair
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import over_down, rest_down, rest_up, times_up
from tightrope_reproduce.formulas.optimal_composition import delta_optimal
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff


@pytest.fixture(autouse=True)
def _fifty_digits():
    with mpmath.workdps(50):
        yield


def test_directed_roundings_of_products_quotients_and_complements():
    draw = np.random.default_rng(0)
    for value, count in zip(draw.exponential(size=200), draw.integers(1, 1000, 200), strict=True):
        x, n = float(value), int(count)
        assert Fraction(times_up(x, n)) >= Fraction(x) * n
        assert Fraction(over_down(x, n)) * n <= Fraction(x)
        share = math.exp(-30.0 * x)
        assert Fraction(rest_down(share)) <= 1 - Fraction(share) <= Fraction(rest_up(share))
    assert (times_up(0.5, 3), over_down(1.5, 3), rest_up(0.0), rest_down(0.0)) == (1.5, 0.5, 1, 1)


# ---- one (epsilon, delta) pair
@pytest.mark.parametrize(
    ("level", "failure", "delta"),
    [
        (36.7, 0.0, 1.0 - 4.4e-16),
        (700.0, 0.703668702138505, 0.9999999999991929),
        (27.412751522405657, 0.0, 0.9999999389597141),
        (0.3, 0.1, 0.15),
    ],
)
def test_the_epsilon_of_a_delta_next_to_one(level, failure, delta):
    share = (mpf(delta) - mpf(failure)) / (1 - mpf(failure))
    truth = mpmath.log(mpmath.exp(mpf(level)) * (1 - share) - share)
    found = ApproxGuarantee(level, failure).epsilon(delta)
    assert found.lower <= truth <= found.upper
    assert found.width <= 1e-14 * (1.0 + level)


def approx_type_ii(epsilon: float, delta: float, type_i: float) -> mpf:
    left, growth = 1 - mpf(delta), mpmath.exp(mpf(epsilon))
    return max(mpf(0), left - growth * mpf(type_i), (left - mpf(type_i)) / growth)


@pytest.mark.parametrize(
    ("epsilon", "delta", "type_i"),
    [
        (720.0, 0.0, 1e-309),
        (1500.0, 0.0, 5e-324),
        (0.6931471805599453, 3.4611748465130614e-17, 0.9999999999999999),
        (6.959372339757022e-12, 6.1161575657847e-16, 0.9999999999948064),
        (0.1, 0.3, 0.7),
        (1e-16, 0.0, 0.9),
    ],
)
def test_no_attack_beats_the_curve_of_a_pair(epsilon, delta, type_i):
    truth = approx_type_ii(epsilon, delta, type_i)
    found = tradeoff_interval(type_i, epsilon, delta)
    assert found.lower <= truth <= found.upper
    if epsilon <= 700.0:
        lower, upper = ApproxTradeoff(epsilon, delta).bounds(type_i)
        assert lower <= truth <= upper


def test_far_out_the_flat_line_keeps_its_digits():
    found = tradeoff_interval(0.9, 50.0, 0.0)
    assert found.relative_width <= 1e-14 and found.lower <= approx_type_ii(50.0, 0.0, 0.9)


@pytest.mark.parametrize("level", [340.0, 360.0, 690.0, 720.0])
@pytest.mark.parametrize("failure", [0.0, 0.3])
def test_many_runs_of_a_pair_of_a_large_level(level, failure):
    found = (ApproxGuarantee(level, failure) ** 5).delta(level)
    assert found.upper >= delta_optimal(level, level, failure, 5).lower
    nothing = (ApproxGuarantee(level, failure) ** 5).delta(6.0 * level)
    assert nothing.upper == pytest.approx(1.0 - (1.0 - failure) ** 5, rel=1e-9, abs=1e-9)


# ---- groups
def test_a_group_loses_no_less_than_its_size_times_the_level():
    assert Fraction(simple.group(353.8402533848353, 0.0, 10)[0]) >= 10 * Fraction(353.8402533848353)
    level, size = 1.0159900078770545, 100
    below = 101.59900078770545  # by 2e-15
    assert Fraction(below) < size * Fraction(level)
    assert 0.0 < ApproxGuarantee(level).group(size).delta(below).upper <= 1e-13
    assert ApproxGuarantee(0.5).group(3).delta(1.5).upper == 0.0


@pytest.mark.parametrize(
    ("level", "failure", "size", "type_i"),
    [
        (0.0009041534012324121, 3.445658694827682e-08, 10, 0.9998697205552295),
        (0.1, 0.0, 7, 0.6),
        (2.0, 1e-9, 3, 1e-3),
        (2.89, 0.0, 2, 0.974),
    ],
)
def test_no_attack_on_a_group_beats_the_chain_of_curves(level, failure, size, type_i):
    reached = mpf(type_i)
    for _ in range(size):
        left, growth = 1 - mpf(failure), mpmath.exp(mpf(level))
        reached = 1 - max(mpf(0), left - growth * reached, (left - reached) / growth)
    found = GroupGuarantee(ApproxGuarantee(level, failure), size).tradeoff(type_i)
    assert found.lower <= 1 - reached
    assert found.lower >= (1 - reached) * (1 - mpf(1e-9))


# ---- curves of several releases
def test_without_false_alarms_a_tiny_failure_is_still_a_hit():
    """1 - 1e-20 is no double: its neighbour below is."""
    run = LossGuarantee((((approx_pair(1.0, 1e-20), 1),),))
    assert run.tradeoff(0.0).lower < 1.0
    assert run.true_positive_rate(0.0).upper >= 1e-20
    assert LossGuarantee((((GaussianPair(1.0), 2),),)).tradeoff(0.0) == Interval.exact(1.0)


def test_a_curve_at_type_one_errors_beyond_the_slopes_that_are_doubles():
    mu, steps, type_i = 6.425560122007865, 40, 1e-310
    truth = mpf("0.0014613644973561446")  # Phi(-Phi^-1(1e-310) - mu sqrt(40))
    found = LossGuarantee((((GaussianPair(mu), steps),),)).tradeoff(type_i)
    assert found.lower <= truth <= found.upper


def test_a_curve_next_to_guessing_is_not_below_the_truth():
    """f <= 1 - a, and 1 - a is rounded."""
    rate, mu, type_i = 1.1131892207848504e-10, 1.6562620443348166, 1.744468047830616e-16
    pairs = [SampledGaussianPair(rate, mu, way) for way in ("remove", "add")]
    found = LossGuarantee(tuple(((pair, 1),) for pair in pairs)).tradeoff(type_i)
    least = (1 - mpf(rate)) * (1 - mpf(type_i))  # f_p >= this, and its other part is below 1e-10
    assert found.upper >= least + mpf(rate) * (1 - mpf(1e-9))


# ---- Gaussian parameters and beliefs
def test_the_gaussian_parameter_of_nothing_and_of_a_large_level():
    assert ApproxGuarantee(0.0).gaussian_mu() == Interval.exact(0.0)
    assert ApproxGuarantee(1000.0).gaussian_mu().lower > 30.0
    for level in (1e-9, 1.0, 30.0):
        truth = ApproxTradeoff(level).gaussian_mu()  # the smallest Gaussian curve below it
        assert ApproxGuarantee(level).gaussian_mu(0.0).meets(truth)


def test_a_gaussian_parameter_that_many_points_do_not_settle_ends():
    asked = []

    def delta(epsilon: float) -> float:
        asked.append(epsilon)
        return GaussianGuarantee(1e8).delta(epsilon).upper

    found = ProfileGuarantee(delta, epsilon_upper=lambda d: 5e15).gaussian_mu()
    assert len(asked) <= 2000
    assert found.upper >= 1e8


@pytest.mark.parametrize(
    ("prior", "false_alarms", "type_ii"),
    [
        (3e-323, 4.2406637388344747e-265, 0.9998529677963022),
        (5.022410354171675e-309, 5.433935351897072e-115, 0.8386203969523243),
        (1e-320, 1e-3, 0.5),
        (1e-310, 0.0, 1.0 - 1e-15),
        (0.3, 0.01, 0.7),
    ],
)
def test_beliefs_of_improbable_records(prior, false_alarms, type_ii):
    hit = mpf(prior) * (1 - mpf(type_ii))
    truth = hit / (hit + (1 - mpf(prior)) * mpf(false_alarms))
    found = belief(prior, false_alarms, Interval.exact(type_ii))
    assert found.lower <= truth <= found.upper


def test_belief_of_an_impossible_record():
    assert GaussianGuarantee(0.0).posterior(0.0, 0.5).upper == 0.0


# ---- Gaussian releases
def test_the_composed_mu_is_the_next_double_above_the_truth():
    for mu, steps in ((0.1, 3), (0.7, 999), (1e-200, 7), (1e200, 50), (2.0, 4)):
        found, square = compose_mu([mu], [steps]), steps * Fraction(mu) ** 2
        assert Fraction(math.nextafter(found, 0.0)) ** 2 < square <= Fraction(found) ** 2
    assert Fraction(group_mu(0.1, 3)) >= 3 * Fraction(0.1)
    assert group_mu(math.inf, 2) == compose_mu([math.inf, 1.0]) == math.inf


@pytest.mark.parametrize(
    ("mu", "steps", "epsilon"), [(0.0106, 8887, 30.0), (0.03, 37, 6.6), (0.3, 5, 24.0)]
)
def test_the_far_tail_of_composed_gaussian_releases(mu, steps, epsilon):
    root = mpf(mu) * mpmath.sqrt(steps)
    with mpmath.workdps(200):
        tails = [mpmath.ncdf(-mpf(epsilon) / root + sign * root / 2) for sign in (1, -1)]
        truth = tails[0] - mpmath.exp(mpf(epsilon)) * tails[1]
    found = (GaussianGuarantee(mu) ** steps).delta(epsilon)
    assert found.lower <= truth <= found.upper
    assert found.relative_width <= 3e-11


def test_the_divergence_of_a_gaussian_release_too_small_or_large_for_a_double():
    assert GaussianGuarantee(1e-170).renyi(2.0).upper >= 5e-324
    assert GaussianGuarantee(1e200).renyi(2.0).lower < math.inf
    assert GaussianGuarantee(0.0).renyi(2.0) == Interval.exact(0.0)
