"""What every theorem module offers, and the small helpers they share.

A theorem module has a docstring with the headings Statement, Conditions, Validity, Source, Error
and Vectors, the constants NAME, SOURCE and VALIDITY, and two functions:

    applies(process) -> None | str         None, or the reason of the refusal in a full sentence
    guarantee(process) -> Guarantee        for one run; raises DoesNotApply where it is refused

Repetition and composition are handled by `tightrope.guarantee.compose` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, final

from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate

__all__ = ["Source", "Theorem", "require"]


@final
@dataclass(frozen=True)
class Source:
    """Where a statement is printed."""

    paper: str
    place: str
    short: str

    def __str__(self) -> str:
        return f"{self.paper}, {self.place}"


class Theorem(Protocol):
    """The face of a theorem module."""

    NAME: str
    SOURCE: Source
    VALIDITY: Validity

    @staticmethod
    def applies(process: Any) -> str | None: ...

    @staticmethod
    def guarantee(process: Any) -> Guarantee | Estimate: ...


def require(reason: str | None) -> None:
    """Raise the refusal, if there is one."""
    if reason is not None:
        raise DoesNotApply(reason)
