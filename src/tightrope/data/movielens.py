"""MovieLens 1M: 1,000,209 ratings by 6,040 users; each user's last rating is the test part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.data.folder import find_folder

__all__ = ["MovieLens", "load_movielens"]


@final
@dataclass(frozen=True)
class MovieLens:
    """Ratings in the order of the original file. Users and movies are numbered from 0."""

    user: NDArray[np.int64]
    movie: NDArray[np.int64]
    rating: NDArray[np.float32]
    test: NDArray[np.bool_]
    movie_ids: NDArray[Any]

    @property
    def users(self) -> int:
        return int(self.user.max()) + 1

    @property
    def movies(self) -> int:
        return len(self.movie_ids)


def load_movielens(folder: str | Path | None = None) -> MovieLens:
    """`movie_ids[m]` is the original number of movie m; `test` marks the held-out ratings."""
    place = find_folder("movielens-1m", folder)
    with np.load(place / "ml1m.npz") as file:
        user, movie, rating = file["user"], file["movie"], file["rating"]
        held_out = file["loo_test_row"]
    ids, numbered = np.unique(movie, return_inverse=True)
    test = np.zeros(len(user), dtype=np.bool_)
    test[held_out] = True
    return MovieLens(
        user.astype(np.int64) - 1,
        numbered.astype(np.int64),
        rating.astype(np.float32),
        test,
        ids,
    )
