"""Data keyed by user, and runs that protect users.

Two ways, both accounted exactly under Poisson sampling:
 - whole users are drawn (`Users(most)`): the rows of one user are one example, whose mean gradient
   is clipped once. The account is that of one record, and the record is the user.
 - single rows are drawn (`Users(most, together=False)`): each row is clipped on its own, and a user
   has at most `most` of them. The account is that of groups (mixtures of Gaussians).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from tightrope.errors import InvalidInput
from tightrope.train.data import arrays_of
from tightrope.train.ranks import from_all_ranks
from tightrope.train.samplers import Users
from tightrope.validate import check_count

__all__ = [
    "Augment",
    "CropAndFlip",
    "UserData",
    "Users",
    "first_rows",
    "loss_of_examples",
    "rows_of_users",
    "with_views",
]

Augment = Callable[[Tensor, int], Tensor]  # (B, ...) and K -> (B, K, ...)


@final
class UserData:
    """Rows of data, and whose each of them is.

    data: a tensor, an array, or a tuple of them, row i of each belonging together.
    users: one name (a number or a text) for each row. The rows of one user may stand anywhere.
    """

    def __init__(self, data: Any, users: ArrayLike) -> None:
        arrays = arrays_of(data)
        if arrays is None:
            raise InvalidInput(
                "UserData needs arrays or tensors, whose rows can be put together by user; got "
                f"{type(data).__name__}. Stack the items first, with one entry of `users` for each."
            )
        self.arrays = arrays
        self.names, owners = np.unique(_names(users, len(arrays[0])), return_inverse=True)
        self._counts = np.bincount(owners, minlength=len(self.names))
        self._order = np.argsort(owners, kind="stable").astype(np.int64)
        self._ends = np.cumsum(self._counts)

    def rows(self, user: int) -> np.ndarray:
        """Of one user, in the order of the data."""
        return self._order[self._ends[user] - self._counts[user] : self._ends[user]]

    @property
    def most(self) -> int:
        """The most rows that any user has. Private: state a public bound instead."""
        return int(self._counts.max(initial=0))

    def check(self, most: int) -> None:
        """A user has at most so many rows, all on one rank; every rank refuses what one does."""
        names = [str(name) for name in self.names.tolist()]  # one rank may have read numbers
        over, shards = zip(*from_all_ranks((bool((self._counts > most).any()), names)), strict=True)
        if any(over):
            raise InvalidInput(
                f"The run protects users of at most {most} rows, and some of these users "
                "have more. Drop rows by a rule that looks at each user alone (first_rows(users, "
                "most) keeps the first ones), or state a larger number."
            )
        if len(set().union(*shards)) < sum(map(len, shards)):
            raise InvalidInput(
                "A user has rows on two ranks, so that user could be drawn and clipped twice. Give "
                "all rows of a user to one rank."
            )


@final
class UsersAsRecords:
    """A data set whose records are users: (parts (most, ...), weights (most,)) for each.

    A user of fewer rows has copies of the first one, which weigh nothing.
    """

    def __init__(self, data: UserData, most: int) -> None:
        self._data, self._most = data, most

    def __len__(self) -> int:
        return len(self._data.names)

    def __getitem__(self, user: int) -> tuple[Tensor, ...]:
        own = self._data.rows(user)
        rows = torch.from_numpy(np.concatenate([own, np.full(self._most - len(own), own[0])]))
        weights = torch.zeros(self._most, device="cpu")
        weights[: len(own)] = 1.0 / len(own)
        return (*(part[rows.to(part.device)] for part in self._data.arrays), weights)


def rows_of_users(data: Any, users: Users | None) -> Any:
    """What a run draws from: the data as they are, whole users, or single rows of users."""
    if users is None and isinstance(data, UserData):
        raise InvalidInput(
            "The data are keyed by user, and the run protects single records. State in the sampler "
            "what it draws: PoissonSampler(rate, users=Users(most=64))."
        )
    if users is None:
        return data
    if not isinstance(data, UserData):
        raise InvalidInput(
            "The run protects users, and its data do not name the owner of each row. Pass "
            "UserData(data, users)."
        )
    data.check(users.most)
    return UsersAsRecords(data, users.most) if users.together else data.arrays


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


# ---- losses of examples that have rows inside ----------------------------------------------------


def loss_of_examples(
    loss: Callable[..., Any], users: Users | None, views: int, augment: Augment | None
) -> Callable[..., Any]:
    """The loss of an example: the mean over its views, and over the rows of a whole user."""
    each = with_views(loss, views, augment) if views > 1 or augment is not None else loss
    if users is None or not users.together:
        return each

    def mean(model: Any, *arguments: Tensor) -> Any:
        *parts, weights = arguments
        rows = each(model, *(part.flatten(0, 1) for part in parts))
        return _for_each(rows, lambda e: (e.unflatten(0, weights.shape[:2]) * weights).sum(1))

    return mean


def with_views(loss: Callable[..., Any], views: int, augment: Augment | None) -> Callable[..., Any]:
    """The mean loss over `views` views: of (B, K, ...) inputs, or made by `augment` of (B, ...).

    The first argument after the model has views; the others belong to the example.
    """
    check_count(views, "views", low=1)

    def repeated(target: Tensor) -> Tensor:  # (B, ...) -> (B * K, ...), each row K times
        return target.unsqueeze(1).expand(-1, views, *target.shape[1:]).flatten(0, 1)

    def mean(model: Any, inputs: Tensor, *targets: Tensor) -> Any:
        seen = inputs if augment is None else augment(inputs, views)
        each = loss(model, seen.flatten(0, 1), *map(repeated, targets))
        return _for_each(each, lambda e: e.unflatten(0, (-1, views)).mean(1))

    return mean


def _for_each(losses: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Of one loss, or of each of several by name."""
    if isinstance(losses, dict):
        return {name: function(one) for name, one in losses.items()}
    return function(losses)


@final
@dataclass(frozen=True)
class CropAndFlip:
    """Images reflected by `padding` at their borders, cut out at a random place, half of them
    mirrored: (B, C, H, W) and K -> (B, K, C, H, W)."""

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        check_count(self.padding, "padding", low=0)

    def __call__(self, images: Tensor, views: int) -> Tensor:
        height, width = images.shape[2:]
        wide = functional.pad(images, [self.padding] * 4, mode="reflect")
        one = images[:, :1, :1, :1].expand(-1, views, -1, -1)  # (B, K, 1, 1), for its shape
        rows, columns = self._places(one, height), self._places(one, width)
        if self.flip:
            mirrored = torch.rand_like(one, dtype=torch.float32) < 0.5
            columns = torch.where(mirrored, columns.flip(3), columns)
        copies = wide.unsqueeze(1).expand(-1, views, -1, -1, -1)  # (B, K, C, H + 2p, W + 2p)
        rows = rows.transpose(2, 3).unsqueeze(2).expand(-1, -1, wide.shape[1], -1, wide.shape[3])
        columns = columns.unsqueeze(2).expand(-1, -1, wide.shape[1], height, -1)
        return copies.gather(3, rows).gather(4, columns)

    def _places(self, one: Tensor, length: int) -> Tensor:
        """(B, K, 1, length): a window of consecutive places, from a random start."""
        start = torch.randint_like(one, 2 * self.padding + 1, dtype=torch.int64)
        return start + torch.arange(length, device=one.device)
