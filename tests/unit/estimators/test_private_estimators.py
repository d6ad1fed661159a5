"""Estimators: what they promise, what they refuse, and how they behave inside scikit-learn."""

from __future__ import annotations

import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tightrope import estimators
from tightrope.accounting import account
from tightrope.errors import InvalidInput
from tightrope.estimators import (
    FitsAddUp,
    PrivateLinearRegression,
    PrivateRidge,
    TuningCostsPrivacy,
    tuning_cost,
)
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Adjacency

PrivateLogisticRegression = partial(estimators.PrivateLogisticRegression, labels_public=True)
PrivateLinearSVC = partial(estimators.PrivateLinearSVC, labels_public=True)
CLASSIFIERS = [PrivateLogisticRegression, PrivateLinearSVC]
REGRESSORS = [PrivateLinearRegression, PrivateRidge]


def _classes(rows: int = 3000, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    centres = 2.0 * generator.standard_normal((classes, 4))
    y = generator.integers(0, classes, rows)
    return 0.3 * (centres[y] + generator.standard_normal((rows, 4))), y


def _line(rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1.0, 1.0, (rows, 3))
    return x, x @ np.array([1.0, -0.5, 0.2]) + 0.7 + 0.1 * generator.standard_normal(rows)


@pytest.mark.parametrize("make", CLASSIFIERS)
@pytest.mark.parametrize("classes", [2, 4])
def test_separated_classes_are_learnt_within_the_budget(make: Any, classes: int) -> None:
    x, y = _classes(classes=classes)
    model = make(1.0, data_norm=2.0, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.85
    assert model.guarantee_.epsilon(model.delta_).upper <= 1.0 + 1e-9
    assert model.delta_ == pytest.approx(3000**-1.1)
    assert model.guarantee_.adjacency is Adjacency.REPLACE_ONE
    assert account(model.process_).guarantee(model.delta_) == model.guarantee_


@pytest.mark.parametrize("make", REGRESSORS)
def test_a_line_is_learnt_within_the_budget(make: Any) -> None:
    x, y = _line()
    model = make(1.0, data_norm=1.5, target_bound=2.5, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.8
    assert model.guarantee_.epsilon(model.delta_).upper <= 1.0 + 1e-9
    np.testing.assert_allclose(model.coef_, [1.0, -0.5, 0.2], atol=0.25)
    assert model.intercept_ == pytest.approx(0.7, abs=0.15)


def test_probabilities_sum_to_one_and_order_like_scores() -> None:
    for classes in (2, 3):
        x, y = _classes(classes=classes)
        model = PrivateLogisticRegression(data_norm=2.0, random_state=0).fit(x, y)
        chances = model.predict_proba(x)
        np.testing.assert_allclose(chances.sum(axis=1), 1.0)
        assert (model.classes_[chances.argmax(axis=1)] == model.predict(x)).all()
        np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), chances)


def test_a_seed_is_marked_and_entropy_is_not_repeated() -> None:
    x, y = _classes()
    seeded = [PrivateLogisticRegression(data_norm=2.0, random_state=7).fit(x, y) for _ in range(2)]
    with pytest.warns(FitsAddUp):
        private = [PrivateLogisticRegression(data_norm=2.0).fit(x, y) for _ in range(2)]
    assert not any(model.private_ for model in seeded)
    assert all(model.private_ for model in private)
    assert (seeded[0].coef_ == seeded[1].coef_).all()
    assert (private[0].coef_ != private[1].coef_).all()


def test_the_auto_choice_says_which_and_why() -> None:
    x, y = _classes()
    model = PrivateLogisticRegression(data_norm=2.0, random_state=0).fit(x, y)
    assert model.reason_.startswith("descent: least predicted excess loss")
    assert "hidden-state bound" in model.reason_


def test_a_norm_bound_far_too_large_is_repaired_by_centring() -> None:
    x, y = _classes(20_000)
    tight, loose, plain = (
        PrivateLogisticRegression(0.5, data_norm=norm, centering=share, random_state=0).fit(x, y)
        for norm, share in ((2.0, 0.06), (40.0, 0.06), (40.0, 0.0))
    )
    assert loose.score(x, y) > plain.score(x, y)
    assert loose.score(x, y) > tight.score(x, y) - 0.05


def test_sparse_rows_give_the_model_of_dense_rows() -> None:
    x, y = _classes()
    dense = PrivateLogisticRegression(data_norm=2.0, random_state=0).fit(x, y)
    for form in (sp.csr_array, sp.csc_array, sp.csr_matrix):
        sparse = PrivateLogisticRegression(data_norm=2.0, random_state=0).fit(form(x), y)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-6)
        assert (sparse.predict(form(x)) == dense.predict(x)).all()


def test_public_rows_help() -> None:
    x, y = _classes(200)
    more, labels = _classes(5200)
    more, labels = more[200:], labels[200:]  # other people from the same law
    alone, helped = (
        np.mean(
            [
                PrivateLogisticRegression(0.1, data_norm=2.0, random_state=seed)
                .fit(x, y, public=public)
                .score(more, labels)
                for seed in range(5)
            ]
        )
        for public in (None, (more, labels))
    )
    assert helped > alone


def test_partial_fit_goes_on_with_new_people() -> None:
    x, y = _classes(9000)
    model = PrivateLogisticRegression(0.3, data_norm=2.0, random_state=0)
    model.partial_fit(x[:3000], y[:3000], classes=[0, 1])
    first, scaling = model.coef_.copy(), model._scaling
    model.partial_fit(x[3000:], y[3000:])
    assert (model.coef_ != first).all()
    assert model._scaling is scaling  # the released centre is kept, not bought again
    assert model.guarantee_.epsilon(model.delta_).upper <= 0.3 + 1e-9
    assert model.score(x, y) > 0.85


