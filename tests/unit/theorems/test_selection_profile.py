"""Selection by profiles: above every exact selection, and below the Renyi route where it should."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tightrope import account
from tightrope.errors import InvalidInput
from tightrope.guarantee.selection import binomial_selection
from tightrope.numerics.interval import Interval
from tightrope.process import NegativeBinomialSelection, PoissonSelection
from tightrope.theorems import selection
from tightrope.theorems.selection import (
    NegativeBinomialSelectionPs22,
    PoissonSelectionProfile,
    PoissonSelectionPs22,
)


def released(law: np.ndarray, mean: float) -> np.ndarray:
    """The law of the best of Poisson(mean) draws, outcomes from the best to the worst."""
    better = np.append(0.0, np.cumsum(law))
    return np.append(-np.diff(np.exp(-mean * better)), math.exp(-mean))


def cells(mu: float, order: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """N(mu, 1) and N(0, 1) on cells, which are ranked in this order."""
    return np.diff(ndtr(edges - mu))[order], np.diff(ndtr(edges))[order]


def best_of(law: np.ndarray, run: NegativeBinomialSelection) -> np.ndarray:
    """The law of the best of K draws, from the generating function of K."""
    worse = 1.0 - np.minimum(np.append(0.0, np.cumsum(law)), 1.0)
    gamma, shape = run.gamma, run.shape
    if shape == 0.0:
        return -np.diff(np.log1p(-(1.0 - gamma) * worse) / math.log(gamma))
    top = (1.0 - (1.0 - gamma) * worse) ** -shape - 1.0
    return -np.diff(top / (gamma**-shape - 1.0))


def largest(
    mu: float, mean: float, epsilon: float, released: Callable[..., np.ndarray] = released
) -> float:
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
    bound = PoissonSelectionProfile.guarantee(PoissonSelection(mu, mean))
    closest = 0.0
    for epsilon in (0.0, 0.3 * mu, mu, 3 * mu, 5 * mu):
        exact, most = largest(mu, mean, epsilon), bound.delta(epsilon).upper
        assert exact <= most
        closest = max(closest, exact / most)
    assert closest > 0.05  # a bound off by a factor of m or e^mT would not pass unseen


@pytest.mark.parametrize(("mu", "mean", "delta"), [(0.2, 10.0, 1e-5), (0.5, 5.0, 1e-6)])
def test_the_smaller_of_both_routes_answers(mu: float, mean: float, delta: float) -> None:
    run = PoissonSelection(mu, mean)
    ways = PoissonSelectionProfile, PoissonSelectionPs22
    here, there = (way.guarantee(run).epsilon(delta).upper for way in ways)
    assert 0.95 * there < here < 0.99 * there
    assert account(run).epsilon(delta).upper == here


def test_many_trials_are_left_to_the_renyi_route() -> None:
    run = PoissonSelection(0.05, 100.0)
    renyi = PoissonSelectionPs22.guarantee(run).epsilon(1e-6).upper
    assert account(run).epsilon(1e-6).upper == renyi
    assert renyi < PoissonSelectionProfile.guarantee(run).epsilon(1e-6).upper


def test_a_finer_integral_hardly_moves() -> None:
    run, found = PoissonSelection(0.2, 10.0), []
    for cells_of in (1000, 2000, 8000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "_CELLS", cells_of)
            patch.setattr(selection, "_cells", selection._cells.__wrapped__)  # nothing kept
            found.append(PoissonSelectionProfile.guarantee(run).delta(1.4).upper)
    assert found[0] > found[1] > found[2]
    assert found[1] < found[2] * 1.02


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
@pytest.mark.parametrize(("mu", "mean"), [(0.1, 1.5), (0.5, 10.0), (1.5, 60.0)])
def test_no_selection_of_other_laws_exceeds_its_bound(mu: float, mean: float, shape: float) -> None:
    run = NegativeBinomialSelection(mu, mean, shape)
    bound = NegativeBinomialSelectionPs22.guarantee(run)
    assert 1.0 <= account(run).epsilon(1e-6).upper / bound.epsilon(1e-6).upper <= 1.0 + 1e-9
    for epsilon in (mu, 3 * mu, 5 * mu):
        exact = largest(mu, mean, epsilon, lambda law, _: best_of(law, run))
        assert exact <= bound.delta(epsilon).upper


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
def test_the_renyi_divergence_of_other_laws_is_bounded_and_a_quarter_is_reached(
    shape: float,
) -> None:
    mu, order, closest = 0.5, 8.0, 0.0
    run = NegativeBinomialSelection(mu, 20.0, shape)
    most = NegativeBinomialSelectionPs22.guarantee(run).renyi(order).upper
    edges = np.concatenate([[-np.inf], np.linspace(-5.0, 5.0 + mu, 500), [np.inf]])
    for rank in (np.arange(len(edges) - 1), np.arange(len(edges) - 1)[::-1]):
        one, other = (best_of(law, run) for law in cells(mu, rank, edges))
        kept = (one > 0.0) & (other > 0.0)
        found = np.sum(one[kept] ** order * other[kept] ** (1.0 - order))
        closest = max(closest, math.log(found) / (order - 1.0) / most)
    assert 0.25 < closest <= 1.0


def test_a_rare_outcome_is_found_as_often_as_there_are_trials() -> None:
    """Of a trial with one rare good outcome the best of K has it m times as often."""
    rare, factor, order = 1e-13, math.exp(10.4), 3.0
    one, other = np.array([rare * factor, 1 - rare * factor]), np.array([rare, 1 - rare])
    run = NegativeBinomialSelection(1.0, 200.0, -0.5)  # its trials are others, its law is this

    def divergence(a: np.ndarray, b: np.ndarray, order: float) -> float:
        terms = order * np.log(a) + (1.0 - order) * np.log(b)
        return float(np.logaddexp.reduce(terms)) / (order - 1.0)

    class Trial:
        adjacency = run.adjacency

        def renyi(self, order: float) -> Interval:
            return Interval.exact(divergence(one, other, order))

    bound = binomial_selection(Trial(), 200.0, run.shape, run.gamma).renyi(order).upper  # type: ignore[arg-type]
    exact = divergence(best_of(one, run), best_of(other, run), order)
    assert 0.5 * bound < exact <= bound


def test_the_parameter_of_the_law_has_at_least_the_mean() -> None:
    for mean in (1.0 + 1e-9, 2.0, 37.0, 1e6):
        gamma = NegativeBinomialSelection(0.2, mean, 1.0).gamma
        assert 1.0 / gamma >= mean and 1.0 / gamma == pytest.approx(mean, rel=1e-12)  # geometric
    with pytest.raises(InvalidInput, match="smaller mean"):
        NegativeBinomialSelection(0.2, 1e9, -0.99)
    with pytest.raises(InvalidInput, match="mean_trials"):
        NegativeBinomialSelection(0.2, 1.0, 1.0)
