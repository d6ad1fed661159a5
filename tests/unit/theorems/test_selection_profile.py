"""Selection by profiles: above every exact selection, and below the Renyi route where it should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tightrope import account
from tightrope.process import PoissonSelection
from tightrope.theorems import poisson_selection_profile, poisson_selection_ps22


def released(law: np.ndarray, mean: float) -> np.ndarray:
    """The law of the best of Poisson(mean) draws, outcomes from the best to the worst."""
    better = np.append(0.0, np.cumsum(law))
    return np.append(-np.diff(np.exp(-mean * better)), math.exp(-mean))


def cells(mu: float, order: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """N(mu, 1) and N(0, 1) on cells, which are ranked in this order."""
    return np.diff(ndtr(edges - mu))[order], np.diff(ndtr(edges))[order]


def largest(mu: float, mean: float, epsilon: float) -> float:
    """The largest delta of many ways to rank the outcomes: a lower end of the truth."""
    edges = np.concatenate([[-np.inf], np.linspace(-4.0, 4.0 + mu, 400), [np.inf]])
    rng, size = np.random.default_rng(0), len(edges) - 1
    at = np.arange(size)
    ranks = [at, at[::-1], rng.permutation(size)]
    for share in np.linspace(0.05, 3.0, 40) / mean:  # some typical outcomes first, then large ones
        cut = int(np.searchsorted(edges, ndtri(min(share, 0.9))))
        ranks += [np.roll(at, -cut), np.append(at[:cut], at[cut:][::-1])]
    found = 0.0
    for rank in ranks:
        one, other = (released(law, mean) for law in cells(mu, rank, edges))
        for a, b in ((one, other), (other, one)):
            found = max(found, float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum()))
    return found


@pytest.mark.parametrize("mean", [0.3, 2.0, 10.0, 60.0])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.5])
def test_no_selection_exceeds_the_bound(mu: float, mean: float) -> None:
    bound = poisson_selection_profile.guarantee(PoissonSelection(mu, mean))
    closest = 0.0
    for epsilon in (0.0, 0.3 * mu, mu, 3 * mu, 5 * mu):
        exact, most = largest(mu, mean, epsilon), bound.delta(epsilon).upper
        assert exact <= most
        closest = max(closest, exact / most)
    assert closest > 0.05  # a bound off by a factor of m or e^mT would not pass unseen


@pytest.mark.parametrize(("mu", "mean", "delta"), [(0.2, 10.0, 1e-5), (0.5, 5.0, 1e-6)])
def test_the_smaller_of_both_routes_answers(mu: float, mean: float, delta: float) -> None:
    run = PoissonSelection(mu, mean)
    ways = poisson_selection_profile, poisson_selection_ps22
    here, there = (way.guarantee(run).epsilon(delta).upper for way in ways)
    assert 0.95 * there < here < 0.99 * there
    assert account(run).epsilon(delta).upper == here


def test_many_trials_are_left_to_the_renyi_route() -> None:
    run = PoissonSelection(0.05, 100.0)
    renyi = poisson_selection_ps22.guarantee(run).epsilon(1e-6).upper
    assert account(run).epsilon(1e-6).upper == renyi
    assert renyi < poisson_selection_profile.guarantee(run).epsilon(1e-6).upper


def test_a_finer_integral_hardly_moves() -> None:
    run, found = PoissonSelection(0.2, 10.0), []
    for cells_of in (1000, 2000, 8000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(poisson_selection_profile, "_CELLS", cells_of)
            found.append(poisson_selection_profile.guarantee(run).delta(1.4).upper)
    assert found[0] > found[1] > found[2]
    assert found[1] < found[2] * 1.02
