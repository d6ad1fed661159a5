"""Every epsilon of a certificate by a second method, which shares no numerics with the first."""

from __future__ import annotations

import math
from typing import Any

from tightrope.errors import TightropeError
from tightrope.evidence.check import Check, yours
from tightrope.evidence.statement import main_claim
from tightrope.guarantee.base import Components, Guarantee
from tightrope.guarantee.check import Methods
from tightrope.guarantee.kinds.stopped import StoppedGuarantee
from tightrope.validate import check_real

__all__ = ["second_method", "pairs_to_check", "whole_and_share", "claimed"]

_NAME = "second method"


def second_method(claims: dict[str, Any], guarantee: Guarantee, delta: float) -> Check:
    """It contradicts no epsilon where it answers."""
    try:
        said = main_claim(claims, delta)
        main = math.inf if said is None else float(check_real(said, "epsilon"))
    except (KeyError, TightropeError) as error:
        return Check(_NAME, False, str(error.args[0]))
    guarantee, share = whole_and_share(guarantee)
    directions = pairs_to_check(guarantee)
    if isinstance(directions, str):
        return yours(_NAME, directions)
    if math.isinf(main):
        return yours(_NAME, "no finite epsilon that the lattice method could check")
    methods = Methods(directions)
    rows = [row for row in claimed(claims, "epsilon", "delta", "upper") if row[1] >= 0.0]
    verdicts = {at: methods.agree(epsilon, share * at) for at, epsilon in rows if 0.0 < at < 1.0}
    wrong = [at for at, agrees in verdicts.items() if agrees is False]
    if wrong:
        return Check(_NAME, False, f"the lattice contradicts the claim at delta = {wrong[0]}")
    if verdicts.get(delta) is None:
        return yours(_NAME, f"the lattice has no answer at delta = {delta}")
    told = f"{sum(map(bool, verdicts.values()))} of {len(verdicts)} epsilons are proved twice"
    return Check(_NAME, True, told)


def whole_and_share(guarantee: Guarantee) -> tuple[Guarantee, float]:
    """The guarantee of a length, and its share of delta; 1 for a run whose length was fixed."""
    if isinstance(guarantee, StoppedGuarantee):
        return guarantee.inner, guarantee.share
    return guarantee, 1.0


def pairs_to_check(guarantee: Guarantee) -> tuple[Components, ...] | str:
    """The dominating pairs of a guarantee, or why there is nothing to compare."""
    directions = guarantee.directions()
    if directions is None:
        return "nothing to compare by another numerical method: the bound is a formula"
    if not any(directions):
        return "nothing was released"
    if not all(pair.on_lattice for order in directions for pair, _ in order):
        return "one method only: the law of an epoch of balls in bins is known by its density alone"
    if all(_elementary(order) for order in directions):
        return "one release of bounded loss: a closed formula gives it"
    return directions


def claimed(
    claims: dict[str, Any], name: str, argument: str, end: str
) -> list[tuple[float, float]]:
    """(argument, end) of the claims that say something; odd rows are refused elsewhere."""
    listed = claims.get(name)
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    pairs = [(row.get(argument), row.get(end)) for row in rows]
    return [
        (at, value) for at, value in pairs if isinstance(at, float) and isinstance(value, float)
    ]


def _elementary(order: Components) -> bool:
    """One release with a largest loss: a sum of a few terms, and no composition to check."""
    return sum(count for _, count in order) == 1 and all(p.support[1] < math.inf for p, _ in order)
