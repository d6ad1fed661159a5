"""Fits and searches inside `with spending(ledger, dataset):` are reserved and settled there.

Whatever learns from private rows in one go (the estimators, convex learning, searches) asks
`reserved(process)` before it looks at the first one; without a ledger in force nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tightrope.guarantee.base import Guarantee
from tightrope.ledger import open_ledger
from tightrope.process import DeclaredRenyi

__all__ = ["spending", "reserved", "declared"]

_IN_FORCE: ContextVar[tuple[Any, str] | None] = ContextVar("tightrope ledger", default=None)
_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)


@contextmanager
def spending(ledger: Any, dataset: str) -> Iterator[None]:
    """Everything that is fitted inside is about this data set of this ledger (or its url)."""
    opened = ledger if hasattr(ledger, "reserve") else open_ledger(ledger)
    opened.book(dataset)  # refuses an unknown one before anything is read
    token = _IN_FORCE.set((opened, dataset))
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


@contextmanager
def reserved(process: Any, note: str) -> Iterator[None]:
    """Around one release. What is inside is part of it and reserves nothing of its own.

    Spent before it begins: whatever goes wrong inside, it stays counted.
    """
    found = _IN_FORCE.get()
    if found is None:
        yield
        return
    ledger, dataset = found
    if isinstance(process, Guarantee):
        process = declared(process, ledger.book(dataset).terms.orders)
    held = ledger.reserve(dataset, process, note)
    ledger.spend(dataset, held.id, held.steps)
    token = _IN_FORCE.set(None)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)
        ledger.settle(dataset, held.id)


def declared(guarantee: Guarantee, orders: tuple[float, ...] = ()) -> DeclaredRenyi:
    """A guarantee that no process describes, by its Renyi divergences."""
    asked = sorted({*orders, *_ORDERS})
    gammas = tuple(guarantee.renyi(order).upper for order in asked)
    return DeclaredRenyi(tuple(asked), gammas, guarantee.adjacency)
