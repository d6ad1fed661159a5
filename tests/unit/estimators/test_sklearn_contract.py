"""scikit-learn's own checks: at a huge epsilon (the contract, not privacy), and at epsilon 1."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tightrope.estimators import (
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateSearch,
)

LOOSE: dict[str, Any] = {"epsilon": 1e5, "data_norm": 10.0, "max_iter": 40}


USUAL: dict[str, Any] = {"data_norm": 10.0, "max_iter": 20, "algorithm": "descent"}


@parametrize_with_checks(
    [
        PrivateLogisticRegression(**LOOSE, labels_public=True),
        PrivateLinearSVC(**LOOSE, labels_public=True),
        PrivateLinearRegression(**LOOSE, target_bound=3.0, regularization=0.0),
        PrivateRidge(**LOOSE, target_bound=3.0, regularization=0.0),
        PrivateLogisticRegression(1.0, **USUAL, labels_public=True),
        PrivateLinearRegression(1.0, **USUAL, target_bound=3.0),
        PrivateRidge(1.0, **USUAL, target_bound=3.0),
        PrivateSearch(
            PrivateLogisticRegression(**USUAL, labels_public=True),
            [{"slope_limit": 0.5}, {"slope_limit": 1.0}],
            epsilon=1e3,
            delta=1e-3,
            mean_trials=4.0,
        ),
        PrivateSearch(
            PrivateLinearRegression(**USUAL, target_bound=3.0),
            [{"residual_limit": 0.5}],
            epsilon=1e3,
            delta=1e-3,
            mean_trials=4.0,
        ),
    ]
)
@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:.*:tightrope.estimators.FitsAddUp")  # they fit again and again
@pytest.mark.filterwarnings("ignore:.*:tightrope.estimators.PromisesNothing")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
