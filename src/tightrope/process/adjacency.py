"""Who counts as a neighbour, and what an observer sees."""

from __future__ import annotations

from enum import Enum

__all__ = ["Adjacency", "Released"]


class Adjacency(Enum):
    """Which two datasets the guarantee compares."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"

    def __str__(self) -> str:
        return self.value


class Released(Enum):
    """What the observer sees of an iterative algorithm."""

    EVERY_ITERATE = "every iterate"
    LAST_ITERATE = "last iterate"

    def __str__(self) -> str:
        return self.value
