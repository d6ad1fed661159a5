"""Who counts as a neighbour, and what an observer sees."""

from __future__ import annotations

from enum import Enum

from tightrope.errors import InvalidInput

__all__ = ["Adjacency", "Released", "check_adjacency"]


class Adjacency(Enum):
    """Which two datasets the guarantee compares.

    >>> from tightrope import Adjacency, GaussianMechanism, account
    >>> swapped = GaussianMechanism(2.0, adjacency=Adjacency.REPLACE_ONE)
    >>> print(account(swapped).epsilon(delta=1e-5))
    [1.993091404, 1.993091405]
    """

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"

    def __str__(self) -> str:
        return self.value


class Released(Enum):
    """What the observer sees of an iterative algorithm.

    >>> from tightrope import Released
    >>> [released.value for released in Released]
    ['every iterate', 'last iterate']
    """

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
