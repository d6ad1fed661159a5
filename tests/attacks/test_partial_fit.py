"""Siblings of holes B3, G3 and K2: a model that goes on must not forget what it promised before."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tightrope.errors import InvalidInput, NotCertified
from tightrope.estimators import (
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateSearch,
    PromisesNothing,
)
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify


def _table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((rows, 4))
    return x, (x[:, 0] > 0).astype(int)


FIRST, SECOND = _table(60, 0), _table(240, 1)


def _made(**settings: Any) -> PrivateLogisticRegression:
    usual = {"data_norm": 2.0, "classes": [0, 1], "max_iter": 4}
    return PrivateLogisticRegression(1.0, **(usual | settings))


@pytest.mark.parametrize(
    "change", [{"epsilon": 0.1}, {"epsilon": 10.0}, {"delta": 1e-9}, {"adjacency": "add-or-remove"}]
)
def test_a_model_does_not_go_on_under_another_promise(change: dict[str, Any]) -> None:
    model = _made().partial_fit(*FIRST)
    if "adjacency" in change:
        change = change | {"records": 240}
    model.set_params(**change)
    with pytest.raises(InvalidInput, match="One model has one promise"):
        model.partial_fit(*SECOND)
    assert model.fit(*SECOND).private_  # starting anew is another matter


def test_the_level_of_the_first_people_stays() -> None:
    """delta 1/n^1.1 of a larger second part is less than the people of the first were given."""
    model = _made().partial_fit(*FIRST)
    promised = model.delta_
    with pytest.warns(PromisesNothing, match="240 records"):  # it was chosen for 60
        certificate = model.partial_fit(*SECOND).certificate()
    assert model.delta_ == promised
    assert holds(verify(certificate))
    assert certificate["run"]["budget"]["delta"] == promised


def test_the_weaker_guarantee_of_two_parts_is_the_model_s() -> None:
    model = _made(delta=1e-4).partial_fit(*FIRST)
    first = model.guarantee_
    model.set_params(max_iter=7).partial_fit(*SECOND)
    for delta in (1e-3, 1e-6, 1e-9):
        assert model.guarantee_.epsilon(delta).upper >= first.epsilon(delta).upper * (1.0 - 1e-12)


def test_curves_that_cover_no_other_are_refused() -> None:
    model = _made(delta=1e-4, algorithm="poisson", batch_size=10).partial_fit(*FIRST)
    before = model.coef_.copy()
    with pytest.raises(NotCertified, match="descent"):
        model.partial_fit(*SECOND)
    np.testing.assert_array_equal(model.coef_, before)


def test_a_seed_is_not_forgotten() -> None:
    model = _made(random_state=0).partial_fit(*FIRST)
    model = pickle.loads(pickle.dumps(model)).set_params(random_state=None)
    with pytest.warns(PromisesNothing):
        assert not model.partial_fit(*SECOND).private_
    assert model.certificate()["run"]["private"] is False


def test_public_rows_of_the_first_fit_stay_on_the_certificate() -> None:
    model = _made().fit(*FIRST, public=_table(20, 2))
    before = model.certificate()["run"]["settings"]
    with pytest.warns(PromisesNothing):
        after = model.partial_fit(*SECOND).certificate()["run"]["settings"]
    assert after["public_rows"] == before["public_rows"] == 20
    assert after["public_rows_sha256"] == before["public_rows_sha256"]


def test_the_winner_of_a_search_does_not_go_on_as_one_fit() -> None:
    search = PrivateSearch(_made(), [{}], epsilon=3.0, mean_trials=30.0, random_state=0)
    winner = search.fit(*SECOND).best_estimator_
    with pytest.raises(InvalidInput, match="cost of the search"):
        winner.partial_fit(*FIRST)


def test_regressions_keep_their_promise_too() -> None:
    model = PrivateRidge(1.0, data_norm=2.0, target_bound=1.0, max_iter=4).partial_fit(*FIRST)
    with pytest.raises(InvalidInput, match="One model has one promise"):
        model.set_params(epsilon=0.1).partial_fit(*SECOND)
