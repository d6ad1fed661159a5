"""One data set: what was reserved, spent and settled, and whether something more may be.

Pure decisions, no store. An entry of the log is decided (`reserve`, `spend`, `settle` return its
content, or refuse), written by somebody else, and then taken in by `add`.

What counts against the total:
- a reservation that is open: all of it, whatever was spent of it so far;
- a settled one, where releases are chosen along the way: the steps that were released, if its steps
  are drawn afresh; all of it, if it has no such steps and anything was released;
- a settled one, where releases are chosen in advance: all of it, if anything was released. A run
  that stops early because of what it saw was not chosen in advance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, final

from tightrope.errors import BudgetExceeded, InvalidInput, LedgerDamaged
from tightrope.ledger.log import START, Entry, is_next
from tightrope.ledger.meter import Charge, meter_of
from tightrope.ledger.terms import IN_ADVANCE, Terms, check_name
from tightrope.process import NoisySGD, StoppedAtWill
from tightrope.process.codec import from_json, to_json
from tightrope.process.composite import MEMORYLESS
from tightrope.validate import check_count

__all__ = ["Book", "Reservation"]


@final
@dataclass(frozen=True)
class Reservation:
    """A process that may run on the data set, and how far it is.

    spent: steps that may have been released so far, announced before they are made.
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
    def charge(self) -> Charge:
        return Charge(_unit(self.process), self.price)

    @property
    def steps(self) -> int:
        """The most it may release: steps, or 1 where it is one release."""
        return _units(self.process)

    @property
    def open(self) -> bool:
        return self.settled is None

    def charges(self, in_advance: bool) -> Counter[Charge]:
        """What of it counts against the total."""
        kept = self.steps if self.open or (self.settled and in_advance) else self.settled
        return Counter({self.charge: kept} if kept else {})


