"""Whatever learns inside `with spending(ledger, dataset):` is reserved and settled there.

What learns from private rows in one go (the estimators, convex learning, searches) asks
`reserved(process, ...)` before it reads the first one; a training that names no ledger of its
own takes the one in force. Without one nothing happens.

Threads that are started inside count as well. Other processes cannot: they refuse.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.guarantee.base import Guarantee
from tightrope.ledger import open_ledger
from tightrope.process import DeclaredRenyi

Place = tuple[Any, str]
_HERE: ContextVar[Place | None] = ContextVar("tightrope ledger", default=None)
_COVERED: ContextVar[bool] = ContextVar("inside a reservation", default=False)
_ANYWHERE: list[Place] = []  # of all threads
_MARK = "TIGHTROPE_SPENDING"  # seen by processes that are started inside
_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@contextmanager
def spending(ledger: Any, dataset: str) -> Iterator[None]:
    """Everything that learns inside is about this data set of this ledger (or its url)."""
    opened = ledger if hasattr(ledger, "reserve") else open_ledger(ledger)
    opened.book(dataset)  # refuses an unknown one before anything is read
    place = (opened, dataset)
    token, before = _HERE.set(place), os.environ.get(_MARK)
    _ANYWHERE.append(place)
    os.environ[_MARK] = "1"
    try:
        yield
    finally:
        _ANYWHERE.remove(place)
        os.environ.pop(_MARK, None) if before is None else os.environ.update({_MARK: before})
        _HERE.reset(token)


def in_force() -> Place | None:
    """The ledger and the data set of what is about to learn here; None where none counts."""
    if _COVERED.get():
        return None
    found = _HERE.get()
    if found is None and len(set(_ANYWHERE)) > 1:
        raise InvalidInput(
            "Threads of this process spend from several data sets, and this one does not name "
            "its own. Use `with spending(ledger, dataset):` inside the thread."
        )
    if found is None and not _ANYWHERE and _MARK in os.environ:
        raise InvalidInput(
            "This process was started inside `with spending(...)` of another one, whose ledger it "
            "does not have: what it learns would not be counted. Learn in one process (n_jobs=1), "
            f"or use `with spending(ledger, dataset):` here too. (The environment has {_MARK}.)"
        )
    return found or (_ANYWHERE[-1] if _ANYWHERE else None)


@contextmanager
def reserved(process: Any, note: str, *, private: bool) -> Iterator[None]:
    """Around one release. What is inside is part of it and reserves nothing of its own.

    Spent before it begins: whatever goes wrong inside, it stays counted.
    private: false where its randomness is seeded.
    """
    found = in_force()
    if found is None:
        yield
        return
    check_private(() if private else ("its randomness is seeded",))
    ledger, dataset = found
    terms = ledger.book(dataset).terms
    if isinstance(process, Guarantee):
        process = declared(process, terms.orders)
    reservation = ledger.reserve(dataset, terms.of_one(process), note)
    ledger.spend(dataset, reservation.id, reservation.steps)
    token = _COVERED.set(True)
    try:
        yield
    finally:
        _COVERED.reset(token)
        ledger.settle(dataset, reservation.id, reservation.steps)


def check_private(why_not: tuple[str, ...]) -> None:
    """A release that anybody can undo has no price."""
    if why_not:
        raise ModelNotPrivate(
            f"This would not be private ({'; '.join(why_not)}), so no budget of a ledger covers "
            "it. Nothing was released. Leave the seeds out, or rehearse on data that need no "
            "protection, without the ledger."
        )


def declared(guarantee: Guarantee, orders: tuple[float, ...] = ()) -> DeclaredRenyi:
    """A guarantee about records that no process describes, by its Renyi divergences."""
    if guarantee.records > 1:
        raise InvalidInput(
            f"This guarantee is about {guarantee.unit_of_privacy}. Give the one about one record; "
            "the ledger knows how many records its people have."
        )
    asked = sorted({*orders, *_ORDERS})
    gammas = tuple(guarantee.renyi(order).upper for order in asked)
    return DeclaredRenyi(tuple(asked), gammas, guarantee.adjacency)
