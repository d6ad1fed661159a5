"""The ledger as programs use it: a store of logs, and the books that are made of them."""

from __future__ import annotations

import getpass
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tightrope.errors import BudgetExceeded, InvalidInput, LedgerDamaged
from tightrope.ledger.book import Book, what_would_fit
from tightrope.ledger.log import START, Head, Heads, LogEntry, Sign, next_entry
from tightrope.ledger.meter import with_orders
from tightrope.ledger.reservation import Reservation
from tightrope.ledger.store import Store
from tightrope.ledger.terms import Terms, check_name, skeleton
from tightrope.process import Process


@final
@dataclass(frozen=True)
class Standing:
    """How a data set stands: what is taken of its limit, and in which unit."""

    terms: Terms
    used: float
    limit: float
    unit: str
    open: int
    settled: int
    head: Head

    @property
    def share(self) -> float:
        return self.used / self.limit


@final
class BudgetLedger:
    """Data sets with a total budget each, and everything reserved, spent and settled on them.

    url: a path (SQLite), or postgresql://user@host/name.
    who: the name that entries carry; PostgreSQL puts the name of the account instead.
    sign: makes a signature of each new head; by default there is none.
    heads: a file in which this machine keeps the last heads it saw. A store that does not lead to
    them any more was edited or rolled back, and is refused.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        who: str | None = None,
        sign: Sign | None = None,
        heads: str | Path | None = None,
    ) -> None:
        self.store = Store(url)
        self.store.check_version()
        self._who = check_name(getpass.getuser() if who is None else who, "who")
        self._sign, self._books = sign, dict[str, Book]()
        self._heads, self._alone = Heads(heads), threading.RLock()

    # ---- what is written ---------------------------------------------------------------------
    def add(self, terms: Terms) -> None:
        """A new data set with its total, which stays as it is."""

        def decide(book: Book, who: str) -> dict[str, Any]:
            if book.head.number:
                raise InvalidInput(
                    f"{terms.name!r} is in the ledger already, and a total is never changed. Add "
                    "the data under another name if they are other people's."
                )
            return {"kind": "add", "terms": with_orders(terms).to_json()}

        self._write(terms.name, decide, new=True)

    def reserve(self, dataset: str, process: Process, note: str = "") -> Reservation:
        """Reserve what a process may spend; BudgetExceeded, with what would fit, if too much."""
        name = secrets.token_hex(8)
        if note:
            check_name(note, "note")

        def decide(book: Book, who: str) -> dict[str, Any]:
            return book.reserve(process, who) | {"id": name, "note": note}

        self.book(dataset).priced(process)  # the slow part, before the lock
        try:
            return self._write(dataset, decide).reservation(name)
        except BudgetExceeded as refusal:  # after the lock: other writers need not wait
            advice = what_would_fit(process, self.book(dataset).excess)
            raise BudgetExceeded(f"{refusal} {advice}") from None

    def spend(self, dataset: str, name: str, spent: int, since: int | None = None) -> None:
        """Announce that the first `spent` steps of a reservation are released, before they are.

        since: refused if another number was announced before: then another writer spends it too.
        """
        self._write(dataset, lambda book, who: book.spend(name, spent, since, who=who))

    def settle(
        self,
        dataset: str,
        name: str,
        released: int | None = None,
        certificate: str | None = None,
    ) -> None:
        """End a reservation. What was neither announced nor `released` is free again.

        certificate: the SHA-256 of the run's certificate, or another name of it.
        """
        self._write(dataset, lambda book, who: book.settle(name, released, certificate, who=who))

    def _write(
        self, dataset: str, decide: Callable[[Book, str], dict[str, Any]], new: bool = False
    ) -> Book:
        def made(found: list[LogEntry], account: str | None) -> LogEntry:
            self._bring_up(book, dataset, found)
            if not new:
                _check_known(book, dataset)
            who = account or self._who
            body = decide(book, who) | {"dataset": dataset, "who": who, "at": time.time()}
            return next_entry(book.head, body, self._sign)

        check_name(dataset, "dataset")
        with self._alone:
            book = self._books.get(dataset, Book())
            book.add(self.store.append(dataset, book.head.number, made))
            self._heads.keep(dataset, book.head)
        return book

    # ---- what is read ------------------------------------------------------------------------
    def names(self) -> list[str]:
        """The data sets, those included that are known from before and have vanished."""
        return sorted({*self.store.names(), *self._heads.read()})

    def alike(self, dataset: str) -> list[str]:
        """Other data sets whose names can be taken for this one: each has a budget of its own."""
        mine = skeleton(dataset)
        return [name for name in self.names() if name != dataset and skeleton(name) == mine]

    def book(self, dataset: str) -> Book:
        """The data set as it stands now."""
        check_name(dataset, "dataset")
        with self._alone:
            book = self._books.get(dataset, Book())
            self._bring_up(book, dataset, self.store.entries(dataset, book.head.number))
            _check_known(book, dataset)
            self._heads.keep(dataset, book.head)
        return book

    def standing(self, dataset: str) -> Standing:
        book = self.book(dataset)
        taken = [r.open for r in book.reservations.values()]
        return Standing(
            book.terms,
            book.used(),
            book.meter.limit,
            book.meter.unit,
            sum(taken),
            len(taken) - sum(taken),
            book.head,
        )

    def history(self, dataset: str) -> list[dict[str, Any]]:
        """The entries as they were written, oldest first, checked against their chain."""
        self.book(dataset)
        return [entry.body for entry in self.store.entries(dataset)]

    def _bring_up(self, book: Book, dataset: str, found: list[LogEntry]) -> None:
        """Take in what others wrote; notice what is gone."""
        self._books.pop(dataset, None)  # until all of it is known to be right
        kept = self._heads.read().get(dataset, START)
        if book.head.number:
            found = [entry for entry in found if entry.head.number >= book.head.number]
            if not found or found.pop(0).head != book.head:
                raise _rolled_back(dataset, book.head)
        for entry in found:
            book.add(entry)
            if book.head.number == kept.number and book.head != kept:
                raise _rolled_back(dataset, kept)
        if book.head.number < kept.number:
            raise _rolled_back(dataset, kept)
        if book.head.number and book.terms.name != dataset:
            raise LedgerDamaged(f"The log of {dataset!r} is that of {book.terms.name!r}.")
        self._books[dataset] = book

    def close(self) -> None:
        self.store.close()


def _check_known(book: Book, dataset: str) -> None:
    if not book.head.number:
        raise InvalidInput(
            f"There is no data set {dataset!r} in this ledger. `tightrope ledger status` lists "
            "those it has; the owner adds one with `tightrope ledger add`."
        )


def _rolled_back(dataset: str, head: Head) -> LedgerDamaged:
    return LedgerDamaged(
        f"The log of {dataset!r} had an entry {head.number} with hash {head.chain[:16]}..., and "
        "does not have it now: the store was edited or rolled back. What was spent since is not in "
        "it. Restore the newest copy; nothing is decided on this one."
    )
