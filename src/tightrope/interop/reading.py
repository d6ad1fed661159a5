"""What a file or an object of another library says, in our words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.interop.numbers import parse_number
from tightrope.interop.setting import unknown
from tightrope.process import (
    Adjacency,
    FullBatch,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Sequence,
    UserLevel,
)
from tightrope.validate import check_delta

__all__ = ["Reading", "Neighbours", "neighbours_of", "need", "in_order", "claims_of"]

_MANY = 1000  # parts: more are analysed as a schedule


class Neighbours(Enum):
    """Neighbours as other libraries have them; we have no zero-out ones of our own."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"

    @property
    def adjacency(self) -> Adjacency:
        """What is read under zero-out neighbours has the pairs of add-or-remove ones."""
        replaced = self is Neighbours.REPLACE_ONE
        return Adjacency.REPLACE_ONE if replaced else Adjacency.ADD_OR_REMOVE


_THEIRS = {
    "add-or-remove-one": Neighbours.ADD_OR_REMOVE,
    "replace-special": Neighbours.ZERO_OUT,
}


def neighbours_of(given: object) -> Neighbours:
    """By our name, by dp_accounting's, or its live enumeration."""
    word = str(getattr(given, "name", given)).lower().replace("_", "-")
    if word in _THEIRS:
        return _THEIRS[word]
    words = [member.value for member in Neighbours]
    if word not in words:
        raise InvalidInput(unknown("neighboring_relation", given, [*words, *_THEIRS]))
    return Neighbours(word)


@final
@dataclass(frozen=True)
class Reading:
    """A process that someone else describes, with what they say about it.

    source: what it was read as. said: the epsilon their library printed, as it was written. group:
    records that change together. notes: what was taken for granted. suspects: why their number may
    be too small, where that is known. zero_out: the answer is about a record replaced by a zero
    one; the process says add-or-remove, which has the same pairs.
    """

    process: Any
    source: str
    delta: float | None = None
    said: str | None = None
    group: int = 1
    notes: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    zero_out: bool = False

    @property
    def neighbours(self) -> str:
        return Neighbours.ZERO_OUT.value if self.zero_out else str(self.process.adjacency)

    def certifiable(self) -> Any:
        """The process, for a certificate: about our own neighbours, and all records of a user."""
        if self.zero_out:
            raise InvalidInput(
                "Certificates are about add-or-remove or replace-one neighbours; this run is about "
                "zero-out ones. Ask for an account of it instead."
            )
        return self.process if self.group == 1 else UserLevel(self.process, self.group)


def need(data: Mapping[str, Any], keys: tuple[str, ...], what: str) -> tuple[Any, ...]:
    """The values under these keys; what is missing is named."""
    missing = [key for key in keys if data.get(key) is None]
    if missing:
        raise InvalidInput(
            f"{what} needs {', '.join(keys)}; {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing. Add what the run used."
        )
    return tuple(data[key] for key in keys)


def in_order(runs: Iterable[NoisySGD]) -> Any:
    """Runs one after the other; a long schedule of noises as one, which has its own analysis."""
    steps = list(runs)
    if not steps:
        raise InvalidInput("Nothing has been run: the list of steps is empty. Give at least one.")
    if len(steps) == 1:
        return steps[0]
    first = steps[0]
    alike = all((run.sampling, run.adjacency) == (first.sampling, first.adjacency) for run in steps)
    poisson = isinstance(first.sampling, PoissonSampling | FullBatch)
    if len(steps) <= _MANY or not alike or not poisson:
        return Sequence(tuple(steps))
    noises = [run.noise_multiplier for run in steps for _ in range(run.steps)]
    return NoiseSchedule(first.sampling, tuple(noises), first.adjacency)


def claims_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The delta and the epsilon that a file gives beside its setting."""
    delta, said = data.get("delta"), data.get("epsilon")
    return {
        "delta": None if delta is None else float(check_delta(parse_number(delta, "delta"))),
        "said": None if said is None else str(said),
    }
