"""Several processes on the same data, in one budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

from tightrope.errors import AdjacencyMismatch, InvalidInput
from tightrope.process.adjacency import Adjacency, OneRecord, UserLevel
from tightrope.process.sampling import (
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from tightrope.process.training import NoisySGD
from tightrope.validate import check_count

__all__ = [
    "Process",
    "Repeated",
    "Sequence",
    "check_process",
    "parts_of",
    "same_adjacency",
    "StoppedAtWill",
    "steps_of",
    "with_steps",
]


MEMORYLESS = (PoissonSampling, TruncatedPoissonSampling, FixedSizeSampling, FullBatch)


class Process(Protocol):
    """Anything that runs on private data: frozen, hashable, with its adjacency."""

    @property
    def adjacency(self) -> Adjacency: ...

    def __hash__(self) -> int: ...


@final
@dataclass(frozen=True)
class Repeated(OneRecord):
    """The same process, run `count` times with fresh randomness.

    >>> from tightrope import GaussianMechanism, Repeated, account
    >>> print(account(Repeated(GaussianMechanism(4.0), 10)).epsilon(delta=1e-5))
    [3.341409469, 3.34140947]
    """

    inner: Process
    count: int

    def __post_init__(self) -> None:
        _check_part(self.inner)
        object.__setattr__(self, "count", check_count(self.count, "count"))

    @property
    def adjacency(self) -> Adjacency:
        return self.inner.adjacency


@final
@dataclass(frozen=True)
class Sequence(OneRecord):
    """Processes run one after the other; all their releases are seen.

    >>> from tightrope import GaussianMechanism, LaplaceMechanism, Sequence, account
    >>> both = Sequence((GaussianMechanism(4.0), LaplaceMechanism(10.0)))
    >>> print(account(both).epsilon(delta=1e-5))
    [0.9862545428, 0.9862545429]
    """

    parts: tuple[Process, ...]
    adjacency: Adjacency = field(init=False)

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, Iterable) else (self.parts,)
        if not parts:
            raise InvalidInput("A Sequence needs at least one process; got none.")
        for part in parts:
            _check_part(part)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "adjacency", same_adjacency(part.adjacency for part in parts))


def check_process(given: object, what: str) -> None:
    """A process knows its neighbours."""
    if not isinstance(getattr(given, "adjacency", None), Adjacency):
        raise InvalidInput(
            f"{what} takes a process, such as NoisySGD(PoissonSampling(rate=0.01), "
            f"noise_multiplier=1.0, steps=1000), GaussianMechanism or DeclaredApproxDP; got "
            f"{given!r:.200}."
        )


def _check_part(part: object) -> None:
    check_process(part, "Repeated or Sequence")
    if isinstance(part, UserLevel):
        raise InvalidInput(
            f"How many records a user has is stated for the whole, not for a part; got the part "
            f"{part!r}. Write UserLevel(Sequence(...), {part.records})."
        )


def same_adjacency(relations: Iterable[Adjacency]) -> Adjacency:
    """The one neighbouring relation of all parts; composing two different ones means nothing."""
    found = sorted(set(relations), key=str)
    if len(found) != 1:
        names = " and ".join(str(relation) for relation in found)
        raise AdjacencyMismatch(
            f"These parts are about different neighbours ({names}), so their privacy losses do "
            "not add up. Analyse every part under one relation; a replace-one neighbour is at most "
            "one removal and one addition, so add-or-remove guarantees can be turned into "
            "replace-one ones with `.as_replace_one()`."
        )
    return found[0]


def parts_of(process: Process) -> Counter[Process]:
    """The single runs a process is made of, with their counts: the only reader of `count`.

    Steps whose batches are drawn afresh are single runs. Schemes that remember who was drawn in
    this epoch stay whole: two halves of an epoch are not one epoch.
    """
    parts: Counter[Process] = Counter()
    _collect(process, 1, parts)
    return parts


def _collect(process: Process, times: int, parts: Counter[Process]) -> None:
    if isinstance(process, Repeated):
        _collect(process.inner, times * process.count, parts)
    elif isinstance(process, Sequence):
        for part in process.parts:
            _collect(part, times, parts)
    elif isinstance(process, NoisySGD) and isinstance(process.sampling, MEMORYLESS):
        parts[replace(process, steps=1)] += times * process.steps
    else:
        parts[process] += times


# ---- Runs whose length was not fixed before they began -------------------------------------------


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
