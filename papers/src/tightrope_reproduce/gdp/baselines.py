"""The non-private baselines beside the networks in Tables 2 to 4, as far as they can be made again.

They make no claim about privacy. Those of Adult are four of the errors that the data's own
description lists (UCI, MLC++: official split, people with unknown values removed): 20.35, 16.12,
15.64 and 15.54 %. Ours are scikit-learn's, on 123 binary features and a held-out tenth.
Those of MovieLens are the Surprise library's models, written anew in ratings.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tightrope.errors import TightropeError
from tightrope_reproduce.datasets import load_adult, load_movielens
from tightrope_reproduce.gdp.ratings import (
    Ratings,
    biased_factors,
    global_average,
    positive_factors,
    similar_users,
)
from tightrope_reproduce.item import Line, Printed, Setting, Verdict, check

__all__ = ["adult_baselines", "imdb_baselines", "movielens_baselines"]

_ELSEWHERE = "a non-private model of another library, without a claim about privacy"
_OTHER = (
    "the number of UCI's own table (MLC++, official split, unknown values removed); ours is "
    "scikit-learn's on 123 binary features and a random tenth of the training file"
)


def adult_baselines(setting: Setting) -> tuple[Line, ...]:
    voted = _not_run("voted ID3, test accuracy (%)", 84.4)
    return () if setting.quick else (*_with_data(_adult), voted)


def imdb_baselines(setting: Setting) -> tuple[Line, ...]:
    return () if setting.quick else (_not_run("LSTM-RNN, test accuracy (%)", 85.4),)


def movielens_baselines(setting: Setting) -> tuple[Line, ...]:
    return () if setting.quick else _with_data(_movielens)


def _with_data(lines: Callable[[], tuple[Line, ...]]) -> tuple[Line, ...]:
    try:
        return lines()
    except (TightropeError, ModuleNotFoundError):
        because = "needs the data (set TIGHTROPE_DATA) and scikit-learn"
        return (Line("baselines", "printed", None, None, Verdict.NOT_RUN, because),)


def _adult() -> tuple[Line, ...]:
    from sklearn.naive_bayes import BernoulliNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    people = load_adult().train
    held, kept = _split(len(people), 3_256)
    tree = partial(DecisionTreeClassifier, criterion="entropy", ccp_alpha=5e-4, random_state=0)
    models: dict[str, tuple[Any, float]] = {
        "kNN (3 neighbours)": (KNeighborsClassifier(3), 79.7),
        "naive Bayes": (BernoulliNB(), 83.9),
        "pruned decision tree (C4.5)": (tree(), 84.5),
    }
    lines = []
    for name, (model, printed) in models.items():
        fitted = model.fit(people.x[kept], people.y[kept])
        ours = 100.0 * float(fitted.score(people.x[held], people.y[held]))
        lines.append(check(f"{name}, test accuracy (%)", Printed(printed), ours, 0.5, None, _OTHER))
    return tuple(lines)


def _movielens() -> tuple[Line, ...]:
    data = load_movielens()
    ratings = Ratings(data.user, data.movie, data.rating.astype(np.float64))
    shape = (int(data.user.max()) + 1, len(data.movie_ids))
    held, kept = _split(len(data.user), len(data.user) // 5)
    test, train = ratings.part(held), ratings.part(kept)
    lines = []
    for name, (model, printed) in _RATING_MODELS.items():
        guess = model(train, test, shape)
        ours = float(np.sqrt(np.mean((test.stars - guess) ** 2)))
        what = f"{name}, root mean squared error (stars)"
        lines.append(check(what, Printed(printed), ours, 0.003))
    return tuple(lines)


_RATING_MODELS = {
    "SVD": (biased_factors, 0.873),
    "NMF": (positive_factors, 0.916),
    "user-based CF": (similar_users, 0.923),
    "global average": (global_average, 1.117),
}


def _split(size: int, held: int) -> tuple[Any, Any]:
    """The random split of the trainings with seed 0."""
    order = np.random.default_rng(0).permutation(size)
    return order[:held], order[held:]


def _not_run(what: str, printed: float) -> Line:
    return Line(what, Printed(printed), None, None, Verdict.NOT_RUN, _ELSEWHERE)
