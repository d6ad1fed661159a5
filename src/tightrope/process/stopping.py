"""Runs whose length nobody fixed before they began."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency
from tightrope.process.composite import Sequence
from tightrope.process.training import NoisySGD
from tightrope.process.users import OneRecord, UserLevel
from tightrope.validate import check_count

__all__ = ["StoppedAtWill", "steps_of", "with_steps"]


@final
@dataclass(frozen=True)
class StoppedAtWill(OneRecord):
    """A run that could stop, or go on, by what it released; all its other parameters were fixed.

    run: what was done until it stopped: NoisySGD, or a Sequence that ends with it.
    first: a length that was named before the first step and that nothing held the run to, or None.
    """

    run: Any
    first: int | None = None

    def __post_init__(self) -> None:
        last = self.run.parts[-1] if isinstance(self.run, Sequence) else self.run
        if not isinstance(last, NoisySGD):
            raise InvalidInput(
                "Only NoisySGD, whose every step is seen, or a Sequence that ends with it, can be "
                f"stopped by what it released; got {self.run!r}. A process that hides its steps "
                "has a guarantee only for a length that was fixed in advance."
            )
        if self.first is not None:
            object.__setattr__(self, "first", check_count(self.first, "first"))

    @property
    def adjacency(self) -> Adjacency:
        return self.run.adjacency  # type: ignore[no-any-return]

    @property
    def within(self) -> bool:
        """Did it stay within the length that was named?"""
        return self.first is not None and (steps_of(self.run) or 0) <= self.first


def steps_of(process: Any) -> int | None:
    """The steps of a process, or of the last part of one; None where it has no steps."""
    if isinstance(process, StoppedAtWill | UserLevel):
        return steps_of(process.run)
    if isinstance(process, Sequence):
        return steps_of(process.parts[-1])
    steps = getattr(process, "steps", None)
    return steps if isinstance(steps, int) else None


def with_steps(process: Any, steps: int) -> Any:
    """The process as it stands after so many steps of its last part."""
    if isinstance(process, StoppedAtWill):
        return with_steps(process.run, steps)
    if isinstance(process, UserLevel):
        return replace(process, run=with_steps(process.run, steps))
    if isinstance(process, Sequence):
        return Sequence((*process.parts[:-1], with_steps(process.parts[-1], steps)))
    return replace(process, steps=steps)
