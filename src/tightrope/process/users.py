"""Whom a process protects: one record, or all records of one user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency
from tightrope.validate import check_count

__all__ = ["UserLevel", "OneRecord", "unit_name"]


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
