"""One line of a verdict, and what all lines come to. `verify.verify` makes the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

DECISIVE = "statement"  # the last check: it is made from what all others have recomputed
NO_PROMISE = "no promise"  # in its place where all is true, and protects no one


class State(StrEnum):
    """Who answers for a line."""

    RECOMPUTED = "recomputed here"
    STATED = "stated by the writer"
    YOURS = "yours to check"


class Verdict(StrEnum):
    """What all lines together come to. `code` is the exit code of the command."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "not decided"
    PROMISES_NOTHING = "promises nothing"

    @property
    def code(self) -> int:
        return {"holds": 0, "fails": 1, "not decided": 3, "promises nothing": 4}[self]

    @property
    def holds(self) -> bool | None:
        """For programs that ask one question: true for a promise that holds, and for no other."""
        return None if self is Verdict.UNDECIDED else self is Verdict.HOLDS


@final
@dataclass(frozen=True)
class Check:
    """One line of a verdict. holds: None where nothing was recomputed, which refutes nothing.

    Only what was recomputed here can hold: a tick without a check cannot be made. by: who
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


def stated(name: str, words: str, by: str = "") -> Check:
    return Check(name, None, words, State.STATED, by)


def yours(name: str, words: str) -> Check:
    return Check(name, None, words, State.YOURS)


def verdict(checks: Sequence[Check]) -> Verdict:
    """Undecided where a verification was cut short before its last line."""
    if any(check.holds is False for check in checks):
        return Verdict.FAILS
    names = {check.name for check in checks if check.holds}
    if DECISIVE in names:
        return Verdict.HOLDS
    return Verdict.PROMISES_NOTHING if NO_PROMISE in names else Verdict.UNDECIDED


def holds(checks: Sequence[Check]) -> bool:
    """Does everything that was recomputed hold, and promise something?"""
    return verdict(checks) is Verdict.HOLDS
