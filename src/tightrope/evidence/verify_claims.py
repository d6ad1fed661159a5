"""The numbers of a certificate, each against the same number recomputed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tightrope.accounting import Account, find
from tightrope.errors import TightropeError
from tightrope.evidence.check import Check
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval

__all__ = ["claims_checks"]

# The same bound recomputed elsewhere may differ by this much (another machine's libm).
_SLACK = 1e-9


class _View(NamedTuple):
    """A kind of claim: by which argument, which end is promised, the largest value there is."""

    name: str
    argument: str
    of: Callable[[Guarantee, float], Interval]
    safe: str
    largest: float


_VIEWS = (
    _View("epsilon", "delta", lambda g, delta: g.epsilon(delta), "upper", math.inf),
    _View("type_ii_error", "type_i", lambda g, type_i: g.tradeoff(type_i), "lower", 1.0),
    _View("renyi", "order", lambda g, order: g.renyi(order), "upper", math.inf),
    _View("advantage", "", lambda g, _: g.advantage(), "upper", 1.0),
)


def claims_checks(certificate: dict[str, Any], result: Account, best: Guarantee) -> Iterator[Check]:
    """One line for each kind of claim."""
    said = certificate["analysis"]
    named = [find(one, result.process) for one in result.analyses if one.key == said["key"]]
    proofs = [best, *(f.outcome for f in named if f.is_certified and f.outcome != best)]
    for view in _VIEWS:
        claimed = certificate["claims"][view.name]
        rows = claimed if view.argument else [claimed]
        exact = said["kind"] == "exact"
        false = next((row for row in rows if not _holds(row, view, proofs, exact)), None)
        if false is None:
            yield Check(view.name, True, f"all {len(rows)} hold" if view.argument else "holds")
        elif view.argument:
            yield Check(view.name, False, f"false at {view.argument} = {false[view.argument]}")
        else:
            yield Check(view.name, False, "false")


def _holds(row: dict[str, Any], view: _View, proofs: list[Any], exact: bool) -> bool:
    """Is the promised end proved by the best guarantee, or by that of the analysis it names?

    Of an exact analysis the other end must not contradict it, since a reader may take it for the
    truth's other side. A bound promises one end: later bounds may be closer.
    """
    lower, upper = (math.inf if row[end] is None else float(row[end]) for end in ("lower", "upper"))
    if not 0.0 <= lower <= upper <= view.largest:
        return False
    if lower == 0.0 and (view.safe == "lower" or upper == view.largest):
        return True  # nothing is claimed
    at = float(row[view.argument]) if view.argument else 0.0
    promised, other = (upper, lower) if view.safe == "upper" else (-lower, -upper)
    truth = _truth(proofs[0], view, at)
    if exact and other > truth.upper + _slack(truth):
        return False
    if promised >= truth.upper - _slack(truth):
        return True
    others = (_truth(guarantee, view, at) for guarantee in proofs[1:])
    return any(promised >= found.upper - _slack(found) for found in others)


def _truth(guarantee: Guarantee, view: _View, at: float) -> Interval:
    """What is recomputed, as a loss: its upper end is proved, where there is an answer at all."""
    try:
        found = view.of(guarantee, at)
    except (TightropeError, TypeError, ValueError, ArithmeticError):
        found = Interval(0.0, view.largest)
    return found if view.safe == "upper" else Interval(-found.upper, -found.lower)


def _slack(truth: Interval) -> float:
    """What another machine may make of the same number."""
    size = max(map(abs, (truth.lower, truth.upper)))
    return _SLACK * size + 1e-12 * (truth.upper <= 0.0) if math.isfinite(size) else 0.0
