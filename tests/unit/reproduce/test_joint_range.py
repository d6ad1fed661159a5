"""Laws with two outcomes are enough for the joint range of two divergences."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope.guarantee.renyi.optimal import one_sided_gamma
from tightrope_reproduce.formulas.joint_range import lower_boundary, pair_of

CASES = [(1.0, 2.0), (0.1, 5.0), (0.5, 1.5)]


@pytest.mark.parametrize(("epsilon", "order"), CASES)
def test_no_laws_leave_the_hull_of_those_with_two_outcomes(epsilon: float, order: float) -> None:
    corners = lower_boundary(epsilon, order)
    random = np.random.default_rng(2)
    for outcomes in (2, 3, 7):
        for spread in (0.3, 1.0, 10.0):
            p, q = random.dirichlet(np.full(outcomes, spread), (2, 2000))
            p, q = ((law + 1e-6) / (law + 1e-6).sum(-1, keepdims=True) for law in (p, q))
            stick, chi = pair_of(p, q, epsilon, order).T
            inside = stick < 0.95
            least = np.interp(stick[inside], *corners.T)
            assert (chi[inside] >= least * (1.0 - 1e-2) - 1e-6).all()


@pytest.mark.parametrize(("epsilon", "order"), CASES)
def test_the_boundary_is_theorem_3(epsilon: float, order: float) -> None:
    """gamma(delta) = chi^-1 of the least chi^a at E_x = delta."""
    corners = lower_boundary(epsilon, order)
    for delta in (0.01, 0.1, 0.5, 0.9):
        least = float(np.interp(delta, *corners.T))
        found = np.log1p((order - 1.0) * least) / (order - 1.0)
        assert found == pytest.approx(float(one_sided_gamma(order, epsilon, delta).upper), rel=5e-3)
