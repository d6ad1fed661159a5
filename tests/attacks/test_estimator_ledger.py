"""Hole G4: what scikit-learn does around a private estimator, and loops, are seen and priced."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from joblib import Parallel, delayed
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_selection import RFE, SequentialFeatureSelector
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)

from tightrope.estimators import (
    FitElsewhere,
    FitsAddUp,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSearch,
    SeededByOthers,
    TransformerNotPrivate,
    TuningCostsPrivacy,
)
from tightrope.estimators.repeated_fits import LEDGER
from tightrope.numerics.rounding import rounded_up


def _made(**settings: Any) -> PrivateLogisticRegression:
    quick = {"epsilon": 1.0, "delta": 1e-4, "data_norm": 2.0, "classes": [0, 1], "max_iter": 4}
    return PrivateLogisticRegression(**(quick | settings))


def _table(rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, 4))
    return x, (x[:, 0] > 0).astype(int)


X, Y = _table()


def _told(work: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        work()
    return told


def _loop(times: int) -> None:
    for _ in range(times):
        _made().fit(X, Y)


def _partial(times: int) -> None:
    model = _made()
    for _ in range(times):
        model.partial_fit(X, Y)


def _forms() -> None:
    for form in (X, X.astype(np.float32), sp.csr_array(X), np.asfortranarray(X)):
        _made().fit(form, Y)


REPEATED: dict[str, tuple[Callable[[], Any], int]] = {
    "a loop": (lambda: _loop(4), 4),
    "partial_fit on the same rows": (lambda: _partial(4), 4),
    "other forms of the same rows": (_forms, 4),
    "cross-validation": (lambda: cross_val_score(_made(), X, Y, cv=5), 4),
    "a search without refit": (
        lambda: GridSearchCV(
            _made(), {"slope_limit": [0.3, 0.5]}, cv=3, refit=False, scoring="accuracy"
        ).fit(X, Y),
        4,
    ),
    "one against the rest": (
        lambda: OneVsRestClassifier(_made()).fit(X, np.arange(300) % 3),
        3,
    ),
    "calibration": (lambda: CalibratedClassifierCV(_made(), cv=3).fit(X, Y), 2),
    "elimination of features": (lambda: RFE(_made(), n_features_to_select=2).fit(X, Y), 3),
    "scaled folds": (
        lambda: cross_val_score(make_pipeline(StandardScaler(), _made()), X, Y, cv=5),
        4,
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_fits_on_the_same_people_are_told_with_what_they_cost(name: str) -> None:
    work, fits = REPEATED[name]
    told = [str(w.message) for w in _told(work) if w.category is FitsAddUp]
    assert told
    one = _made(random_state=0).fit(X, Y).guarantee_
    cost = (one**fits).epsilon(1e-4).upper
    assert f"{fits} private fits" in told[-1]
    assert rounded_up(cost, 3) in told[-1]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_bagging_is_seen_although_it_seeds_its_estimators(share: float) -> None:
    bag = BaggingClassifier(_made(), n_estimators=3, max_features=share)
    told = {w.category for w in _told(lambda: bag.fit(X, Y))}
    assert told == {SeededByOthers, FitsAddUp}
    assert not any(model.private_ for model in bag.estimators_)


class _Frame:
    """What scikit-learn takes for a data frame of numbers."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def take(self, rows: Any, axis: int = 0) -> _Frame:
        return _Frame(self.values[rows])

    __getitem__ = take


def _search() -> PrivateSearch:
    return PrivateSearch(_made(), [{}], epsilon=1.0, delta=1e-4, mean_trials=30.0)


CHANGED: dict[str, Callable[[], Any]] = {
    "scaled folds of a data frame": lambda: cross_val_score(
        make_pipeline(StandardScaler(), _made()), _Frame(X), Y, cv=3
    ),
    "searches on scaled folds": lambda: cross_val_score(
        make_pipeline(StandardScaler(), _search()), X, Y, cv=3
    ),
    "columns chosen by cross-validation": lambda: SequentialFeatureSelector(
        _made(), n_features_to_select=2, cv=2
    ).fit(X, Y),
}


@pytest.mark.parametrize("name", CHANGED)
def test_rows_that_scikit_learn_changed_are_known_by_what_they_were(name: str) -> None:
    assert FitsAddUp in {w.category for w in _told(CHANGED[name])}


def test_the_number_of_warnings_does_not_tell_the_number_of_trials() -> None:
    told = _told(lambda: make_pipeline(StandardScaler(), _search()).fit(X, Y))
    assert [w.category for w in told] == [TransformerNotPrivate]


def test_fits_in_threads_are_all_counted() -> None:
    """Without a lock one of them died: a deque does not like to grow while it is read."""
    guarantee = _made(random_state=0).fit(X, Y).guarantee_
    failed: list[Exception] = []

    def enter() -> None:
        try:
            for _ in range(50):
                LEDGER.enter(X, guarantee, 1e-4)
        except RuntimeError as error:
            failed.append(error)

    def work() -> None:
        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    told = [str(w.message) for w in _told(work)]
    assert not failed
    assert any("192 private fits" in message for message in told)


