"""The words of a reproduction: an item is one figure or table; running it gives an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.numerics.arrays import Enclosure
from tightrope.numerics.interval import Interval

__all__ = [
    "Verdict",
    "Objection",
    "Printed",
    "Line",
    "Table",
    "Picture",
    "Outcome",
    "Setting",
    "Item",
    "at_least",
    "at_most",
    "check",
    "Number",
]

Number = float | Interval | Enclosure | str | None


class Printed(float):
    """A number that stands in the paper's text, tables or figures.

    A claim that is a plain number is the paper's formula (or its words) at our setting.
    """


class Verdict(StrEnum):
    """What became of a claim of a paper.

    A number or a drawing is reproduced; an inequality only holds at the settings we tried.
    """

    REPRODUCED = "reproduced"
    HOLDS = "holds here"
    DIFFERS = "differs"
    INVALID = "claim invalid"
    BEYOND = "beyond the paper"
    NOT_RUN = "not run"


class Objection(StrEnum):
    """What is objected to where a claim is invalid: many lines may show one and the same thing."""

    LIMIT = "the number of a central limit theorem is given as a guarantee; a limit is no bound"
    LEMMA_3 = (
        "Lemma 3 of Abadi et al. is used where its conditions do not hold (noise below 1, orders "
        "that are too large or not whole)"
    )
    BATCHES = "the rate is that of Poisson batches, and the algorithm draws batches of fixed size"
    SLICES = (
        "the library very likely used does not clip the gradients of an embedding to the norm that "
        "it is asked for, by which the noise is measured"
    )
    BATCH_SIZE = "Algorithm 1 divides by the size of the batch, which is secret"
    HARMONIC = "1 + 1/2 + .. + 1/n is taken for ln n"
    CLASSICAL = "sqrt(2 ln(1.25/delta)) is proved for epsilon < 1, and is used above"
    PUBLIC_LAST = "a factor 2 is missing under the root of the noise"
    ADVANCED = "advanced composition is shortened under too weak a condition"
    SAMPLED_ONCE = "q epsilon is no bound on what sampling leaves of epsilon"
    SAMPLED_OFTEN = "sampling is taken to help small epsilons only"
    LAST_BATCH = "a bound for the first of the fixed batches is stated for all of them"
    LOST_FACTOR = "the factor K is lost in a remark"


@final
@dataclass(frozen=True)
class Line:
    """One line of the index: the paper's claim, our number, the truth, the verdict.

    truth: a number or an interval that holds the exact value; where only a bound is proved,
    `at_most` or `at_least` it. within: how far our number may be from a printed one.
    """

    what: str
    claim: Number
    ours: Number
    truth: Number
    verdict: Verdict
    because: str = ""
    objection: Objection | None = None
    within: float | None = None

    def __post_init__(self) -> None:
        if self.verdict is not Verdict.INVALID:
            object.__setattr__(self, "objection", None)
        if self.verdict not in (Verdict.REPRODUCED, Verdict.HOLDS) and not self.because:
            raise InvalidInput(f"{self.what!r} is {self.verdict!s}: say because of what.")


def at_most(value: float) -> str:
    """A truth that is known from above only."""
    return f"at most {value:.6g}"


def at_least(value: float) -> str:
    """A truth that is known from below only."""
    return f"at least {value:.6g}"


def check(
    what: str, claim: float, ours: float, within: float, truth: Number = None, because: str = ""
) -> Line:
    """Reproduced when our number of the same method meets the printed one to `within`.

    Otherwise it differs, and `because` must say why. A claim that the truth refutes is not for
    this function: give `Verdict.INVALID` with its reason.
    """
    met = abs(ours - claim) <= within
    verdict = Verdict.REPRODUCED if met else Verdict.DIFFERS
    return Line(what, claim, ours, truth, verdict, because, within=within)


@final
@dataclass(frozen=True)
class Table:
    """Named columns of numbers and words; written as one CSV file."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InvalidInput(
                    f"A row of table {self.name!r} has {len(row)} cells for "
                    f"{len(self.columns)} columns."
                )


@final
@dataclass(frozen=True)
class Picture:
    """One drawing; `draw(axes)` gets what `matplotlib.subplots(rows, columns)` returns.

    It is drawn once on a light and once on a dark ground: colours come from `report.style`.
    """

    name: str
    caption: str
    draw: Callable[[Any], None]
    columns: int = 1
    rows: int = 1
    width: float = 6.0
    height: float = 4.0


@final
@dataclass(frozen=True)
class Outcome:
    lines: tuple[Line, ...]
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()


@final
@dataclass(frozen=True)
class Setting:
    """How an item is run.

    `quick` asks for seconds: fewer points of a curve, made data in place of real data, never
    another formula. `learned` is the folder in which training runs keep their results and look
    for finished ones. `tell` takes a short word of progress.
    """

    quick: bool = False
    learned: Path = Path("learning")
    device: str = "cpu"
    tell: Callable[[str], None] = field(default=lambda word: None)

    def points(self, full: int, quick: int) -> int:
        """How many points of a curve."""
        return quick if self.quick else full


@final
@dataclass(frozen=True)
class Item:
    """One figure or table of a paper, and how to make it again.

    `learned` names the groups of training results that it reads; new results make it anew.
    """

    name: str
    paper: str
    title: str
    run: Callable[[Setting], Outcome]
    learned: tuple[str, ...] = ()
