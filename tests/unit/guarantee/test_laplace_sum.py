"""A few Laplace releases: above the truth, and hardly above it."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.guarantee.loss import laplace_sum
from tightrope.guarantee.loss.pair import LaplacePair
from tightrope.process import LaplaceMechanism, Repeated


def two_by_enumeration(scale: float, epsilon: float) -> float:
    """delta of two releases from the law of one, cut into 4,000 cells at their middles."""
    top = 1.0 / scale
    edges = np.linspace(-top, top, 4001)
    over = 1.0 - np.exp(-(1.0 - scale * edges) / 2.0 / scale) / 2.0  # P(L > edge)
    masses = np.concatenate([[np.exp(-top) / 2.0], over[:-1] - over[1:], [0.5]])
    losses = np.concatenate([[-top], 0.5 * (edges[1:] + edges[:-1]), [top]])
    both, mass = np.add.outer(losses, losses), np.outer(masses, masses)
    return float(np.sum(mass * -np.expm1(np.minimum(epsilon - both, 0.0))))


@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.9, 0.9999])
def test_two_releases(scale: float, share: float) -> None:
    epsilon = share * 2.0 / scale
    truth = two_by_enumeration(scale, epsilon)
    bound = laplace_sum.delta_upper(LaplacePair(scale), 2, epsilon)
    # next to the largest loss a cell is wider than the distance to it, so the chord shows
    assert truth * (1 - 1e-5) <= bound <= truth * (1 + (1e-3 if share < 0.99 else 1e-2))


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_never_above_pure_composition_and_monotone(count: int) -> None:
    result = account(Repeated(LaplaceMechanism(2.0), count))
    epsilons = [result.epsilon(delta).upper for delta in (0.0, 1e-9, 1e-5, 1e-2)]
    assert epsilons[0] <= 0.5 * count * (1 + 1e-12)
    assert epsilons == sorted(epsilons, reverse=True)


def test_very_many_are_refused_with_advice() -> None:
    with pytest.raises(NotCertified, match="DeclaredApproxDP"):
        laplace_sum.delta_upper(LaplacePair(2.0), 100_000, 0.1)
