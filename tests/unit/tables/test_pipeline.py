"""One budget from a raw table to a model: what it says, what it refuses, and what it keeps."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tightrope import account
from tightrope.errors import InvalidInput, NotCertified
from tightrope.estimators import (
    FitsAddUp,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PrivateLinearSVC,
    PrivateLogisticRegression,
)
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.process import UserLevel
from tightrope.tables import Category, Flag, Number, PrivatePipeline, TableSchema

# the same table is fitted by many of these tests
pytestmark = pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")

COLUMNS = {"age": Number(), "job": Category(), "member": Flag(), "rich": Category(("no", "yes"))}
SCHEMA = TableSchema(COLUMNS, target="rich")


def table(rows: int = 4000, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    age = generator.integers(18, 90, rows)
    job = generator.choice(["clerk", "cook", "smith"], rows)
    score = (age - 50) / 10 + 2.0 * (job == "smith") + generator.normal(0, 0.5, rows)
    rich = np.where(score > 0.5, "yes", "no")
    member = generator.choice(["yes", "no"], rows)
    return {"age": age.tolist(), "job": job.tolist(), "member": member.tolist(), "rich": rich}


def fitted(**settings: Any) -> PrivatePipeline:
    settings = {"epsilon": 2.0, "delta": 1e-5} | settings
    return PrivatePipeline(settings.pop("schema", SCHEMA), **settings).fit(table())


def test_the_whole_has_one_budget_and_one_certificate_that_verifies() -> None:
    model = fitted()
    assert model.private_ is True
    assert model.guarantee_.epsilon(1e-5).upper <= 2.0
    assert account(model.process_).epsilon(1e-5).upper <= 2.0
    assert len(model.process_.parts) == 3 + 1  # bounds, ranks, jobs and the fit
    certificate = model.certificate()
    assert holds(verify(certificate))
    assert certificate["run"]["settings"]["preprocessing_releases"] == 3
    assert 0.0 < model.preprocessing_epsilon_ < 2.0
    assert model.score(table(2000, 1)) > 0.9
    assert set(model.predict(table(100, 1))) <= {"no", "yes"}
    assert "Preprocessing: 3 releases" in model.report()


@pytest.mark.parametrize(
    ("section", "edit"),
    [
        ("process", lambda c: c["process"]["parts"][0].update(sigma=1e6)),
        ("process", lambda c: c["process"]["parts"].pop(0)),
        ("run", lambda c: c["run"]["settings"].update(preprocessing_epsilon=0.0)),
        ("claims", lambda c: c["claims"]["epsilon"][0].update(upper=0.01)),
    ],
)
def test_an_edited_certificate_fails(section: str, edit: Any) -> None:
    certificate = copy.deepcopy(fitted().certificate())
    edit(certificate)
    assert not holds(verify(certificate))


def test_what_is_public_costs_nothing() -> None:
    known = {"age": Number(18, 90), "job": Category(("clerk", "cook", "smith")), "rich": "flag"}
    model = fitted(schema=TableSchema(known, target="rich"), ranks=False)
    assert model.preprocessing_epsilon_ == 0.0
    assert account(model.process_).epsilon(1e-5).upper == pytest.approx(2.0, rel=1e-4)
    assert "took nothing" in model.report()


def test_add_or_remove_needs_a_public_number_of_rows() -> None:
    with pytest.raises(InvalidInput, match="public number"):
        fitted(adjacency="add-or-remove")
    model = fitted(adjacency="add-or-remove", records=4100)
    assert str(model.guarantee_.adjacency) == "add-or-remove"
    assert holds(verify(model.certificate()))


def test_a_unit_of_several_rows_is_protected_as_a_whole() -> None:
    data = table() | {"who": np.arange(4000) // 3}
    schema = TableSchema(COLUMNS | {"who": "ignored"}, target="rich", key="who", rows=3)
    model = PrivatePipeline(schema, epsilon=2.0, delta=1e-5).fit(data)
    assert isinstance(model.process_, UserLevel) and model.process_.records == 3
    assert model.guarantee_.epsilon(1e-5).upper <= 2.0
    assert "at most 3 records" in model.certificate()["statement"]
    assert holds(verify(model.certificate()))


def test_numbers_are_predicted_within_their_public_bounds() -> None:
    data = table()
    data["pay"] = np.array(data["age"]) * 100.0
    schema = TableSchema({"age": Number(), "job": Category(), "pay": Number(0, 9000)}, target="pay")
    model = PrivatePipeline(schema, epsilon=2.0, delta=1e-5).fit(data)
    assert model.score(data) > 0.8
    assert (model.predict(data) <= 9000).all()


def test_three_classes_and_other_estimators() -> None:
    data = table()
    target = TableSchema(COLUMNS | {"job": Category(("clerk", "cook", "smith"))}, target="job")
    model = PrivatePipeline(target, epsilon=4.0).fit(data)
    assert set(model.predict(data)) <= {"clerk", "cook", "smith"}
    model = fitted(estimator=PrivateLinearSVC())
    assert model.score(table(1000, 3)) > 0.9
    assert not hasattr(model, "predict_proba")


def test_additive_models_learn_from_tables() -> None:
    model = fitted(estimator=PrivateAdditiveClassifier())
    assert model.score(table(1000, 3)) > 0.85
    assert holds(verify(model.certificate()))
    data = table()
    data["pay"] = np.array(data["age"]) * 100.0
    schema = TableSchema({"age": Number(), "pay": Number(0, 9000)}, target="pay")
    regressor = PrivatePipeline(schema, PrivateAdditiveRegressor(), epsilon=4.0, delta=1e-5)
    assert regressor.fit(data).score(data) > 0.5


def test_it_pickles_and_clones_and_forgets_the_rows() -> None:
    model = fitted(random_state=3)
    again = pickle.loads(pickle.dumps(model))
    data = table(200, 5)
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    assert len(pickle.dumps(model)) < 100_000
    assert clone(model).get_params()["epsilon"] == 2.0


def test_a_seed_repeats_and_is_not_private() -> None:
    first, second = fitted(random_state=5), fitted(random_state=5)
    assert first.design_ == second.design_
    np.testing.assert_array_equal(first.estimator_.coef_, second.estimator_.coef_)
    assert first.private_ is False
    assert "NOT PRIVATE" in first.certificate()["statement"]


def test_unseen_missing_and_wrong_cells_are_predicted_for() -> None:
    model = fitted()
    strange = {"age": ["", "many", 1e9], "job": ["pilot", None, "cook"], "member": [1, "?", "x"]}
    assert len(model.predict(strange)) == 3
    assert np.isfinite(model.predict_proba(strange)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"age": [""] * 4000},
        {"job": [None] * 4000},
        {"rich": ["no"] * 4000},
        {"rich": [""] * 4000},
        {"age": ["x"] * 4000, "job": ["y"] * 4000, "member": ["z"] * 4000},
    ],
)
def test_tables_with_nothing_in_a_column_are_fitted_all_the_same(change: Any) -> None:
    """A refusal would say so: whether a column is empty is private."""
    model = PrivatePipeline(SCHEMA, epsilon=1.0, delta=1e-5).fit(table() | change)
    assert holds(verify(model.certificate()))


@pytest.mark.parametrize(
    ("settings", "data", "words"),
    [
        ({}, {"age": [1], "job": ["a"], "member": [1], "rich": ["no"]}, "n_samples=1"),
        ({}, {"age": [], "job": [], "member": [], "rich": []}, "no rows"),
        ({}, {"age": [1, 2], "job": ["secret", "b"], "member": [1, 0]}, "lacks columns"),
        ({}, {"age": [1, 2], "job": ["secret"], "member": [1, 0], "rich": [1, 0]}, "length"),
        ({"schema": {"age": "number"}}, None, "must be a TableSchema"),
        ({"estimator": StandardScaler()}, None, "must be a private estimator"),
        ({"preprocessing": 0.0}, None, "preprocessing=0"),
        ({"preprocessing": 2.0}, None, "preprocessing"),
        ({"epsilon": 0.0}, None, "epsilon"),
        ({"records": 17}, None, "another number of rows"),
        ({"adjacency": "zero-out"}, None, "null record"),
        ({"epsilon": 1e-13}, None, "budget|certified|epsilon"),
    ],
)
def test_bad_settings_and_tables_are_refused_without_a_value(
    settings: Any, data: Any, words: str
) -> None:
    with pytest.raises((InvalidInput, NotCertified), match=words) as refused:
        model = PrivatePipeline(**({"schema": SCHEMA, "delta": 1e-5} | settings))
        model.fit(table() if data is None else data)
    assert "secret" not in str(refused.value)


def test_a_fit_that_takes_more_than_its_share_is_not_released() -> None:
    """An algorithm whose guarantee is no Gaussian one cannot be part of the sum."""
    model = PrivatePipeline(SCHEMA, PrivateLogisticRegression(algorithm="poisson"), delta=1e-5)
    with pytest.raises(NotCertified, match="nothing is released"):
        model.fit(table())
    assert not hasattr(model, "estimator_")


def test_two_fits_on_the_same_table_add_up() -> None:
    data = table(seed=77)
    PrivatePipeline(SCHEMA, delta=1e-5).fit(data)
    with pytest.warns(FitsAddUp, match="2 private fits"):
        PrivatePipeline(SCHEMA, delta=1e-5).fit(data)


@parametrize_with_checks(
    [
        PrivatePipeline(
            None,
            PrivateLogisticRegression(labels_public=True, max_iter=40, algorithm="descent"),
            epsilon=1e5,
            delta=1e-3,
            random_state=0,
        ),
    ]
)
@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
@pytest.mark.filterwarnings("ignore::tightrope.estimators.PromisesNothing")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
