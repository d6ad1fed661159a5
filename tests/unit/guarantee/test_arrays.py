"""Arrays in, arrays out: the same answers as one question at a time, and one plan for a curve."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import InvalidInput
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.loss.curve import LossCurve
from tightrope.numerics.interval import IntervalArray
from tightrope.process import (
    DeclaredApproxDP,
    DeclaredRenyi,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    Repeated,
)

RUNS = {
    "sampled": NoisySGD(PoissonSampling(256 / 60000), 1.1, 14062),
    "next to no noise": NoisySGD(PoissonSampling(0.3), 0.3, 2),
    "much noise": NoisySGD(PoissonSampling(1e-4), 20.0, 100),
    "users": NoisySGD(PoissonSampling(0.01), 2.0, 100).group(3),
    "Laplace": Repeated(LaplaceMechanism(2.0), 5),
    "numbers": DiscreteGaussianMechanism(2.0),
    "plain": GaussianMechanism(2.0),
    "declared": DeclaredApproxDP(1.0, 1e-3),
    "Renyi": DeclaredRenyi((2.0, 8.0), (0.1, 0.5)),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_array_is_answered_point_by_point(name: str) -> None:
    found = account(RUNS[name])
    for ask, points in (
        (found.epsilon, np.array([[1e-2, 1e-5], [1e-6, 0.5]])),
        (found.delta, np.array([0.0, 0.5, 2.0])),
        (found.renyi, np.array([2.0, 8.0])),
        (found.tradeoff, np.array([0.0, 0.01, 0.5, 1.0])),
    ):
        answer = ask(points)
        assert isinstance(answer, IntervalArray) and answer.lower.shape == points.shape
        for at, point in np.ndenumerate(points):
            alone = ask(float(point))
            assert (answer.lower[at], answer.upper[at]) == (alone.lower, alone.upper)


@pytest.mark.parametrize("name", RUNS)
def test_a_guarantee_and_an_estimate_take_arrays_too(name: str) -> None:
    found = account(RUNS[name])
    promise, points = found.guarantee(), np.array([[0.01, 0.5], [0.2, 1.0]])
    for ask in (promise.epsilon, promise.delta, promise.tradeoff, promise.true_positive_rate):
        answer = ask(points)
        assert isinstance(answer, IntervalArray) and answer.lower.shape == points.shape
        for at, point in np.ndenumerate(points):
            assert (answer.lower[at], answer.upper[at]) == (ask(point).lower, ask(point).upper)
    assert [g.upper for g in promise.renyi(np.array([2.0, 8.0]))] == [
        promise.renyi(order).upper for order in (2.0, 8.0)
    ]
    for estimate in (finding.outcome for finding in found.estimates):
        assert isinstance(estimate, Estimate)
        for view in (estimate.epsilon, estimate.delta, estimate.tradeoff):
            several = view(points)
            assert all(several[at] == view(point) for at, point in np.ndenumerate(points))


def test_what_is_about_one_number_refuses_several() -> None:
    found, two = account(NoisySGD(PoissonSampling(0.01), 1.0, 100)), np.array([1e-5, 1e-6])
    promise = found.guarantee()
    for ask in (
        found.guarantee,
        found.second_method,
        found.compare,
        promise.gaussian_mu,
        lambda several: promise.posterior(several, 0.1),
        lambda several: promise.posterior(0.1, several),
    ):
        with pytest.raises(InvalidInput, match="must be one number; got 2"):
            ask(two)  # type: ignore[operator]


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_curve_holds_its_points(name: str) -> None:
    """Both ends, also at the smallest and largest errors; and convex enough to be close."""
    found = account(RUNS[name])
    points = np.concatenate([[0.0, 1e-12, 1e-6], np.linspace(0.001, 0.999, 97), [1 - 1e-9, 1.0]])
    curve = found.tradeoff(points)
    for i in (0, 1, 2, 3, 20, 50, 80, 98, 99, 100, 101):
        alone = found.tradeoff(float(points[i]))
        assert curve.lower[i] <= alone.upper * (1 + 1e-9) + 1e-15
        assert alone.lower <= curve.upper[i] * (1 + 1e-9) + 1e-15
        hit = 1.0 - alone.lower
        if 0.0 < points[i] < 1.0 and found.guarantee().two_sided and alone.width < 1e-3 * hit:
            assert curve.width[i] <= 0.03 * min(alone.upper, hit) + 1e-9


def test_a_curve_of_a_thousand_points_asks_for_a_hundred_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It searched for the best epsilon a thousand times, with about six values each."""
    asked, exact = [], LossCurve._exact
    monkeypatch.setattr(LossCurve, "_exact", lambda self, e: asked.append(e) or exact(self, e))
    curve = account(NoisySGD(PoissonSampling(0.01), 1.0, 1000)).tradeoff(np.linspace(0, 1, 1000))
    assert len(curve) == 1000 and 0 < len(asked) <= 110
    assert np.all(np.diff(curve.upper[1:]) <= 1e-12)


def test_bad_points_of_an_array_are_named() -> None:
    found = account(GaussianMechanism(1.0))
    for bad in (np.array([1e-5, 2.0]), np.array([0.1, np.nan]), [0.1, "x"], np.array([])):
        with pytest.raises(InvalidInput):
            found.epsilon(bad)
    with pytest.raises(InvalidInput):
        found.tradeoff(np.linspace(-0.1, 1.0, 100))


def test_intervals_need_their_ends_in_order() -> None:
    with pytest.raises(InvalidInput):
        IntervalArray(np.array([1.0]), np.array([0.5]))
    with pytest.raises(InvalidInput):
        IntervalArray(np.array([1.0]), np.array([1.5, 2.0]))
    several = IntervalArray(np.array([1.0, np.inf]), np.array([2.0, np.inf]))
    assert several.width.tolist() == [1.0, 0.0] and [part.upper for part in several] == [
        2.0,
        np.inf,
    ]