def _told_in_a_worker() -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _made().fit(*_table(40))
    return [w.category.__name__ for w in caught]


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_a_fit_in_a_worker_process_says_that_others_are_not_seen(method: str) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        told = pool.submit(_told_in_a_worker).result(timeout=120)
    assert "FitElsewhere" in told
    assert FitElsewhere not in {w.category for w in _told(lambda: _made().fit(X, Y))}


def test_the_workers_of_scikit_learn_say_it_too() -> None:
    found = Parallel(n_jobs=2)(delayed(_told_in_a_worker)() for _ in range(2))
    assert all("FitElsewhere" in told for told in found)
    found = Parallel(n_jobs=2, backend="threading")(delayed(parent_process)() for _ in range(2))
    assert found == [None, None]


def test_the_person_who_pays_most_is_told_of() -> None:
    """Not the one in most fits: two at epsilon 8 cost more than three at 0.1."""
    for _ in range(2):
        _told(lambda: _made(epsilon=0.1).fit(X[:100], Y[:100]))
    _told(lambda: _made(epsilon=8.0).fit(X[100:200], Y[100:200]))
    told = [str(w.message) for w in _told(lambda: _made(epsilon=0.1).fit(X, Y))]
    assert "2 private fits" in told[-1]


def test_a_search_with_refit_says_what_it_cost_in_all() -> None:
    search = GridSearchCV(_made(), {"slope_limit": [0.3, 0.5]}, cv=3)
    assert TuningCostsPrivacy in {w.category for w in _told(lambda: search.fit(X, Y))}


QUIET: dict[str, Callable[[], Any]] = {
    "one fit": lambda: _made().fit(X, Y),
    "other people": lambda: (_made().fit(X[:150], Y[:150]), _made().fit(X[150:], Y[150:])),
    "partial_fit on new people": lambda: (
        _made().partial_fit(X[:150], Y[:150]).partial_fit(X[150:], Y[150:])
    ),
    "a fixed rule": lambda: make_pipeline(FunctionTransformer(np.tanh), _made()).fit(X, Y),
    "rows by themselves": lambda: make_pipeline(Normalizer(), _made()).fit(X, Y),
    "known categories": lambda: make_pipeline(OneHotEncoder(categories=[[0, 1, 2]]), _made()).fit(
        np.arange(300)[:, None] % 3, Y
    ),
    "a private search": lambda: PrivateSearch(
        PrivateLogisticRegression(data_norm=2.0, classes=[0, 1], max_iter=4), [{}]
    ).fit(X, Y),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_false_alarm(name: str) -> None:
    assert not _told(QUIET[name])


LEARNING: dict[str, Any] = {
    "StandardScaler": StandardScaler(),
    "MinMaxScaler": MinMaxScaler(),
    "ColumnTransformer": ColumnTransformer([("s", StandardScaler(), [0])], remainder="passthrough"),
    "FeatureUnion": FeatureUnion([("n", Normalizer()), ("s", StandardScaler())]),
}


@pytest.mark.parametrize("name", LEARNING)
def test_transformers_that_learn_from_the_rows_are_named(name: str) -> None:
    told = _told(lambda: make_pipeline(Normalizer(), LEARNING[name], _made()).fit(X, Y))
    assert [w.category for w in told] == [TransformerNotPrivate]
    assert name in str(told[0].message)
    assert told[0].filename == __file__  # the user's line, not the library's


def test_a_scaler_of_targets_is_named() -> None:
    model = PrivateLinearRegression(delta=1e-4, data_norm=2.0, target_bound=2.0, max_iter=4)
    whole = TransformedTargetRegressor(model, transformer=StandardScaler())
    assert TransformerNotPrivate in {w.category for w in _told(lambda: whole.fit(X, X[:, 0]))}


def test_the_ledger_is_small_and_keeps_no_rows() -> None:
    wide = np.random.default_rng(0).standard_normal((20_000, 200))
    LEDGER.enter(wide, _made(random_state=0).fit(X, Y).guarantee_, 1e-4)
    gc.collect()
    (fit,) = LEDGER._fits
    assert fit.keys.nbytes <= 4096 * 8
    assert not np.isin(fit.keys, wide.view(np.uint64)).any()
    overlap = _told(
        lambda: LEDGER.enter(wide[15_000:], _made(random_state=0).fit(X, Y).guarantee_, 1e-4)
    )
    assert [w.category for w in overlap] == [FitsAddUp]


def test_two_searches_on_the_same_people_add_up() -> None:
    def search() -> None:
        for _ in range(2):
            PrivateSearch(
                PrivateLogisticRegression(data_norm=2.0, classes=[0, 1], max_iter=4),
                [{}],
                delta=1e-4,
            ).fit(X, Y)

    assert [w.category for w in _told(search)] == [FitsAddUp]
