"""One budget for all releases on a data set: reserved before, spent along, settled at the end.

    from tightrope.ledger import Terms, Total, create_ledger

    ledger = create_ledger("ledger.db")
    ledger.add(Terms("patients", Total(epsilon=3.0, delta=1e-6)))
    own = ledger.reserve("patients", NoisySGD(PoissonSampling(0.01), 1.1, steps=500))
    ledger.spend("patients", own.id, 500)
    ledger.settle("patients", own.id)

Needs `pip install 'tightrope[ledger]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope.errors import InvalidInput
from tightrope.ledger.terms import ALONG_THE_WAY, IN_ADVANCE, Terms, Total

if TYPE_CHECKING:
    from tightrope.ledger.office import BudgetLedger

__all__ = ["open_ledger", "create_ledger", "Terms", "Total", "ALONG_THE_WAY", "IN_ADVANCE"]


def open_ledger(url: str | Path, **options: Any) -> BudgetLedger:
    """The ledger at a path (SQLite) or at postgresql://...; options are those of BudgetLedger."""
    with _needed():
        from tightrope.ledger.office import BudgetLedger
    return BudgetLedger(url, **options)


def create_ledger(url: str | Path, **options: Any) -> BudgetLedger:
    """The same, with its tables made or brought up to date first."""
    with _needed():
        from tightrope.ledger.store import Store
    store = Store(url)
    store.create()
    store.close()
    return open_ledger(url, **options)


@contextmanager
def _needed() -> Iterator[None]:
    """The packages of the extra; what is missing is named."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"A ledger needs {error.name}: pip install 'tightrope[ledger]'."
        ) from error
