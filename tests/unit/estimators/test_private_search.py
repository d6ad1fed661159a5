"""Selection among private trials: the bound against exact laws, and the search that uses it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from tightrope import estimators
from tightrope.errors import InvalidInput
from tightrope.estimators import (
    PrivateLinearRegression,
    PrivateSearch,
    selection_guarantee,
)
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.selection import selected_renyi, trial_mu
from tightrope.process import Adjacency

PrivateLogisticRegression = partial(estimators.PrivateLogisticRegression, labels_public=True)


def _released(law: np.ndarray, mean: float) -> np.ndarray:
    """The law of the best of Poisson(mean) draws (outcomes in order of score), nothing first."""
    below = np.append(0.0, np.cumsum(law))
    steps = np.diff(np.exp(mean * (below - 1.0)))
    return np.append(math.exp(-mean), steps)


def _renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(np.log(np.sum(p**order * q ** (1 - order))) / (order - 1))


@pytest.mark.parametrize("mean", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("order", [1.3, 2.0, 8.0])
def test_the_bound_is_above_the_exact_divergence(mean: float, order: float) -> None:
    generator = np.random.default_rng(int(10 * order + mean))
    tightest = 0.0
    for _ in range(200):
        logits = generator.standard_normal(6)
        p = np.exp(logits) / np.exp(logits).sum()
        moved = logits + generator.uniform(0.05, 1.5) * generator.standard_normal(6)
        q = np.exp(moved) / np.exp(moved).sum()
        # the failure probability is needed for Q' against Q: p' <= e^e p + d
        gain = 1.0 + 1.0 / (order - 1.0)
        failure = float(np.maximum(q - gain * p, 0.0).sum())
        parts = (np.array([part]) for part in (order, _renyi(p, q, order), failure))
        bound = float(selected_renyi(*parts, mean)[0])
        exact = _renyi(_released(p, mean), _released(q, mean), order)
        assert exact <= bound + 1e-12
        tightest = max(tightest, exact / bound)
    assert tightest > 0.05  # a bound that says nothing would pass above too


def test_a_selection_costs_more_than_one_trial_and_less_than_all() -> None:
    trial = GaussianGuarantee(0.2, Adjacency.REPLACE_ONE)
    chosen = selection_guarantee(trial, 20.0).epsilon(1e-6).upper
    assert trial.epsilon(1e-6).upper < chosen < (trial**20).epsilon(1e-6).upper


@pytest.mark.parametrize("mean", [3.0, 30.0])
def test_trials_are_calibrated_to_the_whole_budget(mean: float) -> None:
    mu = trial_mu(1.0, 1e-5, mean, Adjacency.REPLACE_ONE)
    spent = selection_guarantee(GaussianGuarantee(mu), mean).epsilon(1e-5).upper
    more = selection_guarantee(GaussianGuarantee(mu * 1.1), mean).epsilon(1e-5).upper
    assert spent <= 1.0 < more


def _labels(rows: int = 6000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 3))
    return x, (x[:, 0] > 0.3 * generator.standard_normal(rows)).astype(int)


def test_a_search_finds_the_usable_setting_within_its_budget() -> None:
    x, y = _labels()
    settings = [{"data_norm": 1e5, "centering": 0.0}, {"data_norm": 3.0}]
    search = PrivateSearch(
        PrivateLogisticRegression(data_norm=3.0), settings, epsilon=1.0, random_state=0
    ).fit(x, y)
    assert search.best_params_ == settings[1]
    assert search.score(x, y) > 0.85
    assert search.guarantee_.epsilon(search.delta_).upper <= 1.0
    assert not search.private_
    assert search.predict_proba(x).shape == (6000, 2)
    assert search.best_estimator_.guarantee_ == search.guarantee_


def test_a_regression_can_be_searched() -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, (3000, 2))
    model = PrivateLinearRegression(data_norm=1.5, target_bound=2.0)
    search = PrivateSearch(model, [{"residual_limit": 0.3}, {"residual_limit": 0.6}])
    assert search.fit(x, x @ [1.0, -0.5]).score(x, x @ [1.0, -0.5]) > 0.7
    assert search.private_


@pytest.mark.parametrize(
    "changes",
    [
        {"candidates": []},
        {"validation": 0.0},
        {"validation": 0.9},
        {"mean_trials": 0.0},
        {"epsilon": -1.0},
        {
            "estimator": PrivateLogisticRegression(
                data_norm=1.0, adjacency="add-or-remove", records=100
            )
        },
    ],
    ids=str,
)
def test_impossible_searches_are_refused(changes: dict[str, Any]) -> None:
    x, y = _labels(100)
    usual = {"estimator": PrivateLogisticRegression(data_norm=3.0), "candidates": [{}]}
    with pytest.raises(InvalidInput):
        PrivateSearch(**(usual | changes), random_state=0).fit(x, y)
