"""What every theorem offers, and the small helpers they share.

A theorem is a class without instances, in the file of its family. It has a docstring with the
headings Statement, Conditions, Validity, Source, Error and Vectors, the constants NAME, SOURCE,
VALIDITY and RELATIONS (the neighbouring relations that it is proved for, by name: a new relation is
in none of them), and two class methods:

    applies(process) -> None | Refusal     None, or the refusal: a full sentence, and its kind
    guarantee(process) -> Guarantee        for one run; raises DoesNotApply where it is refused

Repetition and composition are handled by `tightrope.guarantee.compose` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.process import Adjacency, Process

__all__ = ["Source", "Theorem", "Refusal", "foreign", "other_neighbours", "require"]
__all__ += ["ONE_RECORD", "PRESENCE", "REPLACED"]

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


# relations that theorems name; who adds a relation adds it to those that are proved for it
ONE_RECORD = (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
PRESENCE = (Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT)  # a record, or nothing in its place
REPLACED = (Adjacency.REPLACE_ONE,)


def other_neighbours(
    theorem: str, process: Process, proved: tuple[Adjacency, ...]
) -> Refusal | None:
    """The refusal of neighbours for whom a theorem is not proved; the last condition checked."""
    if process.adjacency in proved:
        return None
    return Refusal(
        f"{theorem} is proved for {' or '.join(map(str, proved))} neighbours; got "
        f"{process.adjacency}. Declare one of these if that is what your data sets differ in.",
        "neighbours",
    )


class Theorem(Protocol):
    """What the catalogue asks of a theorem."""

    NAME: str
    SOURCE: Source
    VALIDITY: Validity

    @property
    def RELATIONS(self) -> tuple[Adjacency, ...]: ...  # noqa: N802

    def applies(self, process: Any) -> Refusal | None: ...
    def guarantee(self, process: Any) -> Guarantee | Estimate: ...


def require(reason: Refusal | None) -> None:
    """Raise the refusal, if there is one."""
    if reason is not None:
        raise DoesNotApply(reason)
