"""Who counts as a neighbour, and what an observer sees."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.validate import check_count

__all__ = [
    "Adjacency",
    "Released",
    "check_adjacency",
    "check_rows",
    "UserLevel",
    "OneRecord",
    "unit_name",
]


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
    if relation not in (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE):
        raise InvalidInput(
            f"{what} takes add-or-remove or replace-one neighbours; got {relation}, for "
            "which there is no proof with rows of data (a null record is not a row). Use one of "
            "the two. The run can still be accounted under others, as a process of its own."
        )
    return relation


# ---- Whom a process protects: one record, or all records of one user -----------------------------


def unit_name(records: int) -> str:
    """Whom a guarantee protects, in words."""
    return "one record" if records == 1 else f"one user of at most {records} records"


class OneRecord:
    """A process whose neighbours differ in one record."""

    @property
    def unit_of_privacy(self) -> str:
        return unit_name(1)

    def group(self, size: int) -> Any:
        """The same run, with users of at most `size` records as the ones who are protected."""
        size = check_count(size, "size", low=1)
        return self if size == 1 else UserLevel(self, size)


@final
@dataclass(frozen=True)
class UserLevel:
    """A run whose neighbours differ in all records, at most `records`, of one user.

    together: a user's records are drawn and clipped as one, so that the run's own record is the
    user. Otherwise they are drawn and clipped one by one, as in the run alone.
    """

    run: Any
    records: int
    together: bool = False

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.run, "adjacency", None), Adjacency):
            raise InvalidInput(f"UserLevel needs a process such as NoisySGD; got {self.run!r}.")
        if isinstance(self.run, UserLevel):
            raise InvalidInput(
                f"UserLevel of UserLevel says twice how many records a user has; got {self.run!r}. "
                "Say it once, with the larger number."
            )
        object.__setattr__(self, "records", check_count(self.records, "records", low=1))
        if not isinstance(self.together, bool):
            raise InvalidInput(f"together must be True or False; got {self.together!r}.")

    @property
    def adjacency(self) -> Adjacency:
        return self.run.adjacency  # type: ignore[no-any-return]

    @property
    def unit_of_privacy(self) -> str:
        return unit_name(self.records)
