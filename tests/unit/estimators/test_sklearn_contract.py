"""scikit-learn's own checks. Epsilon is huge: they test the contract, not privacy."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tightrope.estimators import (
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
)

LOOSE: dict[str, Any] = {"epsilon": 1e5, "data_norm": 10.0, "max_iter": 40}


@parametrize_with_checks(
    [
        PrivateLogisticRegression(**LOOSE, labels_public=True),
        PrivateLinearSVC(**LOOSE, labels_public=True),
        PrivateLinearRegression(**LOOSE, target_bound=3.0, regularization=0.0),
        PrivateRidge(**LOOSE, target_bound=3.0, regularization=0.0),
    ]
)
@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
