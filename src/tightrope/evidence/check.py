"""One line of a verdict. `verify.verify` makes them all, those about signatures included."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final

__all__ = ["State", "Check", "stated", "yours", "outcome", "holds", "DECISIVE"]

DECISIVE = "statement"  # the last check: it is made from what all others have recomputed


class State(StrEnum):
    """Who answers for a line."""

    RECOMPUTED = "recomputed here"
    STATED = "stated by the writer"
    YOURS = "yours to check"


@final
@dataclass(frozen=True)
class Check:
    """One line of a verdict. holds: None where nothing was recomputed, which refutes nothing.

    Only what was recomputed here can hold: a tick that nobody checked cannot be made. by: who
    answers for a line that the writer stated.
    """

    name: str
    holds: bool | None
    said: str
    state: State = State.RECOMPUTED
    by: str = ""

    def __post_init__(self) -> None:
        if (self.holds is None) == (self.state is State.RECOMPUTED):
            raise ValueError(f"{self.name}: holds = {self.holds} cannot be '{self.state}'")

    @property
    def verdict(self) -> str:
        return "not checked" if self.holds is None else "holds" if self.holds else "FAILS"


def stated(name: str, said: str, by: str = "") -> Check:
    return Check(name, None, said, State.STATED, by)


def yours(name: str, said: str) -> Check:
    return Check(name, None, said, State.YOURS)


def outcome(checks: list[Check]) -> bool | None:
    """False where anything fails; True where the statement was composed; None: not decided."""
    if any(check.holds is False for check in checks):
        return False
    return True if any(check.name == DECISIVE and check.holds for check in checks) else None


def holds(checks: list[Check]) -> bool:
    """Does everything that was recomputed hold?"""
    return outcome(checks) is True
