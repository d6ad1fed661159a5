"""One data set: what was reserved, spent and settled, and whether something more may be.

Pure decisions, no store. An entry of the log is decided (`reserve`, `spend`, `settle` return its
content, or refuse), written by the store, and then taken in by `add`, which refuses whatever
would not have been decided so.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf, sqrt
from typing import Any, final

from tightrope.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerDamaged,
    NotCertified,
    TightropeError,
)
from tightrope.ledger.log import START, LogEntry, is_next
from tightrope.ledger.meter import meter_of
from tightrope.ledger.reservation import Charge, Reservation, piece_of, pieces_of
from tightrope.ledger.terms import IN_ADVANCE, Terms, check_name
from tightrope.process import NoisySGD, Process, UserLevel
from tightrope.process.codec import from_json, to_json
from tightrope.validate import check_count, check_real

_MOST_HUNDREDTHS = 10**6  # no more noise than 10,000 is proposed
_MOST_STEPS = 2**40
_MOST_TIMES = 1e12
_GUESSES = 8  # then halves, whatever the cost is like


def what_would_fit(process: Any, excess: Callable[[Any], float]) -> str:
    """In words, for a refusal. excess: by how much the limit would be passed (Book.excess)."""
    if isinstance(process, UserLevel):
        return what_would_fit(process.run, lambda run: excess(run and replace(process, run=run)))
    excess = _known(excess)
    steps, noise = 0, None
    if isinstance(process, NoisySGD):
        steps = steps_that_fit(process, lambda run: excess(run) <= 0.0)
    if hasattr(process, "noise_multiplier"):
        noise = noise_that_fits(process, excess)
    ways = []
    if steps:
        ways.append(f"{steps} steps at noise {process.noise_multiplier:g}")
    if noise is not None:
        kind = "these steps" if isinstance(process, NoisySGD) else "it"
        ways.append(f"noise {noise:g} for {kind}")
    if not ways:
        return "Nothing of this kind would fit."
    return f"What would fit: {', or '.join(ways)}."


def _known(excess: Callable[[Any], float]) -> Callable[[Any], float]:
    """What nothing could be certified of is not proposed."""

    def known(process: Any) -> float:
        try:
            return excess(process)
        except NotCertified:
            return inf

    return known


def steps_that_fit(run: NoisySGD, fits: Callable[[Any], bool]) -> int:
    """The most steps of this run that fit; no more than it has."""
    if run.noise_multiplier == 0.0:
        return 0
    counts = range(1, min(run.steps, _MOST_STEPS) + 1)
    return bisect_left(counts, True, key=lambda steps: not fits(replace(run, steps=steps)))


def noise_that_fits(process: Any, excess: Callable[[Any], float]) -> float | None:
    """The least noise multiplier in hundredths with which it fits; None where none does.

    What it costs goes about with 1/noise^2, so few values have to be tried.
    """
    left = -excess(None)
    low, high = 0, _MOST_HUNDREDTHS + 1  # too little; enough, or not proposed
    probe = min(max(ceil(process.noise_multiplier * 100), 1), _MOST_HUNDREDTHS)
    for tried in itertools.count():
        over = excess(replace(process, noise_multiplier=probe / 100))
        low, high = (low, probe) if over <= 0.0 else (probe, high)
        if high - low == 1:
            return high / 100 if high <= _MOST_HUNDREDTHS else None
        probe = _guess(probe, (over + left) / left if left > 0.0 else inf)
        if tried >= _GUESSES:
            probe = (low + high) // 2
        probe = min(max(probe, low + 1), high - 1)
    raise AssertionError("the two ends meet")


def _guess(probe: int, times: float) -> int:
    """The noise that costs so many times less."""
    return ceil(probe * sqrt(times)) if 0.0 < times < _MOST_TIMES else 2 * probe


# What content of unknown origin may do to the program: numbers beyond doubles, endless nesting.
_SENSELESS = (
    TightropeError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_SAME = 1e-9  # two versions of the program may price a release so differently


@final
class Book:
    """The state of one data set, from its log."""

    def __init__(self) -> None:
        self.head = START
        self.reservations: dict[str, Reservation] = {}
        self._charged: Counter[Charge] = Counter()

    # ---- what is written ---------------------------------------------------------------------
    def add(self, entry: LogEntry) -> None:
        """Take in the next entry of the log; refuses one that is not."""
        if not is_next(self.head, entry):
            raise _damaged(entry, f"it does not follow from entry {self.head.number}")
        try:
            self._take_in(entry.body)
        except _SENSELESS as error:
            raise _damaged(entry, f"it makes no sense: {error}") from error
        self.head = entry.head

    def _take_in(self, body: dict[str, Any]) -> None:
        if (body["kind"] == "add") != (self.head == START):
            raise InvalidInput("A data set is added once, by the first entry.")
        if body["kind"] == "add":
            self.terms, self.owner = Terms.from_json(body["terms"]), str(body["who"])
            self.meter = meter_of(self.terms)
            return
        before, after = {"reserve": self._begun, "spend": self._spent, "settle": self._settled}[
            body["kind"]
        ](body)
        self._charge(after.charges(self._in_advance), 1)
        self._charge(before, -1)
        self.reservations[after.id] = after

    def _charge(self, charges: Counter[Charge], sign: int) -> None:
        for charge, count in charges.items():
            self._charged[charge] += sign * count
            if not self._charged[charge]:
                del self._charged[charge]

    def _begun(self, body: dict[str, Any]) -> tuple[Counter[Charge], Reservation]:
        name, who, note = (check_name(body[key] or "-", key) for key in ("id", "who", "note"))
        if name in self.reservations:
            raise InvalidInput(f"Reservation {name} is there already.")
        self._check_spender(who)
        process, at = from_json(body["process"]), float(check_real(body["at"], "at"))
        self.terms.check_process(process)
        price = tuple(math.inf if part is None else float(part) for part in body["price"])
        if len(price) != self.meter.width or not all(part >= 0.0 for part in price):
            raise InvalidInput(f"{body['price']} is not a price.")
        return Counter(), Reservation(name, process, price, who, at, note if body["note"] else "")

    def _spent(self, body: dict[str, Any]) -> tuple[Counter[Charge], Reservation]:
        words = self.spend(body["id"], body["spent"], who=body["who"])
        return self._changed(body["id"], spent=words["spent"])

    def _settled(self, body: dict[str, Any]) -> tuple[Counter[Charge], Reservation]:
        words = self.settle(body["id"], body["settled"], body["certificate"], who=body["who"])
        return self._changed(body["id"], settled=words["settled"], certificate=words["certificate"])

    def _changed(self, name: str, **facts: Any) -> tuple[Counter[Charge], Reservation]:
        before = self.reservation(name)
        return before.charges(self._in_advance), replace(before, **facts)

    @property
    def _in_advance(self) -> bool:
        return self.terms.choices == IN_ADVANCE

    # ---- what is decided ---------------------------------------------------------------------
    def reserve(self, process: Process, who: str) -> dict[str, Any]:
        """The hard stop: refuses a process with which the total could be exceeded."""
        self._check_spender(who)
        price = self.priced(process)
        if not self.fits(process):
            raise BudgetExceeded(
                f"This would exceed what is left of {self.terms.name!r} (total {self.terms.total}; "
                f"{self.meter.unit}: {self.used():.4g} of {self.meter.limit:.4g} is taken)."
            )
        written = [part if math.isfinite(part) else None for part in price]
        return {"kind": "reserve", "process": to_json(process), "price": written}

    def spend(self, name: str, spent: int, since: int | None = None, *, who: str) -> dict[str, Any]:
        """The first `spent` steps are about to be released, or were.

        since: what was announced before, as far as the caller knows.
        """
        self._check_may(who)
        reservation = self._open(name)
        if since is not None and since != reservation.spent:
            raise InvalidInput(
                f"Reservation {name} is used up to step {reservation.spent}, but this run has "
                f"taken {since} steps: another copy of it is at work. Nothing was released. Go on "
                "with one of the two, or make a new reservation for the other."
            )
        steps = check_count(spent, "spent", low=reservation.spent)
        if steps > reservation.steps:
            raise BudgetExceeded(
                f"Step {steps} is beyond reservation {name}, which is for {reservation.steps} "
                "steps. Settle it, and make a new reservation for what comes next."
            )
        return {"kind": "spend", "id": name, "spent": steps}

    def settle(
        self,
        name: str,
        released: int | None = None,
        certificate: str | None = None,
        *,
        who: str,
    ) -> dict[str, Any]:
        """The end of a reservation: what was neither announced nor released is free again.

        released: how many steps were; by default those that were announced.
        """
        self._check_may(who)
        reservation = self._open(name)
        if released is None and reservation.spent == 0:
            raise InvalidInput(
                f"Nothing was announced of reservation {name}, so the ledger does not know how "
                f"many of its {reservation.steps} steps were released. Say how many (0 if none "
                "was), with --released."
            )
        steps = reservation.spent if released is None else check_count(released, "released")
        if not reservation.spent <= steps <= reservation.steps:
            raise InvalidInput(
                f"Reservation {name} is for {reservation.steps} steps, of which "
                f"{reservation.spent} were announced and may have been seen; got {steps} released. "
                "Give a number between the two, or leave it out to settle what was announced."
            )
        if certificate is not None:
            check_name(certificate, "certificate")
        return {"kind": "settle", "id": name, "settled": steps, "certificate": certificate}

    def _check_may(self, who: str) -> None:
        """What others reserved is spent and settled by spenders, or by who added the data set."""
        if who != self.owner:
            self._check_spender(who)

    def _check_spender(self, who: str) -> None:
        if not self.terms.allows(who):
            raise InvalidInput(
                f"{who!r} may not spend on {self.terms.name!r}; its spenders are "
                f"{', '.join(self.terms.spenders) or 'no one'}. Ask one of them."
            )

    def _open(self, name: str) -> Reservation:
        found = self.reservation(name)
        if found.settled is not None:
            raise InvalidInput(
                f"Reservation {name} was settled with {found.settled} releases, and is closed. "
                "Make a new reservation for anything more."
            )
        return found

    def reservation(self, name: str) -> Reservation:
        if name not in self.reservations:
            raise InvalidInput(f"{self.terms.name!r} has no reservation {name!r}.")
        return self.reservations[name]

    # ---- what is taken -----------------------------------------------------------------------
    def priced(self, process: Process) -> tuple[float, ...]:
        """What a filter adds up for a piece of it; refuses what cannot be counted here."""
        self.terms.check_process(process)
        return self.meter.price(piece_of(process))

    def fits(self, process: Process, times: int = 1) -> bool:
        """Would everything reserved and spent, and this process, stay within the total?"""
        return self.excess(process, times) <= 0.0

    def excess(self, process: Process | None = None, times: int = 1) -> float:
        """By how much the limit would be passed; what is left, below 0."""
        return self.used(process, times) - self.meter.limit

    def used(self, process: Process | None = None, times: int = 1) -> float:
        """What is taken of the limit, a process more included."""
        if process is None:
            return self.meter.used(self._charged)
        charge = Charge(piece_of(process), self.meter.price(piece_of(process)))
        return self.meter.used(self._charged + Counter({charge: pieces_of(process) * times}))

    def check_prices(self) -> None:
        """Work out anew what every reservation costs: the log might state too little."""
        for one in self.reservations.values():
            due = self.meter.price(piece_of(one.process))
            if any(part < cost * (1.0 - _SAME) for part, cost in zip(one.price, due, strict=True)):
                raise LedgerDamaged(
                    f"Reservation {one.id} of {self.terms.name!r}, by {one.who!r}, states a "
                    f"price of {one.price}; the right one is {due}. Tightrope did not write it."
                )


def _damaged(entry: LogEntry, how: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"Entry {entry.head.number} of the log was not written by Tightrope ({how}): the store was "
        "edited, so no spending is allowed. Restore a copy that contains the newest head that "
        "was kept."
    )
