"""Holes G5 and K6: defaults that are worse than doing nothing, promises that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tightrope.errors import InvalidInput
from tightrope.estimators import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateRidge,
    PublicRows,
)
from tightrope.process.convex import ConvexLoss
from tightrope.train import CorrectedAdam, noisy_adam
from tightrope_reproduce.plan import many_tasks, per_person, public_last


def _line(rows: int, columns: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (rows, columns))
    y = x @ generator.standard_normal(columns) + noise * generator.standard_normal(rows)
    return x, y / np.abs(y).max()


@pytest.mark.parametrize("rows", [200, 1000, 5000])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_ridge_predicts_no_worse_than_the_mean_where_its_sibling_does(
    rows: int, epsilon: float
) -> None:
    scores: dict[Any, list[float]] = {PrivateRidge: [], PrivateLinearRegression: []}
    for make, found in scores.items():
        for seed in range(4):
            x, y = _line(rows, 5, 0.3, seed)
            norm = 5**0.5
            model = make(epsilon, data_norm=norm, target_bound=1.0, random_state=seed)
            found.append(model.fit(x, y).score(x, y))
    ridge, sibling = (float(np.mean(found)) for found in scores.values())
    assert ridge >= min(sibling, 0.0) - 1e-9
    assert ridge >= sibling - 0.05


def test_the_squared_loss_itself_is_still_there() -> None:
    model = PrivateRidge(data_norm=1.0, target_bound=1.0, residual_limit=None, radius=3.0)
    assert model._loss().slope_bound == 4.0


def _classes(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, 8))
    chance = 1.0 / (1.0 + np.exp(-3.0 * x @ np.linspace(1, -1, 8)))
    return x, (generator.random(rows) < chance).astype(int)


@pytest.mark.parametrize("public", [60, 300])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_public_rows_pay(public: int, epsilon: float) -> None:
    """With them a private fit is no worse than an ordinary one on the public rows alone."""
    x_test, y_test = _classes(4000, 99)
    alone, together = [], []
    for seed in range(4):
        x, y = _classes(1500 + public, seed)
        known, labels = x[:public], y[:public]
        plain = LogisticRegression().fit(known, labels)
        model = PrivateLogisticRegression(
            epsilon, data_norm=3.0, classes=[0, 1], random_state=seed
        ).fit(x[public:], y[public:], public=PublicRows(known, labels))
        alone.append(plain.score(x_test, y_test))
        together.append(model.score(x_test, y_test))
    assert np.mean(together) >= np.mean(alone) - 0.003


def test_with_hardly_any_budget_the_public_solution_stays() -> None:
    x, y = _classes(400, 0)
    known, labels = x[:200], y[:200]
    model = PrivateLogisticRegression(1e-3, data_norm=3.0, classes=[0, 1], random_state=0)
    fitted = model.fit(x[200:], y[200:], public=(known, labels))
    ordinary = LogisticRegression().fit(known, labels)
    assert np.mean(fitted.predict(x) == ordinary.predict(x)) > 0.9


# --- planners ------------------------------------------------------------------------------------
@pytest.mark.parametrize("smoothness", [1.0, float("inf")])
def test_no_plan_promises_more_loss_than_the_ball_holds(smoothness: float) -> None:
    loss, size = ConvexLoss(2.0, smoothness), {"dimension": 50, "epsilon": 0.05, "delta": 1e-6}
    plans = [
        per_person(loss, records=20, radius=3.0, **size),
        public_last(loss, private_records=20, public_records=3, radius=3.0, **size),
    ]
    if smoothness == 1.0:
        plans.append(many_tasks(loss, tasks=1, records=20, radius=3.0, **size))
    for plan in plans:
        assert plan.excess_loss <= 2.0 * 3.0 * 2.0
    usual = per_person(
        ConvexLoss(1.0, 1.0), records=10**6, radius=1.0, dimension=2, epsilon=1, delta=1e-6
    )
    assert usual.excess_loss < 0.1


# --- corrected Adam ------------------------------------------------------------------------------
def _moved(floor: float | None) -> float:
    weight = torch.zeros(1, requires_grad=True)
    rule = CorrectedAdam([weight], lr=0.01, betas=(0.9, 0.999), noise_variance=1.0, floor=floor)
    weight.grad = torch.tensor([0.9])  # all noise: its square is below the noise's variance
    rule.step()
    return float(weight.detach().abs())


def test_one_step_of_corrected_adam_moves_a_weight_by_some_learning_rates() -> None:
    """With a floor of 1e-8 it moved by 90 of them (0.9)."""
    assert _moved(None) <= 10 * 0.01
    assert _moved(1.0) <= 0.01
    assert _moved(1e-8) > 0.5


def _no_loss(*_: Any) -> torch.Tensor:
    raise AssertionError


def test_the_floor_can_be_set_where_it_means_something() -> None:
    with pytest.raises(InvalidInput, match="floor"):
        noisy_adam(torch.nn.Linear(2, 1), (), _no_loss, learning_rate=0.1, floor=0.1)
    weight = [torch.zeros(1, requires_grad=True)]
    for nothing in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput, match="floor"):
            CorrectedAdam(weight, lr=0.1, floor=nothing)
    rule = CorrectedAdam(weight, lr=0.1, noise_variance=4.0, floor=0.1)
    assert rule.param_groups[0]["floor"] == 0.1
