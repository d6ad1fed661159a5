"""Hole G3: a candidate changed the adjacency, and the winner spoke for its own fit alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tightrope.accounting import account
from tightrope.convex import Entropy
from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.estimators import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSearch,
    selection_guarantee,
)
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency, PoissonSelection
from tightrope.process.codec import from_json, to_json
from tightrope.search import PoissonTrials


def _table(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 3))
    return x, (x[:, 0] > 0).astype(int)


def _search(candidates: list[dict[str, Any]], **settings: Any) -> PrivateSearch:
    model = PrivateLogisticRegression(data_norm=2.0, classes=[0, 1], max_iter=5)
    return PrivateSearch(model, candidates, **({"epsilon": 1.0, "delta": 1e-4} | settings))


@pytest.mark.parametrize(
    "candidate",
    [
        {"adjacency": "add-or-remove"},
        {"adjacency": "add-or-remove", "records": 320},
        {"epsilon": 50.0},
        {"delta": 0.5},
        {"random_state": 0},
        {"records": 10},
        {"classes": [0, 1, 2]},
        {"labels_public": True},
        {"slop_limit": 0.5},
        "slope_limit",
    ],
    ids=str,
)
def test_no_candidate_can_move_the_promise(candidate: Any) -> None:
    with pytest.raises(InvalidInput, match="candidate"):
        _search([{"slope_limit": 0.5}, candidate], random_state=0).fit(*_table())


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), PrivateLogisticRegression(data_norm=2.0, classes=[0, 1])),
        LogisticRegression(),
    ],
    ids=["pipeline", "not private"],
)
def test_only_private_estimators_are_searched(estimator: Any) -> None:
    with pytest.raises(InvalidInput, match="private estimators"):
        PrivateSearch(estimator, [{}]).fit(*_table())


def test_the_winner_carries_the_cost_of_the_search() -> None:
    search = _search([{"slope_limit": 0.3}, {"slope_limit": 0.5}]).fit(*_table())
    winner = search.best_estimator_
    spent = search.guarantee_.epsilon(1e-4).upper
    assert 0.9 < spent <= 1.0
    assert winner.guarantee_.epsilon(1e-4).upper == spent
    assert winner.process_ == search.process_
    assert account(winner.process_).epsilon(1e-4).upper == spent
    assert winner.private_ and search.private_


def test_the_search_has_a_certificate_and_its_winner_the_same_one() -> None:
    search = _search([{"slope_limit": 0.3}, {"slope_limit": 0.5}]).fit(*_table())
    certificate = search.certificate()
    assert holds(verify(certificate))
    assert certificate["process"]["type"] == "PoissonSelection"
    assert certificate["run"]["settings"]["searched_settings"] == 2
    assert certificate["run"]["budget"] == {"epsilon": 1.0, "delta": 1e-4}
    assert search.best_estimator_.certificate()["claims"] == certificate["claims"]
    assert certificate["statement"] == search.best_estimator_.certificate()["statement"]


def test_a_seeded_search_is_not_private_and_neither_is_its_winner() -> None:
    search = _search([{}], random_state=3).fit(*_table())
    assert not search.private_ and not search.best_estimator_.private_
    assert not holds(verify(search.certificate()))


def test_the_process_is_the_one_of_the_theorem() -> None:
    process = PoissonSelection(0.2, 10.0, Adjacency.REPLACE_ONE)
    assert from_json(to_json(process)) == process
    direct = selection_guarantee(GaussianGuarantee(0.2, Adjacency.REPLACE_ONE), 10.0)
    by_renyi = next(f for f in account(process).findings if f.key == "selection")
    assert by_renyi.outcome.epsilon(1e-5).upper == direct.epsilon(1e-5).upper
    assert account(process).epsilon(1e-5).upper <= direct.epsilon(1e-5).upper
    one = GaussianGuarantee(0.2, Adjacency.REPLACE_ONE).epsilon(1e-5).upper
    assert account(process).epsilon(1e-5).upper > one
    for bad in ({"trial_mu": 0.0}, {"mean_trials": -1.0}, {"mean_trials": float("nan")}):
        with pytest.raises(InvalidInput):
            PoissonSelection(**({"trial_mu": 0.2, "mean_trials": 10.0} | bad))


def test_scores_of_a_regression_share_one_bound_on_the_target() -> None:
    """A candidate with a target_bound of its own would score on a scale of its own."""
    x, _ = _table()
    model = PrivateLinearRegression(data_norm=2.0, target_bound=2.0, max_iter=5)
    with pytest.raises(InvalidInput, match="bounds of the target"):
        PrivateSearch(model, [{"target_bound": 1e6}], random_state=0).fit(x, x[:, 0])


@pytest.mark.parametrize("cryptographic", [False, True])
def test_the_secret_number_of_trials_comes_from_the_home_of_entropy(
    cryptographic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once from NumPy's generator, even where everything was to be cryptographic."""
    kinds: list[bool] = []
    draw = PoissonTrials.draw

    def watched(self: PoissonTrials, uniform: Any) -> int:
        source = uniform.__self__
        kinds.append(isinstance(source, Entropy) and source.private)
        assert source.description.startswith("SHAKE-256") is cryptographic
        return draw(self, uniform)

    monkeypatch.setattr(PoissonTrials, "draw", watched)
    x = np.random.default_rng(0).standard_normal((60, 3))
    base = PrivateLogisticRegression(
        data_norm=2.0, classes=[0, 1], max_iter=2, cryptographic=cryptographic
    )
    search = PrivateSearch(base, [{}], epsilon=1.0, mean_trials=30.0)
    search.fit(x, (x[:, 0] > 0).astype(int))
    assert kinds == [True]


def test_uniform_numbers_make_poisson_ones() -> None:
    source = open_stream("test", seed=1, cryptographic=True)
    drawn = np.array([PoissonTrials(5.0).draw(source.uniform) for _ in range(4000)])
    assert abs(drawn.mean() - 5.0) < 5.0 * math.sqrt(5.0 / 4000)
    assert abs(drawn.var() / 5.0 - 1.0) < 0.15
    assert abs((drawn == 0).mean() - math.exp(-5.0)) < 0.006
