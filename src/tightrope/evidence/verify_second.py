"""Every epsilon of a certificate by the lattice method, which shares no numerics with the first."""

from __future__ import annotations

import math
from typing import Any

from tightrope.errors import NotCertified, TightropeError
from tightrope.evidence.check import Check
from tightrope.evidence.statement import main_claim
from tightrope.guarantee.base import Components, Guarantee
from tightrope.guarantee.loss import lattice
from tightrope.numerics.interval import Interval
from tightrope.validate import check_real

__all__ = ["second_method"]

_NAME, _SLACK = "second method", 1e-9


def second_method(claims: dict[str, Any], guarantee: Guarantee, delta: float) -> Check:
    """It must answer at the certificate's delta, and contradict no epsilon where it answers."""
    try:
        said = main_claim(claims, delta)
        claimed = math.inf if said is None else float(check_real(said, "epsilon"))
    except (KeyError, TightropeError) as error:
        return Check(_NAME, False, str(error.args[0]))
    directions = guarantee.directions()
    if math.isinf(claimed) or directions is None:
        return Check(_NAME, True, "nothing finite to compare by the lattice method")
    if not any(directions):
        return Check(_NAME, True, "nothing was released")
    if all(_elementary(order) for order in directions):
        return Check(_NAME, True, "one release of bounded loss: its closed form decides")
    try:
        second = _epsilon(directions, delta)
    except (NotCertified, ValueError, ArithmeticError) as error:
        return Check(_NAME, False, f"the lattice method gave no answer: {error}")
    verdicts = {row[0]: _agrees(directions, *row) for row in _rows(claims)}
    verdicts[delta] = claimed >= second.lower * (1 - _SLACK)
    wrong = [at for at, agrees in verdicts.items() if agrees is False]
    told = f"lattice: epsilon in [{second.lower:.8g}, {second.upper:.8g}]"
    if wrong:
        return Check(_NAME, False, f"{told}; contradicts the claim at delta = {wrong[0]}")
    return Check(_NAME, True, f"{told}; agrees at {sum(map(bool, verdicts.values()))} deltas")


def _epsilon(directions: tuple[Components, ...], delta: float) -> Interval:
    return Interval.worst([lattice.epsilon(order, delta) for order in directions if order])


def _rows(claims: dict[str, Any]) -> list[tuple[float, float]]:
    """(delta, epsilon) of the claims that say something; odd rows are refused elsewhere."""
    rows = [row for row in claims["epsilon"] if isinstance(row, dict)]
    pairs = [(row.get("delta"), row.get("upper")) for row in rows]
    return [
        (delta, epsilon)
        for delta, epsilon in pairs
        if isinstance(delta, float) and isinstance(epsilon, float) and 0.0 < delta < 1.0
    ]


def _agrees(directions: tuple[Components, ...], delta: float, claimed: float) -> bool | None:
    """None where the lattice has no answer."""
    try:
        return claimed >= _epsilon(directions, delta).lower * (1 - _SLACK)
    except (TightropeError, ValueError, ArithmeticError):
        return None


def _elementary(order: Components) -> bool:
    """One release with a largest loss: a sum of a few terms, and no composition to check."""
    return sum(count for _, count in order) == 1 and all(p.support[1] < math.inf for p, _ in order)
