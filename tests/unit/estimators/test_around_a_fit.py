"""What stands around a private fit: saved models, what learns from predictions, empty promises."""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any

import joblib
import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import AdaBoostClassifier, StackingClassifier, StackingRegressor
from sklearn.feature_selection import SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import TunedThresholdClassifierCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tightrope.accounting import account
from tightrope.estimators import (
    LearnsFromPredictions,
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateSearch,
    PromisesNothing,
)
from tightrope.process import Adjacency, FullBatch, NoisySGD, PoissonSampling, PoissonSelection

GENERATOR = np.random.default_rng(5)
X = GENERATOR.uniform(-1.0, 1.0, (300, 3))
Y = (X[:, 0] > 0).astype(int)
PUBLIC = {"data_norm": np.sqrt(3.0), "classes": [0, 1], "labels_public": True}


def logistic(**changes: Any) -> Any:
    return PrivateLogisticRegression(
        **PUBLIC | {"epsilon": 3.0, "adjacency": "replace-one"} | changes
    )


def warned(act: Any) -> dict[type[Warning], str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return {one.category: str(one.message) for one in caught}


# ---- saved models
def saved_and_read(model: Any) -> list[Any]:
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return [pickle.loads(pickle.dumps(model)), joblib.load(file)]


@pytest.mark.parametrize(
    ("kind", "delta"),
    [("logistic", None), ("logistic", 1e-3), ("svc", 1e-3), ("linear", 1e-3), ("ridge", None)],
)
def test_a_fitted_search_is_saved(kind: str, delta: float | None) -> None:
    inner: Any = {
        "logistic": lambda: logistic(),
        "svc": lambda: PrivateLinearSVC(**PUBLIC, adjacency="replace-one"),
        "linear": lambda: PrivateLinearRegression(
            data_norm=np.sqrt(3.0), target_bound=1.0, adjacency="replace-one"
        ),
        "ridge": lambda: PrivateRidge(
            data_norm=np.sqrt(3.0), target_bound=1.0, adjacency="replace-one"
        ),
    }[kind]()
    search = PrivateSearch(inner, [{"max_iter": 5}, {"max_iter": 9}], epsilon=3.0, delta=delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.set_params(mean_trials=20.0).fit(X, Y)
        for again in saved_and_read(search):
            assert (again.predict(X) == search.predict(X)).all()
            assert again.guarantee_.epsilon(1e-3) == search.guarantee_.epsilon(1e-3)
        pickle.loads(pickle.dumps(search.best_estimator_))


@pytest.mark.parametrize(
    "process",
    [
        PoissonSelection(0.3, 10.0, Adjacency.REPLACE_ONE),
        NoisySGD(PoissonSampling(0.01), 1.0, 100),
        NoisySGD(FullBatch(), 4.0, 10),
    ],
    ids=lambda p: type(p).__name__,
)
def test_every_finding_of_an_account_is_saved(process: Any) -> None:
    for finding in account(process).findings:
        again = pickle.loads(pickle.dumps(finding.outcome))
        if finding.is_certified:
            assert again.epsilon(1e-5) == finding.outcome.epsilon(1e-5), finding.name
            assert again.delta(0.7) == finding.outcome.delta(0.7), finding.name


# ---- what learns from predictions
@pytest.fixture(scope="module")
def fitted() -> Any:
    return logistic().fit(X, Y)


LEARNERS = {
    "threshold": lambda m: TunedThresholdClassifierCV(m, cv="prefit", refit=False),
    "calibration": lambda m: CalibratedClassifierCV(FrozenEstimator(m)),
    "stacking": lambda m: StackingClassifier([("m", m)], LogisticRegression(), cv="prefit"),
    "stacking, in a pipeline": lambda m: StackingClassifier(
        [("m", make_pipeline(FunctionTransformer(), m))], LogisticRegression(), cv="prefit"
    ),
    "selection of columns": lambda m: SequentialFeatureSelector(
        logistic(), n_features_to_select=1, cv=2
    ),
    "boosting": lambda m: AdaBoostClassifier(logistic(), n_estimators=2),
    "calibration, fitted anew": lambda m: CalibratedClassifierCV(logistic(), cv=2),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_what_learns_from_predictions_is_warned_of(name: str, fitted: Any) -> None:
    seen: dict[type[Warning], str] = {}

    def act() -> None:
        try:
            LEARNERS[name](fitted).fit(X, Y)
        except (TypeError, ValueError, AttributeError):
            assert name == "boosting"  # it may want weights, after it has asked

    seen = warned(act)
    if name != "boosting" or seen:
        assert "covered by no epsilon" in seen[LearnsFromPredictions]


def test_a_stacked_regressor_is_warned_of_too() -> None:
    bounds = {"data_norm": np.sqrt(3.0), "target_bound": 1.0, "adjacency": "replace-one"}
    model = PrivateRidge(**bounds, epsilon=3.0).fit(X, Y)
    stack = StackingRegressor([("m", model)], Ridge(), cv="prefit")
    assert LearnsFromPredictions in warned(lambda: stack.fit(X, Y))


def test_predictions_that_nothing_learns_from_are_not(fitted: Any) -> None:
    def act() -> None:
        fitted.predict(X), fitted.predict_proba(X), fitted.score(X, Y)
        make_pipeline(FunctionTransformer(), logistic()).fit(X, Y).predict(X)
        cross_val_score(logistic(), X, Y, cv=2)
        PrivateSearch(logistic(), [{"max_iter": 5}], epsilon=3.0, mean_trials=20.0).fit(X, Y)

    assert LearnsFromPredictions not in warned(act)


# ---- promises that protect no one
@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"delta": 0.5}, "delta = 0.5 is too large for 300 records"),
        ({"delta": 1 / 300}, "is too large for 300 records"),
        ({"epsilon": 1000.0, "delta": 1e-6}, "promises nothing"),
        ({"epsilon": 3.0, "delta": 1e-6}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("search", [False, True])
def test_a_budget_that_means_nothing_is_warned_of(
    budget: dict[str, float], words: str | None, search: bool
) -> None:
    model = logistic(**budget)
    if search and budget.get("delta") == 0.5:
        pytest.skip("at this delta a single trial spends no epsilon, and is refused")
    if search:
        promise = {"epsilon": 3.0} | budget
        model = PrivateSearch(logistic(), [{"max_iter": 5}], mean_trials=20.0, **promise)
    seen = warned(lambda: model.fit(X, Y))
    assert (PromisesNothing in seen) == (words is not None)
    assert words is None or words in seen[PromisesNothing]


def test_records_that_are_declared_decide_what_delta_means() -> None:
    model = logistic(adjacency="add-or-remove", records=300, delta=1 / 299)
    assert "300 records" in warned(lambda: model.fit(X, Y))[PromisesNothing]
