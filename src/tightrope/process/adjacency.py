"""Who counts as a neighbour, and what an observer sees."""

from __future__ import annotations

from enum import Enum

from tightrope.errors import InvalidInput

__all__ = ["Adjacency", "Released", "check_adjacency", "check_rows"]


class Adjacency(Enum):
    """Which two datasets the guarantee compares: they differ in one record.

    Add-or-remove: it is in one of them only. Replace-one: it is another record in the other.
    Zero-out: it is a null record in the other, which is drawn and counted like any record but adds
    nothing to a sum.

    >>> from tightrope import Adjacency, GaussianMechanism, account
    >>> swapped = GaussianMechanism(2.0, adjacency=Adjacency.REPLACE_ONE)
    >>> print(account(swapped).epsilon(delta=1e-5))
    [1.993091404, 1.993091405]
    """

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"

    def __str__(self) -> str:
        return self.value

    @property
    def moved(self) -> float:
        """How far a sum of clipped terms moves, the rest of the batch staying, in clip norms."""
        if self not in _MOVED:
            raise InvalidInput(
                f"How far a sum of clipped terms moves between {self} neighbours is not known; it "
                f"is for {', '.join(map(str, _MOVED))}. Use one of these, or prove it for yours "
                "and add a row to the table beside Adjacency."
            )
        return _MOVED[self]


# every relation has a row of its own: nothing is assumed of a new one
_MOVED = {Adjacency.ADD_OR_REMOVE: 1.0, Adjacency.REPLACE_ONE: 2.0, Adjacency.ZERO_OUT: 1.0}


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
        allowed = ", ".join(f"{member} (Adjacency.{member.name})" for member in Adjacency)
        raise InvalidInput(f"adjacency must be one of {allowed}; got {value!r}.") from None


def check_rows(value: object, what: str) -> Adjacency:
    """Neighbours of `what`, whose data are rows: none of them is a null record."""
    relation = check_adjacency(value)
    if relation is Adjacency.ZERO_OUT:
        raise InvalidInput(
            f"{what} takes add-or-remove or replace-one neighbours; got {relation}, whose null "
            "record is not a row of data. Use one of the two. The run can still be accounted under "
            "zero-out neighbours, as a process of its own."
        )
    return relation
