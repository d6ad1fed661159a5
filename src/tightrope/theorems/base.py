"""What every theorem offers, and the small helpers they share.

A theorem is a class without instances, in the file of its family. It has a docstring with the
headings Statement, Conditions, Validity, Source, Error and Vectors, the constants NAME, SOURCE,
VALIDITY and RELATIONS (the neighbouring relations that it is proved for, by name: a new relation is
in none of them), and two class methods:

    applies(process) -> None | Refusal     None, or the refusal: a full sentence, and its kind
    guarantee(process) -> Guarantee        for one run; raises DoesNotApply where it is refused

`Proved` makes these of data (kinds of processes and of sampling), of conditions and of a formula.

Repetition and composition are handled by `tightrope.guarantee.compose` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final

from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.process import Adjacency, NoisySGD, Process

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


class Proved:
    """A theorem from its parts: what it is about, its conditions, and the guarantee that follows.

    OF, SAMPLING: the kinds of processes, and of their sampling where that matters. ABOUT: in words.
    """

    NAME: ClassVar[str]
    SOURCE: ClassVar[Source]
    VALIDITY: ClassVar[Validity] = Validity.BOUND
    RELATIONS: ClassVar[tuple[Adjacency, ...]]
    OF: ClassVar[tuple[type[Any], ...]] = (NoisySGD,)
    SAMPLING: ClassVar[tuple[type[Any], ...]] = ()
    ABOUT: ClassVar[str] = ""

    @classmethod
    def applies(cls, process: Any) -> Refusal | None:
        """None, or why not: it is about others, a condition fails, or the neighbours are others."""
        if not isinstance(process, cls.OF):
            return foreign(cls.NAME, cls.ABOUT or _kinds(cls.OF), process)
        if cls.SAMPLING and not isinstance(process.sampling, cls.SAMPLING):
            return Refusal(
                f"{cls.NAME} needs {_kinds(cls.SAMPLING)}; got {process.sampling}.", "foreign"
            )
        return cls.condition(process) or other_neighbours(cls.NAME, process, cls.RELATIONS)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        """The refusal by a condition of its own."""
        return None

    @classmethod
    def guarantee(cls, process: Any) -> Guarantee:
        """What is proved about one run of a process; DoesNotApply where it is refused."""
        reason = cls.applies(process)
        if reason is not None:
            raise DoesNotApply(reason)
        return cls.proved(process)

    @classmethod
    def proved(cls, process: Any) -> Guarantee:
        """The guarantee of a process that the theorem applies to."""
        raise NotImplementedError


class Estimated(Proved):
    """One whose number is an estimate in neither direction."""

    VALIDITY = Validity.ESTIMATE

    @classmethod
    def guarantee(cls, process: Any) -> Estimate:  # type: ignore[override]
        """What is estimated of one run of a process; DoesNotApply where it is refused."""
        found: Any = super().guarantee(process)
        return found  # type: ignore[no-any-return]


def _kinds(kinds: tuple[type[Any], ...]) -> str:
    names = ["noisy SGD" if kind is NoisySGD else kind.__name__ for kind in kinds]
    return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
