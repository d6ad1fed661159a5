"""Corners of the trade-off functions of papers: the truth, to fifty digits, is inside."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from tightrope_reproduce.tradeoff import divergence
from tightrope_reproduce.tradeoff.bracket import bracket
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff, LaplaceTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff, SampledGaussianTradeoff
from tightrope_reproduce.tradeoff.hull import symmetrise
from tightrope_reproduce.tradeoff.subsampled import SubsampledGaussianTradeoff


@pytest.fixture(autouse=True)
def _fifty_digits():
    with mpmath.workdps(50):
        yield


def test_the_profile_of_a_pair_at_a_negative_epsilon():
    level, failure, eps = 0.07678264012257796, 0.9999999999999986, -0.007335860243193984
    growth, at = mpmath.exp(mpf(level)), mpmath.exp(-mpf(eps))
    ahead = mpf(failure) + (1 - mpf(failure)) * (growth - at) / (1 + growth)
    truth = 1 - 1 / at + ahead / at
    lower, upper = ApproxTradeoff(level, failure).delta_bounds(eps)
    assert lower <= truth <= upper


def test_many_equal_outcomes_sum_to_their_corner():
    size = 10**6
    p = np.full(size, 1.0 / size)
    q = np.repeat([1.5 / size, 0.5 / size], size // 2)
    curve = DiscreteTradeoff(p, q)
    mirrored = symmetrise(DiscreteTradeoff([0.5, 0.5], [0.75, 0.25]))
    for type_i in (0.1, 0.3, 0.4999, 0.7, 0.9):
        truth = max(1 - 1.5 * mpf(type_i), (1 - mpf(type_i)) / 2)
        lower, upper = curve.bounds(type_i)
        assert lower <= truth <= upper
        assert mirrored.bounds(type_i)[0] <= truth


def test_the_straight_piece_of_a_sampled_curve_next_to_zero():
    rate, mu, type_i = 7.163893509473942e-11, 623.028144102603, 0.9999999841394036
    x = mpmath.ncdf(-mpf(mu) / 2)
    truth = x + mpf(rate) * x + (1 - mpf(rate)) * (1 - x) - mpf(type_i)
    lower, upper = SubsampledGaussianTradeoff(rate, mu).bounds(type_i)
    assert lower <= truth <= upper


def test_errors_below_every_normal_number():
    lower, upper = LaplaceTradeoff(700.0).bounds(0.9999999969495922)
    assert lower <= mpmath.exp(-700) * (1 - mpf(0.9999999969495922)) <= upper
    assert SampledGaussianTradeoff(0.9999999999241035, 38.0, True).bounds(0.53)[1] > 0.0


@pytest.mark.parametrize("moved", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize(
    ("generator", "truth"),
    [
        (divergence.KULLBACK_LEIBLER, lambda t: t * mpmath.log(t)),
        (divergence.CHI_SQUARED, lambda t: (t - 1) ** 2),
        (divergence.TOTAL_VARIATION, lambda t: abs(t - 1) / 2),
        (divergence.HELLINGER, lambda t: (mpmath.sqrt(t) - 1) ** 2),
    ],
)
def test_divergences_of_laws_that_are_close_lie_between_their_ends(moved, generator, truth):
    p, q = [0.5, 0.5], [0.5 + moved, 0.5 - moved]
    under_q = [mpf(mass) / (mpf(q[0]) + mpf(q[1])) for mass in q]
    exact = mpmath.fsum(b * truth(mpf(a) / b) for a, b in zip(p, under_q, strict=True))
    found = divergence.of_atoms(generator, DiscreteTradeoff(np.array(p), np.array(q)))
    assert found.lower <= exact <= found.upper


def test_brackets_of_nearly_perfect_privacy_hold():
    curve = GaussianTradeoff(1e-9)
    around = bracket(curve, 20_000)
    low, high = around.delta_bounds(0.0)
    assert low <= curve.delta(0.0) <= high


@pytest.mark.parametrize("type_i", [1e-30, 1e-20])
def test_brackets_of_little_privacy_hold_where_powers_are_next_to_1(type_i):
    curve = GaussianTradeoff(20.0)
    assert bracket(curve, 64).bounds(type_i)[1] >= curve.bounds(type_i)[0]
