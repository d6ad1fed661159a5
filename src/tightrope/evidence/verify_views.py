"""Trade-off points and Renyi divergences of a certificate, by other methods than the first.

A type II error rests on one supporting line, 1 - delta(epsilon) - e^epsilon type_i: its delta is
asked of lattice and contour both. Renyi divergences are summed over cells of the loss.
"""

from __future__ import annotations

import math
from typing import Any

from tightrope.evidence.check import Check, yours
from tightrope.evidence.verify_second import claimed, pairs_to_check, whole_and_share
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.check import Methods
from tightrope.guarantee.loss.renyi import composed_renyi_by_cells
from tightrope.guarantee.tradeoff import supporting_epsilon
from tightrope.numerics.interval import Interval

__all__ = ["second_tradeoff", "second_renyi"]

_SLACK = 1e-9
_MOST_KINDS = 64


def second_tradeoff(claims: dict[str, Any], guarantee: Guarantee) -> Check:
    """The delta behind each claimed type II error, by lattice and contour."""
    whole, share = whole_and_share(guarantee)
    name, directions = "second method, type II errors", pairs_to_check(whole)
    if isinstance(directions, str):
        return yours(name, directions)
    rows = claimed(claims, "type_ii_error", "type_i", "lower")
    rows = [(a, lower) for a, lower in rows if 0.0 < a < 1.0 and 0.0 < lower < 1.0 - a]
    methods, twice = Methods(directions), 0
    for type_i, lower in rows:
        epsilon = supporting_epsilon(guarantee, type_i)
        verdict = methods.agree(abs(epsilon), share * _delta_behind(epsilon, type_i, lower))
        if verdict is False:
            return Check(name, False, f"the lattice contradicts the claim at type_i = {type_i}")
        twice += verdict is True
    told = f"{twice} of {len(rows)} claims are proved by two methods"
    return Check(name, True, told) if twice else yours(name, told)


def _delta_behind(epsilon: float, type_i: float, lower: float) -> float:
    """The delta(|epsilon|) that puts the line through (type_i, lower); flat for epsilon < 0."""
    if epsilon >= 0.0:
        return 1.0 - lower - math.exp(epsilon) * type_i
    return 1.0 - type_i - math.exp(-epsilon) * lower


def second_renyi(claims: dict[str, Any], guarantee: Guarantee) -> Check:
    """Each claimed Renyi divergence against the sum over cells of the loss."""
    name, directions = "second method, Renyi", pairs_to_check(guarantee)
    rows = [row for row in claimed(claims, "renyi", "order", "upper") if row[0] > 1.0]
    if isinstance(directions, str):
        return yours(name, directions)
    if max(map(len, directions)) > _MOST_KINDS:
        return yours(name, "one method only: too many kinds of steps for sums over cells")
    if not all(pair.on_lattice for order in directions for pair, _ in order):
        return yours(name, "one method only: the law is known by its density, not by masses")
    if not rows:
        return yours(name, "nothing finite is claimed")
    worst = 0.0
    for order, upper in rows:
        found = Interval.worst([composed_renyi_by_cells(part, order) for part in directions])
        if found.lower > upper * (1 + _SLACK):
            return Check(name, False, f"cells of the loss contradict the claim at order {order}")
        worst = max(worst, found.upper / upper - 1.0 if upper > 0.0 else found.upper)
    return Check(name, True, f"cells of the loss prove {len(rows)} claims again within {worst:.1e}")
