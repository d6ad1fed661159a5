"""Data keyed by user, and runs that protect users.

Two ways, both accounted exactly under Poisson sampling:
 - whole users are drawn (`Users(most)`): the rows of one user are one example, whose mean gradient
   is clipped once. The account is that of one record, and the record is the user.
 - single rows are drawn (`Users(most, together=False)`): each row is clipped on its own, and a user
   has at most `most` of them. The account is that of groups (mixtures of Gaussians).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.distributed import from_all_ranks
from tightrope.train.feed import Rows, as_rows, item_rows
from tightrope.train.protected import Users
from tightrope.validate import check_count

if TYPE_CHECKING:
    from tightrope.train.feed import Data

__all__ = ["UserData", "UserRows", "first_rows", "rows_for"]


class UserRows(NamedTuple):
    """The rows of some users: parts (users, most, ...), and what each row weighs in its mean.

    A user of fewer rows has copies of the first one, which weigh nothing.
    """

    parts: Any
    weights: Tensor

    def mean(self, losses: Tensor) -> Tensor:
        """(users,): the mean loss of each user, from the losses of all rows, side by side."""
        return (losses.view_as(self.weights) * self.weights).sum(1)

    def rows(self) -> tuple[Any, ...]:
        """The parts with the rows of all users side by side: (users * most, ...)."""
        return tuple(part.flatten(0, 1) for part in self.parts)


@final
class UserData:
    """Rows of data, and whose each of them is.

    data: a tensor, an array, or a tuple of them, row i of each belonging together.
    users: one name (a number or a text) for each row. The rows of one user may stand anywhere.
    """

    def __init__(self, data: Data, users: ArrayLike) -> None:
        self.data = as_rows(data)
        if self.data.arrays is None:
            raise InvalidInput(
                "UserData needs arrays or tensors, whose rows can be put together by user; got "
                f"{type(data).__name__}. Stack the items first, with one entry of `users` for each."
            )
        self.names, owners = np.unique(_names(users, self.data.length), return_inverse=True)
        self._order = np.argsort(owners, kind="stable").astype(np.int64)
        self._counts = np.bincount(owners, minlength=len(self.names))
        self._first = np.cumsum(self._counts) - self._counts
        self._made: dict[Users, Rows] = {}  # the same object for the same run

    @property
    def most(self) -> int:
        """The most rows that any user has. Private: state a public bound instead."""
        return int(self._counts.max(initial=0))

    def for_run(self, users: Users) -> Rows:
        """What a run draws from that protects such users."""
        if users not in self._made:
            self._check(users.most)
            rows = item_rows(_Items(self, users.most), _collate) if users.together else self.data
            self._made[users] = rows
        return self._made[users]

    def _check(self, most: int) -> None:
        """A user has at most so many rows, all on one rank; every rank refuses what one does."""
        mine = int((self._counts > most).sum()), self._texts()
        over, shards = zip(*from_all_ranks(mine), strict=True)
        if sum(over):
            raise InvalidInput(
                f"The run protects users of at most {most} rows, and {sum(over)} of these users "
                "have more. Drop rows by a rule that looks at each user alone (first_rows(users, "
                "most) keeps the first ones), or state a larger number."
            )
        if len(set().union(*shards)) < sum(len(names) for names in shards):
            raise InvalidInput(
                "A user has rows on two ranks, so that user could be drawn and clipped twice. Give "
                "all rows of a user to one rank."
            )

    def _texts(self) -> list[str]:
        """The names as texts: one rank may have read them as numbers."""
        return [str(name) for name in self.names.tolist()]

    def indices(self, user: int) -> np.ndarray:
        """The rows of one user, in the order of the data."""
        begin = self._first[user]
        return self._order[begin : begin + self._counts[user]]


@final
class _Items:
    """One item for each user, all of one shape."""

    def __init__(self, data: UserData, most: int) -> None:
        self._data, self._most = data, most

    def __len__(self) -> int:
        return len(self._data.names)

    def __getitem__(self, user: int) -> UserRows:
        held = self._data.indices(user)
        rows = np.concatenate([held, np.full(self._most - len(held), held[0])])
        taken = self._data.data.take(rows)
        weights = torch.zeros(self._most, device="cpu")
        weights[: len(held)] = 1.0 / len(held)
        return UserRows(taken if isinstance(taken, tuple) else (taken,), weights)


def _collate(items: list[UserRows]) -> UserRows:
    parts = zip(*(item.parts for item in items), strict=True)
    stacked = tuple(torch.stack(part) for part in parts)
    return UserRows(stacked, torch.stack([item.weights for item in items]))


def first_rows(users: ArrayLike, most: int) -> np.ndarray:
    """For each row, whether it is among the first `most` of its user."""
    check_count(most, "most", low=1)
    listed = np.asarray(users)
    owners = np.unique(_names(listed, len(listed)), return_inverse=True)[1]
    order = np.argsort(owners, kind="stable")
    begins = np.searchsorted(owners[order], owners[order])
    kept = np.empty(len(owners), dtype=bool)
    kept[order] = np.arange(len(owners)) - begins < most
    return kept


def _names(users: ArrayLike, length: int) -> np.ndarray:
    names = np.asarray(users)
    if names.dtype.kind == "O" and all(isinstance(name, str) for name in names.flat):
        names = names.astype(str)  # as tables keep texts
    if names.ndim != 1 or len(names) != length or names.dtype.kind not in "iuUS":
        raise InvalidInput(
            f"users must name the user of each of the {length} rows, by whole numbers or texts; "
            f"got {names.dtype} of shape {names.shape}."
        )
    return names


def rows_for(data: Any, collate: Any, users: Users | None) -> Rows:
    """The rows that a run draws from, which must be keyed by user where users are protected."""
    if isinstance(data, UserData) != (users is not None):
        raise InvalidInput(
            "The run protects users, and its data do not say whose each row is. Pass "
            "UserData(data, users)."
            if users is not None
            else "The data are keyed by user, and the run protects single records. Say in the "
            "sampler what it draws: PoissonSampler(rate, users=Users(most=64))."
        )
    return as_rows(data, collate) if users is None else data.for_run(users)
