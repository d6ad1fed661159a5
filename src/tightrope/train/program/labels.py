"""Labels: what a value of the program may depend on, and how labels are combined.

Each value of the graph gets a label.

    PUBLIC              the same numbers whatever the examples are: weights, positions, constants
    SIZE                a Python number that follows the number of examples in the batch
    Rows(dim, o, i)     dimension `dim` has o * B * i entries, B the number of examples. Entry
                        (a * B + b) * i + c depends on example b, on public numbers and on random
                        draws of its own, and on nothing else
    Index(dim)          the numbers 0 .. B-1 along `dim`. They are public as well, so an Index may
                        always be weakened to PUBLIC; used as an index of the rows, they pick each
                        example's own

An operator with several outputs gets a tuple of labels. A refusal is one of two exceptions: `Mixes`
where a rule says no, `Unknown` where there is no rule, or where a rule cannot say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tightrope.errors import InvalidInput

PUBLIC, SIZE = "public", "size"


@dataclass(frozen=True)
class Rows:
    dim: int
    outer: int = 1
    inner: int = 1

    def at(self, dim: int) -> Rows:
        """The same rows along another dimension."""
        return Rows(dim, self.outer, self.inner)


@dataclass(frozen=True)
class Index:
    dim: int

    def at(self, dim: int) -> Index:
        return Index(dim)


Label: TypeAlias = "str | Rows | Index | tuple[Any, ...]"


class NotCaptured(InvalidInput):
    """The loss cannot be written as one graph of operators.

    final: what was found is wrong however the loss is run, so no other way may be tried.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        self.final = final
        super().__init__(text)


class Refusal(InvalidInput):
    """why: what is wrong. do: what to change. The proof adds the operator and the user's line."""

    def __init__(self, why: str, do: str = "", at: str = "") -> None:
        self.why, self.do, self.at = why, do, at
        text = f"{at}: {why}." if at else f"{why}."
        super().__init__(f"{text} {do}" if do else text)


class Mixes(Refusal):
    """Examples meet, or a value follows an example's place in the batch."""


class Unknown(Refusal):
    """No rule for an operator, or a rule that cannot say whether examples meet."""


def name_of(label: Label) -> str:
    """A label in words, for messages."""
    if isinstance(label, Rows):
        return "values of examples"
    if isinstance(label, Index):
        return "the numbers of the rows"
    return "the number of examples" if label == SIZE else "public numbers"


def broadcast(
    parts: Iterable[tuple[Label, Sequence[int]]], rank: int, what: str = "values"
) -> Label:
    """The label of values that are combined entry by entry: labels and sizes, broadcast to `rank`.

    The rows of all parts must lie in the same place. A public part must be the same for all rows,
    so its size is 1 where the rows lie; else each row would meet numbers that follow its place.
    """
    given = list(parts)
    found: Label = PUBLIC
    for label, sizes in given:
        if label == SIZE:
            raise Mixes(
                "the number of examples is used as a number",
                "Do not divide by it: the run itself divides the noisy sum by the batch size.",
            )
        if isinstance(label, Rows):
            here = label.at(label.dim + rank - len(sizes))
            if found not in (PUBLIC, here):
                raise Mixes(
                    f"{what} of two examples meet: the examples lie in different places of the "
                    "arguments",
                    "Bring the dimension that holds the examples to the same place in both.",
                )
            found = here
    if isinstance(found, Rows):
        for label, sizes in given:
            at = found.dim - (rank - len(sizes))
            if not isinstance(label, Rows) and at >= 0 and sizes[at] != 1:
                raise Mixes(
                    "public numbers that differ from row to row meet the rows, so an example's "
                    "value follows its place in the batch",
                    "Give them size 1 along the dimension that holds the examples, or pass them "
                    "as a part of each example. To pick entries, write "
                    "x[torch.arange(x.shape[0]), at].",
                )
    return found


def reshaped(label: Rows, batch: int, old: Sequence[int], new: Sequence[int]) -> Rows:
    """Rows after a reshape, which keeps the order of all entries.

    Entry number f (in that order) belongs to example (f // stride) % B, where stride is the number
    of entries from one row to the next. Along a new dimension with `inside` entries behind each
    step, this is (j // inner) % B for inner = stride / inside, if that is a whole number and the
    dimension has a multiple of B * inner entries.
    """
    stride = label.inner * math.prod(old[label.dim + 1 :])
    inside = 1
    for dim in reversed(range(len(new))):
        if inside and stride and stride % inside == 0:
            inner = stride // inside
            if new[dim] and new[dim] % (batch * inner) == 0:
                return Rows(dim, new[dim] // (batch * inner), inner)
        inside *= new[dim]
    raise Mixes(
        f"a reshape from {list(old)} to {list(new)} cuts through the examples, "
        f"which lie along dimension {label.dim}",
        "Move that dimension with transpose or permute, and reshape the others.",
    )


def without(label: Rows, gone: Iterable[int], keep: bool = False) -> Rows:
    """Rows after dimensions other than theirs are removed (or reduced to one entry)."""
    return label if keep else label.at(label.dim - sum(d < label.dim for d in gone))
