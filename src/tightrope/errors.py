"""The exceptions of the library: one small tree.

TightropeError
 ├── InvalidInput (also ValueError)      what came, what is allowed, why, what to do
 │    ├── AdjacencyMismatch              two guarantees about different neighbours
 │    └── DataNotFound                   a named data set is not on this machine
 ├── DoesNotApply                        a theorem's conditions fail; carries the reason
 ├── NotCertified                        no certified answer of the width asked for was found
 ├── ContradictoryMethods                two independent methods disagree: a bug, never an answer
 ├── MissingTool                         an optional package is not installed here
 ├── BudgetExceeded                      the next step would spend more than the budget
 ├── LedgerDamaged                       a log was edited, cut short or rolled back
 └── ModelNotPrivate                     a model whose per-example gradients are not defined
"""

from __future__ import annotations


class TightropeError(Exception):
    """Root of every exception raised on purpose by Tightrope."""


class InvalidInput(TightropeError, ValueError):
    """An argument is outside its domain."""


class AdjacencyMismatch(InvalidInput):
    """Guarantees about different neighbouring relations were combined."""


class DataNotFound(InvalidInput):
    """A named data set is not on this machine."""


class DoesNotApply(TightropeError):
    """A theorem was asked about a process that does not meet its conditions."""


class NotCertified(TightropeError):
    """The certified interval could not be made as narrow as asked for.

    reached: the narrowest (lower, upper) that was proved nevertheless, where there is one.
    """

    def __init__(self, message: str, reached: tuple[float, float] | None = None) -> None:
        super().__init__(message)
        self.reached = reached


class ContradictoryMethods(TightropeError):
    """Two independent certified methods gave disjoint answers."""


class MissingTool(TightropeError):
    """An optional package is not installed; this says nothing about what it would have shown."""


class BudgetExceeded(TightropeError):
    """A step was refused because it would exceed the privacy budget."""


class LedgerDamaged(TightropeError):
    """The log of a data set is not what was written to it."""


class ModelNotPrivate(TightropeError, ValueError):
    """A model mixes examples, so one example's gradient is not defined."""