def test_rows_are_shortened_in_prediction_as_in_the_fit() -> None:
    x, y = _classes()
    model = PrivateLogisticRegression(data_norm=2.0, random_state=0).fit(x, y)
    far = 1e6 * x[:5]
    np.testing.assert_allclose(
        model.decision_function(far), model.decision_function(1e9 * x[:5]), rtol=1e-9
    )
    assert np.isfinite(model.decision_function(np.full((1, 4), 1e300))).all()


# --- scikit-learn ---------------------------------------------------------------------------------
def test_pipelines_clones_and_pickles() -> None:
    x, y = _classes()
    pipeline = make_pipeline(
        FunctionTransformer(np.tanh), PrivateLogisticRegression(data_norm=2.0, random_state=0)
    ).fit(x, y)
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(x) == pipeline.predict(x)).all()
    assert again[-1].guarantee_ == pipeline[-1].guarantee_
    assert clone(pipeline[-1]).get_params() == pipeline[-1].get_params()


def test_a_grid_search_warns_once_and_says_what_it_cost() -> None:
    x, y = _classes(600)
    search = GridSearchCV(
        PrivateLogisticRegression(1.0, delta=1e-4, data_norm=2.0),
        {"slope_limit": [0.25, 0.5, 1.0]},
        cv=4,
    )
    with pytest.warns(FitsAddUp) as every:
        search.fit(x, y)
    told = [w for w in every if w.category is TuningCostsPrivacy]
    assert len(told) == 1
    fitted = search.best_estimator_.guarantee_
    cost = tuning_cost(fitted, candidates=3, folds=4).epsilon(1e-4).upper
    assert cost > 3.0
    assert rounded_up(cost, 3) in str(told[0].message)


def test_a_plain_fit_does_not_warn() -> None:
    x, y = _classes(600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = PrivateLogisticRegression(data_norm=2.0).fit(x, y)
    assert fitted.coef_.any()


def test_the_cost_of_a_search_is_the_composition_of_its_fits() -> None:
    x, y = _classes(600)
    one = PrivateLogisticRegression(data_norm=2.0).fit(x, y).guarantee_
    cost = tuning_cost(one, candidates=5, folds=3)
    assert cost.gaussian_mu().upper == pytest.approx(one.gaussian_mu().upper * np.sqrt(11))


# --- bad input ------------------------------------------------------------------------------------
SECRET = 123.456


def _refused(make: Any, x: Any, y: Any) -> str:
    with pytest.raises(ValueError) as told:
        make.fit(x, y)
    assert str(SECRET) not in str(told.value) and "123" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("make", CLASSIFIERS + REGRESSORS)
def test_a_missing_norm_bound_is_explained(make: Any) -> None:
    model = make(**({"target_bound": 1.0} if make in REGRESSORS else {}))
    x, y = _classes(50)
    assert "needs data_norm" in _refused(model, x, y)


@pytest.mark.parametrize("make", REGRESSORS)
def test_a_missing_target_bound_is_explained(make: Any) -> None:
    x, y = _line(50)
    assert "needs target_bound" in _refused(make(data_norm=2.0), x, y)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.full((4, 2), SECRET), np.ones(4), "1 class"),
        (np.full((1, 2), SECRET), np.ones(1), "class"),
        (np.empty((0, 2)), np.empty(0), "0 sample"),
        (np.full((4, 0), SECRET), [0, 1, 0, 1], "0 feature"),
        (np.array([[SECRET], [np.nan], [1.0]]), [0, 1, 0], "NaN"),
        (np.array([[SECRET], [np.inf], [1.0]]), [0, 1, 0], "infinity"),
        (np.full((3, 2), SECRET), [0, 1], "inconsistent"),
        (np.full((4, 2), SECRET), [0.5, 1.25, SECRET, 2.5], "continuous"),
    ],
)
def test_impossible_data_are_refused_and_nothing_is_told(x: Any, y: Any, said: str) -> None:
    assert said in _refused(PrivateLogisticRegression(data_norm=1.0), x, y)


def test_strings_are_refused_as_features_but_welcome_as_labels() -> None:
    model = PrivateLogisticRegression(data_norm=2.0, random_state=0)
    with pytest.raises(ValueError):
        model.fit(np.array([["a"], ["b"]]), [0, 1])
    x, y = _classes()
    assert set(model.fit(x, np.array(["no", "yes"])[y]).predict(x)) == {"no", "yes"}


def test_undeclared_labels_are_refused() -> None:
    x, y = _classes(50)
    said = _refused(PrivateLogisticRegression(data_norm=2.0, classes=[0, 7]), x, y)
    assert "not among the declared classes" in said


@pytest.mark.parametrize(
    "bad",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"delta": 0.0},
        {"delta": 1.5},
        {"data_norm": -1.0},
        {"data_norm": float("inf")},
        {"data_norm": 1e40},
        {"algorithm": "newton"},
        {"adjacency": "both"},
        {"slope_limit": 2.0},
        {"regularization": -1.0},
        {"centering": 0.9},
        {"random_state": -1},
    ],
    ids=str,
)
def test_impossible_parameters_are_refused(bad: dict[str, Any]) -> None:
    x, y = _classes(50)
    with pytest.raises(ValueError):
        PrivateLogisticRegression(**({"data_norm": 2.0} | bad)).fit(x, y)


def test_one_person_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 sample"):
        PrivateLinearRegression(data_norm=1.0, target_bound=1.0).fit(np.ones((1, 2)), [0.5])
