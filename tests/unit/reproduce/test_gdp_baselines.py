"""The non-private baselines: rating models on planted data, and the real ones where data is."""

from __future__ import annotations

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope_reproduce.datasets import find_folder
from tightrope_reproduce.gdp import baselines
from tightrope_reproduce.gdp.ratings import (
    Ratings,
    biased_factors,
    global_average,
    positive_factors,
    similar_users,
)
from tightrope_reproduce.item import Setting, Verdict


def planted(seed: int = 0) -> tuple[Ratings, Ratings, tuple[int, int]]:
    """Two kinds of users with opposite tastes; 40 % of all ratings are known."""
    rng = np.random.default_rng(seed)
    users, movies = 120, 60
    taste = np.outer(np.where(np.arange(users) % 2, 1, -1), np.where(np.arange(movies) % 2, 1, -1))
    known = np.argwhere(rng.random(taste.shape) < 0.4)
    stars = 3.0 + 1.5 * taste[known[:, 0], known[:, 1]] + rng.normal(0, 0.2, len(known))
    ratings = Ratings(known[:, 0], known[:, 1], np.clip(stars, 1, 5))
    order = rng.permutation(len(known))
    cut = len(known) // 5
    return ratings.part(order[cut:]), ratings.part(order[:cut]), (users, movies)


def rmse(model, *data) -> float:
    return float(np.sqrt(np.mean((model(*data) - data[1].stars) ** 2)))


def test_similar_users_and_factors_find_planted_tastes() -> None:
    data = planted()
    mean = rmse(global_average, *data)
    assert mean == pytest.approx(float(np.std(data[1].stars)), rel=0.01)
    assert rmse(similar_users, *data) < 0.6 * mean  # 40 neighbours of 48 raters: half are foes
    assert rmse(positive_factors, *data) < 0.3 * mean


def test_similar_users_against_slow_code() -> None:
    train, test, shape = planted(1)
    guess = similar_users(train, test, shape, neighbours=5)
    table = {(u, m): s for u, m, s in zip(train.user, train.movie, train.stars, strict=True)}

    def similarity(u: int, v: int) -> float:
        common = [m for m in range(shape[1]) if (u, m) in table and (v, m) in table]
        if not common:
            return 0.0
        return 1.0 / (1.0 + float(np.mean([(table[u, m] - table[v, m]) ** 2 for m in common])))

    for i in range(10):
        user, movie = int(test.user[i]), int(test.movie[i])
        raters = [v for v in range(shape[0]) if (v, movie) in table]
        best = sorted(((similarity(user, v), table[v, movie]) for v in raters), reverse=True)[:5]
        expected = sum(w * s for w, s in best) / sum(w for w, _ in best)
        assert guess[i] == pytest.approx(expected, rel=1e-4)


def test_gradients_taken_together_meet_those_taken_singly() -> None:
    """A batch of one is the plain stochastic gradient; the default batch comes to the same."""
    train, test, shape = planted(2)
    train = train.part(np.arange(200))
    single, many = (biased_factors(train, test, shape, batch=n) for n in (1, 20))
    assert np.max(np.abs(single - many)) < 0.02


def test_quick_runs_have_no_baselines() -> None:
    quick = Setting(quick=True)
    assert baselines.adult_baselines(quick) == baselines.movielens_baselines(quick) == ()


def test_adult_baselines_on_the_real_data() -> None:
    try:
        find_folder("adult")
    except InvalidInput:
        pytest.skip("Adult is not on this machine (TIGHTROPE_DATA)")
    lines = baselines.adult_baselines(Setting())
    scores = {line.what.split(",")[0]: line.ours for line in lines}
    assert scores["kNN (3 neighbours)"] == pytest.approx(81.85, abs=0.3)
    assert scores["pruned decision tree (C4.5)"] == pytest.approx(83.9, abs=0.3)
    assert {line.verdict for line in lines} == {Verdict.DIFFERS, Verdict.NOT_RUN}
