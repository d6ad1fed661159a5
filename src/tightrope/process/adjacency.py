"""Who counts as a neighbour, and what an observer sees."""

from __future__ import annotations

from enum import Enum

from tightrope.errors import InvalidInput

__all__ = ["Adjacency", "Released", "check_adjacency"]


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


def check_adjacency(value: object) -> Adjacency:
    """A neighbouring relation, also by its name."""
    try:
        return Adjacency(value)
    except ValueError:
        allowed = " or ".join(f"Adjacency.{member.name}" for member in Adjacency)
        raise InvalidInput(f"adjacency must be {allowed}; got {value!r}.") from None
