"""What every theorem module offers, and the small helpers they share.

A theorem module has a docstring with the headings Statement, Conditions, Validity, Source, Error
and Vectors, the constants NAME, SOURCE and VALIDITY, and two functions:

    applies(process) -> None | Refusal     None, or the refusal: a full sentence, and its kind
    guarantee(process) -> Guarantee        for one run; raises DoesNotApply where it is refused

Repetition and composition are handled by `tightrope.guarantee.compose` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final

from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.process import Process

__all__ = ["Source", "Theorem", "Refusal", "foreign", "require"]

# It is about other processes; a condition fails; or only the neighbours do (checked last).
Kind = Literal["foreign", "condition", "neighbours"]


@final
@dataclass(frozen=True)
class Source:
    """Where a statement is printed."""

    paper: str
    place: str
    short: str

    def __str__(self) -> str:
        return f"{self.paper}, {self.place}"


@final
class Refusal(str):
    """Why a theorem does not apply, in full sentences, and of which kind the reason is."""

    kind: Kind

    def __new__(cls, text: str, kind: Kind = "condition") -> Refusal:
        made = super().__new__(cls, text)
        made.kind = kind
        return made

    def renamed(self, theorem: str, other: str) -> Refusal:
        """The same refusal by another theorem with the same conditions."""
        return Refusal(self.replace(theorem, other), self.kind)


def foreign(theorem: str, wanted: str, process: object) -> Refusal:
    """The refusal of a process of another kind."""
    return Refusal(f"{theorem} applies to {wanted}; got {type(process).__name__}.", "foreign")


class Theorem(Protocol):
    """The face of a theorem module."""

    NAME: str
    SOURCE: Source
    VALIDITY: Validity

    @staticmethod
    def applies(process: Process) -> Refusal | None: ...

    @staticmethod
    def guarantee(process: Process) -> Guarantee | Estimate: ...


def require(reason: Refusal | None) -> None:
    """Raise the refusal, if there is one."""
    if reason is not None:
        raise DoesNotApply(reason)
