"""Renyi DP and f-DP: regions, areas, Gaussian composition and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tightrope.guarantee.renyi.optimal import optimal_delta, optimal_epsilon
from tightrope.guarantee.renyi.regions import type_ii, type_ii_of_curve
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


@pytest.mark.parametrize("gamma", [1e80, 9.9e89, 1.1e90, 1e150, 1e300])
@pytest.mark.parametrize("sides", [1, 2])
def test_no_level_is_too_large_for_a_bound_on_the_safe_side(gamma, sides):
    """Randomised response with log-odds gamma has this level at most, and needs its epsilon."""
    for order in (1.001, 2.0, 64.0):
        assert optimal_epsilon(order, gamma, 1e-5, sides=sides).upper >= gamma * (1.0 - 1e-9)
        most = min(0.5 * gamma, 1e100)
        assert optimal_delta(order, gamma, most, sides=sides).upper >= 1.0 - 1e-9
        assert optimal_epsilon(order, gamma, 1e-5, sides=sides).lower <= gamma * (1.0 + 1e-9) + 1e4
