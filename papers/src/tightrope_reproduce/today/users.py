"""MovieLens with users in place of ratings: who protects one rating protects nobody who rates.

The ratings of one user are one example (docs/users.md): drawn together, their mean gradient clipped
once. Beside it, what the same noise says of a user whose ratings are drawn one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.errors import DataNotFound
from tightrope.process import UserLevel
from tightrope_reproduce.item import Item, Line, Outcome, Setting, Table, Verdict

RATE, STEPS, CLIP, MOST = 0.1, 300, 0.15, 64
LEARNING_RATE, DECAY = 100.0, 5e-4  # one user moves a movie by a 64th at most
EPSILON, DELTA = 3.0, 1e-5
MIDDLE = 3.5  # of the scale: public


def run(setting: Setting) -> Outcome:
    try:
        found = _trained(setting)
    except (DataNotFound, ModuleNotFoundError):
        reason = "training needs torch and the data of movielens; set TIGHTROPE_DATA"
        return Outcome((Line(_WHAT, None, None, None, Verdict.NOT_RUN, reason),))
    noise, errors = found
    ways = _WAYS[: setting.points(len(_WAYS), 3)]
    rows = [(users, together, *_epsilon(noise, users, together)) for users, together in ways]
    whole, one_by_one = rows[0], rows[-1]
    return Outcome(
        (
            Line(
                _WHAT,
                None,
                f"{errors['private']:.3f}",
                None,
                Verdict.BEYOND,
                f"epsilon {whole[3]:.3g} for a user of at most {MOST} ratings, noise {noise:.3g}; "
                f"{errors['without noise']:.3f} without noise, {errors['the middle']:.3f} for "
                "whoever says the middle of the scale",
            ),
            Line(
                f"epsilon of {one_by_one[0]} ratings, drawn one by one at noise {noise:.3g}",
                None,
                f"{one_by_one[3]:.3g}",
                None,
                Verdict.BEYOND,
                "single ratings are protected there, and a user has many",
            ),
        ),
        (Table("accounts", ("ratings_of_a_user", "drawn_together", "lower", "upper"), rows),),
    )


_WHAT = "RMSE of the mean rating of each movie, learned with users protected"
_WAYS = ((MOST, True), (1, False), (4, False), (16, False), (MOST, False))


def _epsilon(noise: float, records: int, together: bool) -> tuple[float, float]:
    one = NoisySGD(PoissonSampling(RATE), noise, STEPS)
    found = account(UserLevel(one, records, together)).epsilon(DELTA)
    return found.lower, found.upper


def _ratings(quick: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """User, movie and stars of each rating, and which are held out."""
    if quick:
        rng = np.random.default_rng(0)
        movie = rng.integers(0, 20, 2000)
        stars = np.clip(np.round(rng.normal(2.5 + movie / 10.0, 0.7)), 1.0, 5.0)
        return rng.integers(0, 100, 2000), movie, stars.astype(np.float32), rng.random(2000) < 0.1
    from tightrope_reproduce.datasets import load_movielens

    data = load_movielens()
    return data.user, data.movie, data.rating, data.test


def _trained(setting: Setting) -> tuple[float, dict[str, float]]:
    """The noise for the budget, and the errors on held-out ratings."""
    import torch

    from tightrope.train import Budget, PoissonSampler, UserData, Users, first_rows, noise_for

    user, movie, stars, test = _ratings(setting.quick)
    kept = np.flatnonzero(~test)
    kept = kept[first_rows(user[kept], MOST)]
    parts = (torch.from_numpy(movie[kept]), torch.from_numpy(stars[kept] - MIDDLE))
    data, users = UserData(parts, user[kept]), len(np.unique(user))
    sampler = PoissonSampler(RATE, users=Users(MOST))
    noise = noise_for(Budget(EPSILON, DELTA), sampler, steps=STEPS).noise_multiplier
    steps = 20 if setting.quick else STEPS
    errors = {"the middle": _rmse(np.zeros(int(movie.max()) + 1), movie[test], stars[test])}
    for name, multiplier in (("private", noise), ("without noise", 0.0)):
        means = _learn(data, users, int(movie.max()) + 1, multiplier, steps, sampler)
        sampler = PoissonSampler(RATE, users=Users(MOST))
        errors[name] = _rmse(means, movie[test], stars[test])
        setting.tell(name)
    return noise, errors


def _learn(
    data: Any, users: int, movies: int, noise: float, steps: int, sampler: Any
) -> np.ndarray:
    """How far each movie lies above the middle."""
    import torch
    from torch import nn

    from tightrope.train import FlatClip, GaussianNoise, private

    table = nn.Embedding(movies, 1)
    nn.init.zeros_(table.weight)
    model = nn.Sequential(table, nn.Flatten(0))

    def loss(model: nn.Module, movie: torch.Tensor, stars: torch.Tensor) -> Any:
        return 0.5 * (model(movie) - stars) ** 2

    run = private(
        model,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, weight_decay=DECAY),
        data,
        loss,
        sampler=sampler,
        clip=FlatClip(CLIP),
        noise=GaussianNoise(noise) if noise else GaussianNoise(0.0, seed=0),
        expected_batch_size=RATE * users,
        steps=steps,
        delta=DELTA,
    )
    run.fit(progress=False)
    return np.asarray(table.weight.detach().numpy()[:, 0])


def _rmse(above: np.ndarray, movie: np.ndarray, stars: np.ndarray) -> float:
    guess = np.clip(MIDDLE + above[movie], 1.0, 5.0)
    return float(np.sqrt(np.mean((guess - stars) ** 2)))


ITEM = Item("today-users", "Beyond the papers", "MovieLens, users protected", run)
