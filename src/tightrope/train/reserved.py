"""A run's place in the ledger of its data set: reserved before its first step, settled at its end.

Steps are announced to the ledger in blocks, before the first of a block is released. So whatever
crashes, what may have been seen is never more than what the ledger says was spent. A run that is
resumed goes on after what was announced, and an announcement is refused if somebody else made one
meanwhile: copies of a run cannot spend the same steps twice.

Over several ranks, rank 0 speaks with the ledger, and what it is refused all are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from tightrope.entropy import here
from tightrope.errors import InvalidInput
from tightrope.ledger import open_ledger
from tightrope.process import NoisySGD, Process
from tightrope.train.parallel.ranks import by_rank_0, rank_and_size

if TYPE_CHECKING:
    from tightrope.ledger.office import BudgetLedger
    from tightrope.ledger.reservation import Reservation

__all__ = ["Reserved", "check_source"]

_BLOCKS = 100  # announcements of one run, about


@final
class Reserved:
    """The reservation of one run.

    ledger: a BudgetLedger, or its url.
    """

    def __init__(self, ledger: BudgetLedger | str, dataset: str) -> None:
        self._ledger: Any = None
        if rank_and_size()[0] == 0:
            self._ledger = ledger if hasattr(ledger, "reserve") else open_ledger(ledger)
        self.dataset, self._home = dataset, here()
        self.id: str | None = None
        self.steps = self.announced = 0

    def excess(self, process: Process) -> float:
        """By how much the limit would be passed, if it were reserved now."""
        book = self._ledger.book(self.dataset)
        over: float = book.excess(process and book.terms.of_one(process))
        return over

    def begin(self, run: NoisySGD) -> None:
        """Reserve; BudgetExceeded, with what would fit, if it is too much."""

        def reserve() -> Any:
            terms = self._ledger.book(self.dataset).terms
            return self._ledger.reserve(self.dataset, terms.of_one(run))

        self._take(by_rank_0(reserve))

    def resume(self, name: str) -> None:
        """Go on with a reservation that was made before a crash, after what was announced."""
        self._take(by_rank_0(lambda: self._ledger.book(self.dataset).reservation(name)))

    def _take(self, held: Reservation) -> None:
        self.id, self.steps, self.announced = held.id, held.steps, held.spent

    def announce(self, step: int) -> None:
        """Step `step` is about to be released."""
        if self.id is None:
            raise InvalidInput("This run has no reservation in its ledger, so it takes no step.")
        if self._home != here():
            raise InvalidInput(
                "The reservation of this run belongs to the process that made it, and this is a "
                "forked copy, whose steps would not be counted. Give each process a run of its own."
            )
        if step <= self.announced:
            return
        last = max(step, min(self.steps, step - 1 + max(self.steps // _BLOCKS, 1)))
        by_rank_0(lambda: self._ledger.spend(self.dataset, self.id, last, self.announced))
        self.announced = last

    def settle(self, certificate: str | None) -> None:
        """The run is over: what was not announced is free again. Nothing was reserved: nothing."""
        if self.id is None or self._ledger is None:
            return
        if self._ledger.book(self.dataset).reservation(self.id).open:
            self._ledger.settle(self.dataset, self.id, self.announced, certificate)


def check_source(ledger: BudgetLedger | str, dataset: str | None) -> None:
    if (ledger is None) != (dataset is None):
        raise InvalidInput(
            "A budget from a ledger names both: Budget(ledger='ledger.db', dataset='patients')."
        )
