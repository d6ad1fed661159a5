"""Whom a run protects, where that is more than single records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.errors import InvalidInput
from tightrope.process import Process, UserLevel
from tightrope.validate import check_count

__all__ = ["Users", "check_users"]


@final
@dataclass(frozen=True)
class Users:
    """What a sampler draws where users are protected: whole ones, or single rows of theirs.

    most: rows of one user, at most; a public number.
    """

    most: int
    together: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", check_count(self.most, "most", low=1))

    def process(self, run: Process) -> UserLevel:
        """The run as a process that protects these users."""
        return UserLevel(run, self.most, self.together)


def check_users(value: object) -> Users | None:
    if value is None or isinstance(value, Users):
        return value
    raise InvalidInput(
        f"users must say how many rows a user has at most, as Users(most=64); got {value!r}."
    )
