"""A process that may run on a data set: how far it is, and what of it counts against the total.

- Open: all of it, whatever was spent of it so far.
- Settled, where releases are chosen along the way: the steps that were released, if its steps are
  drawn afresh; all of it, if they depend on each other and anything was released.
- Settled, where releases are chosen in advance: all of it, if anything was released. A run that
  stops early because of what it saw was not chosen in advance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

from tightrope.process import CorrelatedSGD, NoisySGD, Process, UserLevel
from tightrope.process.composite import MEMORYLESS


@final
class Charge(NamedTuple):
    """A step, or what has no steps, and its price: what a filter adds up; () without a filter."""

    process: Any
    price: tuple[float, ...]


@final
@dataclass(frozen=True)
class Reservation:
    """spent: steps that may have been released so far, announced before they are made.
    settled: steps that were released in the end; None while it is open.
    """

    id: str
    process: Any
    price: tuple[float, ...]
    who: str
    at: float
    note: str = ""
    spent: int = 0
    settled: int | None = None
    certificate: str | None = None

    @property
    def steps(self) -> int:
        """The most it may release."""
        return steps_of(self.process)

    @property
    def open(self) -> bool:
        return self.settled is None

    def charges(self, in_advance: bool) -> Counter[Charge]:
        """What of it counts against the total."""
        kept = pieces_of(self.process)
        if self.settled is not None and not in_advance and _afresh(self.process):
            kept = self.settled
        if self.settled == 0 or kept == 0:
            return Counter()
        return Counter({Charge(piece_of(self.process), self.price): kept})


def steps_of(process: Process) -> int:
    """Steps of a training; 1 of what is one release."""
    run = process.run if isinstance(process, UserLevel) else process
    return run.steps if isinstance(run, NoisySGD | CorrelatedSGD) else 1


def piece_of(process: Any) -> Any:
    """What is charged by the piece: a step that is drawn afresh, or all of it."""
    if not _afresh(process):
        return process
    if isinstance(process, UserLevel):
        return replace(process, run=replace(process.run, steps=1))
    return replace(process, steps=1)


def pieces_of(process: Process) -> int:
    return steps_of(process) if _afresh(process) else 1


def _afresh(process: Process) -> bool:
    """Are its steps drawn afresh, so that fewer of them cost less?"""
    run = process.run if isinstance(process, UserLevel) else process
    return isinstance(run, NoisySGD) and isinstance(run.sampling, MEMORYLESS)
