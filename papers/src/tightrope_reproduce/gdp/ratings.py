"""The rating models of Table 4's baselines, with the Surprise library's default settings.

Written anew from their update rules, in NumPy; a rating is (user, movie, stars).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tightrope.validate import FloatArray

IntArray = NDArray[np.integer[Any]]

__all__ = ["Ratings", "global_average", "biased_factors", "positive_factors", "similar_users"]


@final
@dataclass(frozen=True)
class Ratings:
    user: IntArray
    movie: IntArray
    stars: FloatArray

    def part(self, chosen: IntArray) -> Ratings:
        return Ratings(self.user[chosen], self.movie[chosen], self.stars[chosen])

    def table(self, values: FloatArray, shape: tuple[int, int]) -> sparse.csr_matrix:
        return sparse.csr_matrix((values, (self.user, self.movie)), shape=shape)


def global_average(train: Ratings, test: Ratings, shape: tuple[int, int]) -> FloatArray:
    return np.full(test.stars.shape, train.stars.mean())


def biased_factors(
    train: Ratings, test: Ratings, shape: tuple[int, int], batch: int = 2000
) -> FloatArray:
    """SVD: mean + biases + 100 factors, stochastic gradients at 0.005, penalty 0.02, 20 passes.

    Gradients of `batch` ratings are taken at once: at so small a rate they hardly interact.
    """
    rng, rate, penalty = np.random.default_rng(0), 0.005, 0.02
    factors = [rng.normal(0.0, 0.1, (size, 100)) for size in shape]
    biases = [np.zeros(size) for size in shape]
    mean = train.stars.mean()
    for _ in range(20):
        for rows in np.array_split(rng.permutation(train.stars.size), train.stars.size // batch):
            at = (train.user[rows], train.movie[rows])
            mine, theirs = factors[0][at[0]], factors[1][at[1]]
            guess = mean + biases[0][at[0]] + biases[1][at[1]] + np.sum(mine * theirs, axis=1)
            error = train.stars[rows] - guess
            for side, other, own in ((0, theirs, mine), (1, mine, theirs)):
                gather = _gather(at[side], shape[side])
                factors[side] += gather @ (rate * (error[:, None] * other - penalty * own))
                biases[side] += gather @ (rate * (error - penalty * biases[side][at[side]]))
    user, movie = test.user, test.movie
    inner = np.sum(factors[0][user] * factors[1][movie], axis=1)
    return _in_range(mean + biases[0][user] + biases[1][movie] + inner)


def _gather(places: IntArray, size: int) -> sparse.csr_matrix:
    """The sum of rows that belong to the same place, as a matrix."""
    ones, rows = np.ones(places.size), np.arange(places.size)
    return sparse.csr_matrix((ones, (places, rows)), shape=(size, places.size))


def positive_factors(train: Ratings, test: Ratings, shape: tuple[int, int]) -> FloatArray:
    """NMF: 15 non-negative factors, multiplicative updates with penalty 0.06, 50 passes."""
    rng, penalty = np.random.default_rng(0), 0.06
    users, movies = (rng.uniform(0.0, 1.0, (size, 15)) for size in shape)
    known = train.table(train.stars, shape)
    places = zip((train.user, train.movie), shape, strict=True)
    counts = [np.bincount(place, minlength=size) for place, size in places]
    for _ in range(50):
        guess = np.sum(users[train.user] * movies[train.movie], axis=1)
        guessed = train.table(guess, shape)
        fresh = [
            _scaled(users, known @ movies, guessed @ movies, counts[0], penalty),
            _scaled(movies, known.T @ users, guessed.T @ users, counts[1], penalty),
        ]
        users, movies = fresh
    return _in_range(np.sum(users[test.user] * movies[test.movie], axis=1))


def _scaled(
    factors: FloatArray, above: FloatArray, below: FloatArray, counts: IntArray, penalty: float
) -> FloatArray:
    divisor = below + penalty * counts[:, None] * factors
    return factors * np.where(divisor > 0.0, above / np.maximum(divisor, 1e-300), 1.0)


def similar_users(
    train: Ratings, test: Ratings, shape: tuple[int, int], neighbours: int = 40
) -> FloatArray:
    """User-based filtering: the 40 most similar raters, 1/(1 + mean squared difference)."""
    similarity = _similarities(train, shape)
    guess = np.full(test.stars.shape, train.stars.mean())
    raters = train.table(train.stars, shape).tocsc()
    for movie in np.unique(test.movie):
        asked = np.flatnonzero(test.movie == movie)
        column = slice(raters.indptr[movie], raters.indptr[movie + 1])
        who, stars = raters.indices[column], raters.data[column]
        if who.size == 0:
            continue
        weight = similarity[np.ix_(test.user[asked], who)]
        if who.size > neighbours:
            best = np.argpartition(-weight, neighbours, axis=1)[:, :neighbours]
            weight, stars_of = np.take_along_axis(weight, best, axis=1), stars[best]
        else:
            stars_of = np.broadcast_to(stars, weight.shape)
        total = weight.sum(axis=1)
        rated = total > 0.0
        guess[asked[rated]] = (weight * stars_of).sum(axis=1)[rated] / total[rated]
    return guess


def _similarities(train: Ratings, shape: tuple[int, int]) -> FloatArray:
    """(users, users); 0 where two users have no movie in common."""
    stars = train.table(train.stars, shape).toarray().astype(np.float32)
    rated = (stars > 0).astype(np.float32)
    common = rated @ rated.T
    squares = (stars * stars) @ rated.T
    difference = squares + squares.T - 2.0 * (stars @ stars.T)
    return np.where(common > 0, 1.0 / (1.0 + difference / np.maximum(common, 1.0)), 0.0)


def _in_range(stars: FloatArray) -> FloatArray:
    return np.asarray(np.clip(stars, 1.0, 5.0))
