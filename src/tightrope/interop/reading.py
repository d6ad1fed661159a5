"""What a file or an object of another library says, in our words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.interop.setting import parse_number, unknown
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

_MANY = 1000  # parts: more are analysed as a schedule
_THEIRS = {
    "add-or-remove-one": Adjacency.ADD_OR_REMOVE,
    "replace-special": Adjacency.ZERO_OUT,
}


def neighbours_of(given: object) -> Adjacency:
    """By our name, by dp_accounting's, or its live enumeration."""
    word = str(getattr(given, "name", given)).lower().replace("_", "-")
    if word in _THEIRS:
        return _THEIRS[word]
    words = [member.value for member in Adjacency]
    if word not in words:
        raise InvalidInput(unknown("neighboring_relation", given, [*words, *_THEIRS]))
    return Adjacency(word)


@final
@dataclass(frozen=True)
class Reading:
    """A process that someone else describes, with what they say about it.

    source: what it was read as. said: the epsilon that their library printed, as written. group:
    records that change together. notes: what was taken for granted. suspects: why their number may
    be too small, where that is known.
    """

    process: Any
    source: str
    delta: float | None = None
    said: str | None = None
    group: int = 1
    notes: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()

    @property
    def neighbours(self) -> str:
        return str(self.process.adjacency)

    def certifiable(self) -> Any:
        """The process, for a certificate: about all records of a user."""
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
    delta, claim = data.get("delta"), data.get("epsilon")
    return {
        "delta": None if delta is None else float(check_delta(parse_number(delta, "delta"))),
        "said": None if claim is None else str(claim),
    }
