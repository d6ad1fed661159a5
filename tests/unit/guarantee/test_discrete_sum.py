"""Repeated discrete releases against the optimal composition of (epsilon, delta) guarantees."""

from __future__ import annotations

import pytest

from tightrope.accounting import account
from tightrope.guarantee.approx.optimal import delta_optimal, epsilon_optimal
from tightrope.guarantee.loss import discrete_sum, profile
from tightrope.guarantee.loss.pair import LaplacePair, approx_pair
from tightrope.process import DeclaredApproxDP, LaplaceMechanism, Repeated, Sequence


@pytest.mark.parametrize("level", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("count", [2, 3, 20, 300])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999999])
def test_profile_is_the_optimal_composition(level: float, count: int, share: float) -> None:
    epsilon = share * level * count
    truth = delta_optimal(epsilon, level, 1e-7, count)
    found = discrete_sum.delta(approx_pair(level, 1e-7), count, epsilon)
    assert found.lower <= truth.upper * (1 + 1e-9)
    assert truth.lower * (1 - 1e-9) <= found.upper
    assert found.upper <= truth.upper * (1 + 1e-6) + 1e-15


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_repeated_declarations_are_accounted_exactly(delta: float) -> None:
    found = account(Repeated(DeclaredApproxDP(0.3), 20)).epsilon(delta)
    truth = epsilon_optimal(delta, 0.3, 0.0, 20)
    assert found.lower <= truth.upper * (1 + 1e-9)
    assert truth.lower * (1 - 1e-9) <= found.upper <= truth.upper * (1 + 1e-6)


def test_an_infinite_mass_above_delta_is_infinite() -> None:
    assert account(Repeated(DeclaredApproxDP(0.3, 1e-4), 20)).epsilon(1e-5).upper == float("inf")


def test_mixed_with_laplace_is_never_below_laplace_alone() -> None:
    mixed = Sequence((Repeated(LaplaceMechanism(2.0), 3), DeclaredApproxDP(0.1)))
    alone = account(Repeated(LaplaceMechanism(2.0), 3)).epsilon(1e-2).upper
    assert account(mixed).epsilon(1e-2).upper >= alone * 0.999
    bound = profile.epsilon(((LaplacePair(2.0), 3), (approx_pair(0.1, 0.0), 1)), 1e-2).upper
    assert bound <= 1.6 + 1e-9