@final
class Book:
    """The state of one data set, from its log."""

    def __init__(self) -> None:
        self.head = START
        self.reservations: dict[str, Reservation] = {}
        self._charged: Counter[Charge] = Counter()

    # ---- what is written ---------------------------------------------------------------------
    def add(self, entry: Entry) -> None:
        """Take in the next entry of the log; refuses one that is not."""
        if not is_next(self.head, entry):
            raise _damaged(entry, f"it does not follow from entry {self.head.number}")
        try:
            self._take_in(entry.body)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _damaged(entry, f"it makes no sense: {error!r}") from error
        self.head = entry.head

    def _take_in(self, body: dict[str, Any]) -> None:
        if (body["kind"] == "add") != (self.head == START):
            raise InvalidInput("A data set is added once, by the first entry.")
        if body["kind"] == "add":
            self.terms = Terms.from_json(body["terms"])
            self.meter = meter_of(self.terms)
            return
        if body["kind"] == "reserve":
            facts = {name: body[name] for name in ("id", "who", "at", "note")}
            price = tuple(body["price"])
            after = Reservation(process=from_json(body["process"]), price=price, **facts)
        else:
            before = self.reservation(body["id"])
            self._charged -= before.charges(self._in_advance)
            changed = {k: body[k] for k in ("spent", "settled", "certificate") if k in body}
            after = replace(before, **changed)
        self._charged += after.charges(self._in_advance)
        self.reservations[after.id] = after

    @property
    def _in_advance(self) -> bool:
        return self.terms.choices == IN_ADVANCE

    # ---- what is decided ---------------------------------------------------------------------
    def reserve(self, process: Any, who: str) -> dict[str, Any]:
        """The hard stop: refuses a process with which the total could be exceeded."""
        if not self.terms.allows(who):
            raise InvalidInput(
                f"{who!r} may not spend on {self.terms.name!r}; its spenders are "
                f"{', '.join(self.terms.spenders) or 'nobody'}. Ask one of them."
            )
        price = self.priced(process)
        if not self.fits(process):
            raise BudgetExceeded(
                f"This would exceed what is left of {self.terms.name!r} (total {self.terms.total}; "
                f"{self.meter.unit}: {self.used():.4g} of {self.meter.limit:.4g} are taken)."
            )
        return {"kind": "reserve", "process": to_json(process), "price": list(price)}

    def spend(self, name: str, spent: int) -> dict[str, Any]:
        """The first `spent` steps are about to be released, or were."""
        reservation = self._open(name)
        steps = check_count(spent, "spent", low=reservation.spent)
        if steps > reservation.steps:
            raise BudgetExceeded(
                f"Step {steps} is beyond reservation {name}, which is of {reservation.steps}. "
                "Settle it, and reserve what comes next."
            )
        return {"kind": "spend", "id": name, "spent": steps}

    def settle(
        self, name: str, released: int | None = None, certificate: str | None = None
    ) -> dict[str, Any]:
        """The end of a reservation: what was not announced, and is not told here, is free again.

        released: how many steps were; by default those that were announced.
        """
        reservation = self._open(name)
        steps = reservation.spent if released is None else check_count(released, "released")
        if not reservation.spent <= steps <= reservation.steps:
            raise InvalidInput(
                f"Reservation {name} is of {reservation.steps}, of which {reservation.spent} were "
                f"announced and may have been seen; {steps} cannot be what was released. Leave the "
                "number out to settle what was announced."
            )
        if certificate is not None:
            check_name(certificate, "certificate")
        return {"kind": "settle", "id": name, "settled": steps, "certificate": certificate}

    def _open(self, name: str) -> Reservation:
        found = self.reservation(name)
        if found.settled is not None:
            raise InvalidInput(
                f"Reservation {name} was settled already, with {found.settled} releases. It is "
                "closed for good: reserve anew for anything more."
            )
        return found

    def reservation(self, name: str) -> Reservation:
        if name not in self.reservations:
            raise InvalidInput(f"{self.terms.name!r} has no reservation {name!r}.")
        return self.reservations[name]

    def _check_process(self, process: Any) -> None:
        if isinstance(process, StoppedAtWill):
            raise InvalidInput(
                "Reserve the longest run that may happen, not one that is stopped at will. It may "
                "stop earlier all the same, and is settled then."
            )
        adjacency = getattr(process, "adjacency", None)
        if adjacency is not self.terms.adjacency:
            raise InvalidInput(
                f"{self.terms.name!r} counts {self.terms.adjacency} neighbours; got {process!r}, "
                f"which is about {adjacency}. Describe it for the neighbours of the data set."
            )

    def priced(self, process: Any) -> tuple[float, ...]:
        """What a filter adds up for a piece of it; refuses what cannot be counted here."""
        self._check_process(process)
        return self.meter.price(_unit(process))

    def fits(self, process: Any) -> bool:
        """Would everything reserved and spent, and this process, stay within the total?"""
        return self.used(process) <= self.meter.limit

    def used(self, process: Any = None) -> float:
        """What is taken of the limit, a process more included."""
        if process is None:
            return self.meter.used(self._charged)
        one = _unit(process)
        more = Counter({Charge(one, self.meter.price(one)): _units(process)})
        return self.meter.used(self._charged + more)


def _by_steps(process: Any) -> bool:
    """Are its steps drawn afresh, so that fewer of them cost less?"""
    return isinstance(process, NoisySGD) and isinstance(process.sampling, MEMORYLESS)


def _unit(process: Any) -> Any:
    """What is charged by the piece: a step, or all of it."""
    return replace(process, steps=1) if _by_steps(process) else process


def _units(process: Any) -> int:
    return process.steps if _by_steps(process) else 1


def _damaged(entry: Entry, how: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"Entry {entry.head.number} of the log was not written by this program ({how}): the store "
        "was edited. Nothing is decided on such a log. Restore a copy that leads to the last head "
        "somebody kept."
    )
