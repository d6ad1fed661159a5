"""A run's place in the ledger of its data set: reserved before its first step, settled at its end.

Steps are announced to the ledger in blocks, before the first of a block is released. So whatever
crashes, what may have been seen is never more than what the ledger says was spent.
"""

from __future__ import annotations

from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.ledger import open_ledger
from tightrope.process import NoisySGD

__all__ = ["Reserved", "check_source"]

_BLOCKS = 100  # announcements of one run, about


@final
class Reserved:
    """The reservation of one run.

    ledger: a BudgetLedger, or its url.
    """

    def __init__(self, ledger: Any, dataset: str) -> None:
        self._ledger = ledger if hasattr(ledger, "reserve") else open_ledger(ledger)
        self.dataset = dataset
        self.id: str | None = None
        self.steps = self._units = self._announced = 0

    def fits(self, process: Any) -> bool:
        """Would it, if it were reserved now?"""
        fitting: bool = self._ledger.book(self.dataset).fits(process)
        return fitting

    def begin(self, run: NoisySGD) -> None:
        """Reserve; BudgetExceeded, with what would fit, if it is too much."""
        self._take(self._ledger.reserve(self.dataset, run))

    def resume(self, name: str) -> None:
        """Go on with a reservation that was made before a crash."""
        self._take(self._ledger.book(self.dataset).reservation(name))

    def _take(self, held: Any) -> None:
        self.id, self.steps, self._units = held.id, held.process.steps, held.steps
        self._announced = self.steps if held.spent == self._units else held.spent

    def announce(self, step: int) -> None:
        """Step `step` is about to be released."""
        if self.id is None:
            raise InvalidInput("This run has no reservation in its ledger, so it takes no step.")
        if step <= self._announced:
            return
        if self._units < self.steps:  # its steps hang together: with the first, all are spent
            self._ledger.spend(self.dataset, self.id, self._units)
            self._announced = self.steps
            return
        last = max(step, min(self.steps, step - 1 + max(self.steps // _BLOCKS, 1)))
        self._ledger.spend(self.dataset, self.id, last)
        self._announced = last

    def settle(self, certificate: str | None) -> None:
        """The run is over: what was not announced is free again. Nothing was reserved: nothing."""
        if self.id is not None and self._ledger.book(self.dataset).reservation(self.id).open:
            self._ledger.settle(self.dataset, self.id, certificate=certificate)


def check_source(ledger: Any, dataset: Any) -> None:
    if (ledger is None) != (dataset is None):
        raise InvalidInput(
            "A budget from a ledger names both: Budget(ledger='ledger.db', dataset='patients')."
        )
