"""Losses: slopes are derivatives, bounds hold, and slopes never fall (convexity)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tightrope.convex import (
    Huber,
    Logistic,
    MultinomialLogistic,
    OneVersusRest,
    SmoothedHinge,
    Squared,
)
from tightrope.errors import InvalidInput

SIGNS = np.array([-1.0, 1.0])
ONE_OUTPUT = [
    (Logistic(), SIGNS),
    (Logistic(0.5), SIGNS),
    (Logistic(0.2), SIGNS),
    (SmoothedHinge(0.5), SIGNS),
    (SmoothedHinge(2.0), SIGNS),
    (Huber(0.3), np.array([-1.0, 0.2, 1.0])),
]
SCORES = np.linspace(-6.0, 6.0, 2401)


@pytest.mark.parametrize(("loss", "targets"), ONE_OUTPUT, ids=repr)
def test_the_slope_is_the_derivative_of_the_value(loss: Any, targets: np.ndarray) -> None:
    step = 1e-5
    for target in targets:
        goal = np.full_like(SCORES, target)
        numeric = (loss.value(SCORES + step, goal) - loss.value(SCORES - step, goal)) / (2 * step)
        # second-order differences are off by at most step * curvature at a corner of the slope
        np.testing.assert_allclose(loss.slope(SCORES, goal), numeric, atol=3e-5)


@pytest.mark.parametrize(("loss", "targets"), ONE_OUTPUT, ids=repr)
def test_slope_and_curvature_stay_within_their_bounds(loss: Any, targets: np.ndarray) -> None:
    for target in targets:
        slopes = loss.slope(SCORES, np.full_like(SCORES, target))
        curvature = np.diff(slopes) / np.diff(SCORES)
        assert np.abs(slopes).max() <= loss.slope_bound
        assert curvature.min() >= -1e-12  # convex
        assert curvature.max() <= loss.curvature_bound * (1 + 1e-9)
        assert curvature.max() >= loss.curvature_bound * 0.98  # and no looser than need be


def test_the_squared_loss_is_bounded_on_its_ball_only() -> None:
    loss = Squared(target_bound=2.0, radius=3.0)
    assert loss.slope_bound == 5.0
    assert loss.slope(np.array([3.0]), np.array([-2.0]))[0] == 5.0
    assert loss.slope(np.array([100.0]), np.array([-2.0]))[0] == 5.0  # clipped: never trusted


@pytest.mark.parametrize(
    "loss", [MultinomialLogistic(4), OneVersusRest(SmoothedHinge(1.0), 4)], ids=repr
)
def test_many_class_slopes_are_gradients_within_the_bound(loss: Any) -> None:
    generator = np.random.default_rng(3)
    scores = 4.0 * generator.standard_normal((200, 4))
    targets = generator.integers(0, 4, 200).astype(float)
    slopes = loss.slope(scores, targets)
    assert np.linalg.norm(slopes, axis=1).max() <= loss.slope_bound + 1e-12
    for output in range(4):
        bump = np.zeros(4)
        bump[output] = 1e-5
        difference = loss.value(scores + bump, targets) - loss.value(scores - bump, targets)
        np.testing.assert_allclose(slopes[:, output], difference / 2e-5, atol=2e-5)


def test_the_multinomial_bounds_are_reached() -> None:
    loss = MultinomialLogistic(3)
    surely_wrong = loss.slope(np.array([[50.0, 0.0, 0.0]]), np.array([1.0]))
    assert np.linalg.norm(surely_wrong) == pytest.approx(math.sqrt(2.0))
    p = np.array([0.5, 0.5, 0.0])
    assert np.linalg.norm(np.diag(p) - np.outer(p, p), 2) == pytest.approx(loss.curvature_bound)


def test_a_clipped_vector_slope_is_not_called_convex() -> None:
    assert MultinomialLogistic(3).convex
    assert not MultinomialLogistic(3, slope_limit=1.0).convex
    clipped = MultinomialLogistic(3, slope_limit=0.7)
    slopes = clipped.slope(np.eye(3) * 9.0, np.array([1.0, 2.0, 0.0]))
    np.testing.assert_allclose(np.linalg.norm(slopes, axis=1), 0.7)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Logistic(0.0),
        lambda: Logistic(1.5),
        lambda: Logistic(float("nan")),
        lambda: SmoothedHinge(-1.0),
        lambda: SmoothedHinge(0.0),
        lambda: Huber(float("inf")),
        lambda: Squared(target_bound=0.0, radius=1.0),
        lambda: Squared(target_bound=1.0, radius=float("nan")),
        lambda: MultinomialLogistic(1),
        lambda: Logistic("steep"),  # type: ignore[arg-type]
    ],
)
def test_impossible_constants_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()
