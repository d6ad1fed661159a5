"""Additive estimators: what they learn and promise, their shapes, certificates, bad input."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tightrope.accounting import account
from tightrope.convex.fit_certificate import is_data_of_fit
from tightrope.errors import BudgetExceeded, InvalidInput, ModelNotPrivate
from tightrope.estimators import (
    FitsAddUp,
    PrivateAdditiveClassifier,
    PrivateAdditiveRegressor,
    PromisesNothing,
)
from tightrope.evidence.check import holds
from tightrope.evidence.commitment import new_key
from tightrope.evidence.verify import verify
from tightrope.ledger import Terms, Total, create_ledger
from tightrope.ledger.spending import spending
from tightrope.ledger.terms import IN_ADVANCE
from tightrope.process import Adjacency

CITIES = ["north", "south", "west"]
PUBLIC: dict[str, Any] = {"feature_ranges": {0: (0, 10)}, "categories": {1: CITIES}}
Classifier = partial(PrivateAdditiveClassifier, **PUBLIC)
Regressor = partial(PrivateAdditiveRegressor, **PUBLIC, target_range=(0, 20))
ADD: dict[str, Any] = {"adjacency": "add-or-remove", "records": 4000}


def _table(rows: int = 4000, seed: int = 0) -> tuple[Any, Any]:
    """A wave of the number, a step of the city; of 3 % of the rows something is missing."""
    generator = np.random.default_rng(seed)
    number, city = generator.uniform(0, 10, rows), generator.choice(CITIES, rows)
    target = 10 + 5 * np.sin(number) + np.where(city == "west", 4, -2)
    x = np.empty((rows, 2), dtype=object)
    x[:, 0], x[:, 1] = number, city
    x[generator.random(rows) < 0.03, 0] = np.nan
    x[generator.random(rows) < 0.03, 1] = None
    return x, target + generator.normal(0, 0.5, rows)


def _labels(target: Any, classes: int = 2) -> Any:
    return np.digitize(target, [10.0] if classes == 2 else [8.0, 12.0])


X, Y = _table()


@pytest.mark.parametrize("adjacency", [{}, ADD], ids=["replace", "add"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_learnt_within_the_budget(classes: int, adjacency: Any) -> None:
    y = _labels(Y, classes)
    model = Classifier(2.0, classes=range(classes), random_state=0, **adjacency).fit(X, y)
    assert model.score(X, y) > (0.85 if classes == 2 else 0.7)
    assert 2.0 - 1e-6 < model.guarantee_.epsilon(model.delta_).upper <= 2.0
    assert model.delta_ == pytest.approx(4000**-1.1)
    assert account(model.process_).guarantee(model.delta_) == model.guarantee_
    wanted = Adjacency(adjacency.get("adjacency", "replace-one"))
    assert model.guarantee_.adjacency is wanted
    chances = model.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert (model.classes_[chances.argmax(axis=1)] == model.predict(X)).all()
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), chances)


def test_a_target_is_learnt_in_its_own_units() -> None:
    model = Regressor(2.0, random_state=0).fit(X, Y)
    assert model.score(X, Y) > 0.8
    assert model.intercept_ == pytest.approx(Y.mean(), abs=1.0)
    shape, edges = model.shapes_[0], np.asarray(model.bins_[0])
    middle = (edges[:-1] + edges[1:]) / 2
    assert np.corrcoef(shape[1:], np.sin(middle))[0, 1] > 0.9
    west, south = model.shapes_[1][1 + CITIES.index("west")], model.shapes_[1][2]
    assert west - south == pytest.approx(6.0, abs=1.2)
    assert model.feature_importances_.shape == (2,) and (model.feature_importances_ > 0).all()
    assert [len(c) for c in model.bin_counts_] == [len(s) for s in model.shapes_]


def test_predictions_are_the_sum_of_the_shapes() -> None:
    model = Regressor(1.0, random_state=0).fit(X, Y)
    row = np.array([[3.3, "south"]], dtype=object)
    place = int(np.searchsorted(model.bins_[0], 3.3, side="right"))
    expected = model.intercept_ + model.shapes_[0][place] + model.shapes_[1][2]
    assert model.predict(row)[0] == pytest.approx(expected)
    odd = np.array([[np.nan, "elsewhere"]], dtype=object)
    known = model.intercept_ + model.shapes_[0][0] + model.shapes_[1][0]
    assert model.predict(odd)[0] == pytest.approx(known)
    far = np.array([[1e9, "south"], [10.0, "south"]], dtype=object)
    assert model.predict(far)[0] == model.predict(far)[1]


def test_predictions_do_not_depend_on_the_other_rows() -> None:
    model = Classifier(classes=[0, 1], random_state=0).fit(X, _labels(Y))
    together = model.decision_function(X)
    assert (model.decision_function(X[5:9]) == together[5:9]).all()


@pytest.mark.parametrize("ranges", [(0, 10), {0: (0, 10)}, {0: [0, 1, 5, 10]}])
def test_public_facts_are_given_in_three_ways(ranges: Any) -> None:
    model = PrivateAdditiveRegressor(
        1.0, feature_ranges=ranges, categories={1: CITIES}, target_range=(0, 20), random_state=0
    ).fit(X, Y)
    assert model.bins_[0][0] == 0.0 and model.bins_[0][-1] == 10.0
    assert model.bins_[1] == tuple(CITIES)
    if isinstance(ranges, dict) and len(ranges[0]) == 4:
        assert model.bins_[0] == (0.0, 1.0, 5.0, 10.0)


def test_columns_of_a_data_frame_go_by_their_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["size", "city"])
    by_name = PrivateAdditiveRegressor(
        1.0,
        feature_ranges={"size": (0, 10)},
        categories={"city": CITIES},
        target_range=(0, 20),
        random_state=0,
    ).fit(frame, Y)
    assert (by_name.predict(frame) == Regressor(1.0, random_state=0).fit(X, Y).predict(X)).all()


def test_pickles_and_clones_are_the_same_model() -> None:
    model = Classifier(classes=[0, 1], random_state=3).fit(X, _labels(Y))
    again = pickle.loads(pickle.dumps(model))
    assert (again.decision_function(X) == model.decision_function(X)).all()
    assert again.certificate() == model.certificate()
    refitted = clone(model).fit(X, _labels(Y))
    assert (refitted.decision_function(X) == model.decision_function(X)).all()


@pytest.mark.parametrize("adjacency", [{}, ADD], ids=["replace", "add"])
def test_certificates_verify(adjacency: Any) -> None:
    model = Regressor(1.0, **adjacency).fit(X, Y)
    key = new_key()
    certificate = model.certificate(data=(X, Y), key=key)
    assert holds(verify(certificate))
    assert certificate["run"]["private"] and certificate["run"]["budget"]["epsilon"] == 1.0
    assert is_data_of_fit(certificate, key, (X, Y))
    assert not is_data_of_fit(certificate, key, (X[1:], Y[1:]))


def test_a_seeded_fit_says_that_it_is_not_private() -> None:
    model = Regressor(1.0, random_state=0).fit(X, Y)
    run = model.certificate()["run"]
    assert not model.private_ and not run["private"] and "seeded" in run["noise"]


def test_fits_on_the_same_people_add_up() -> None:
    x, y = _table(300, seed=9)
    Regressor(1.0).fit(x, y)
    with pytest.warns(FitsAddUp):
        Regressor(1.0).fit(x, y)


@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
def test_a_ledger_is_charged_before_the_rows_are_read(tmp_path: Path) -> None:
    ledger = create_ledger(tmp_path / "ledger.db")
    ledger.add(
        Terms("rows", Total(epsilon=1.05, delta=1e-5), Adjacency.REPLACE_ONE, choices=IN_ADVANCE)
    )
    with spending(ledger, "rows"):
        Regressor(1.0, delta=1e-5).fit(X, Y)
        with pytest.raises(BudgetExceeded):
            Regressor(1.0, delta=1e-5).fit(X, Y)
        with pytest.raises(ModelNotPrivate):
            Regressor(0.1, delta=1e-5, random_state=0).fit(X, Y)
    assert ledger.standing("rows").settled == 1


def test_a_budget_that_protects_no_one_is_warned_of() -> None:
    with pytest.warns(PromisesNothing):
        Regressor(100.0, random_state=0).fit(X, Y)


def test_shapes_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    model = Classifier(classes=range(3), random_state=0).fit(X, _labels(Y, 3))
    figure = model.plot_shapes()
    assert [axis.get_title() for axis in figure.axes] == ["0", "1"]
    assert len(model.plot_shapes([1]).axes) == 1


# --- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"feature_ranges": None}, "needs what is public about each column"),
        ({"feature_ranges": {0: (10, 0)}}, "finite and increase"),
        ({"feature_ranges": {0: (0, 1), 1: (0, 1)}}, "bounds and categories"),
        ({"feature_ranges": {7: (0, 1)}}, "not among"),
        ({"feature_ranges": {"size": (0, 1)}}, "not among"),
        ({"feature_ranges": [(0, 1)]}, "needs public bounds"),
        ({"feature_ranges": 5}, "needs public bounds"),
        ({"categories": {1: "abc"}}, "list of its categories"),
        ({"categories": [1]}, "categories must be"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"rounds": 0}, "rounds"),
        ({"max_bins": 0}, "max_bins"),
        ({"counting": 0.0}, "counting"),
        ({"target_range": None}, "target_range"),
        ({"target_range": (5, 5)}, "target_range"),
        ({"residual_limit": 0.0}, "threshold"),
        ({"adjacency": "add-or-remove"}, "number of records"),
        ({"adjacency": "zero-out"}, "add-or-remove or replace-one"),
        ({"records": 10}, "records=10 was declared"),
    ],
)
def test_bad_settings_are_refused_with_what_to_do(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Regressor(**changed).fit(X, Y)


def test_one_row_and_undeclared_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="1 sample"):
        Regressor().fit(X[:1], Y[:1])
    with pytest.raises(InvalidInput, match="List all possible labels"):
        Classifier().fit(X, _labels(Y))
    with pytest.raises(InvalidInput, match="Declare every possible label"):
        Classifier(classes=[0, 5]).fit(X, _labels(Y))


def test_errors_show_no_private_value() -> None:
    numbers = np.array([["secret-7", 1.0]] * 4, dtype=object)
    with pytest.raises(InvalidInput) as caught:
        PrivateAdditiveRegressor(feature_ranges=(0, 1), target_range=(0, 1)).fit(numbers, [0] * 4)
    assert "secret" not in str(caught.value) and "categories" in str(caught.value)


@pytest.mark.parametrize("rows", [X[:, :1], np.full((5, 2), np.nan), np.full((5, 2), None)])
def test_tables_of_nothing_are_fitted_or_refused_plainly(rows: Any) -> None:
    """All values missing is a table like any other; another width is not."""
    if rows.shape[1] == 2:
        assert np.isfinite(Regressor(1.0).fit(rows, np.ones(5)).predict(rows)).all()
    else:
        with pytest.raises(ValueError, match="features"):
            Regressor(1.0, random_state=0).fit(X, Y).predict(rows)
