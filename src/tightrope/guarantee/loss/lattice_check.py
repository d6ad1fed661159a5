"""A second look at an answer: does a lattice contradict it?

The lattice shares only elementary parts with the contour (normal distribution, Gauss-Legendre
rule), and every lattice, however coarse, gives valid bounds. A quick one, planned for the answer
itself, pins delta down to some 10 % within milliseconds; a thorough one to 0.1 % at any cost. An
answer outside these bounds is wrong, or the lattice is, and neither is believed.
"""

from __future__ import annotations

import math
from functools import cached_property

from tightrope.errors import ContradictoryMethods
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.lattice_law import infinite_log_mass, one_side
from tightrope.guarantee.loss.lattice_plan import Plan, best_plan, has_jumps, plain_plan
from tightrope.guarantee.loss.lattice_step import Side

__all__ = ["confirm"]

_MOST_KINDS, _MOST_WORK = 16, 5e4  # of a quick look: kinds of steps, points of windows
_QUICK, _THOROUGH = 0.3, 1e-3  # widths of ln delta asked for
_VACUOUS = 3.0  # bounds further off than this say too little: plan with jumps
_SLACK = 1e-9  # rounding of a claim that sits on the bound itself


def confirm(
    orders: tuple[Components, ...],
    at_most: tuple[float, float],
    at_least: tuple[float, float],
    thorough: bool,
) -> None:
    """Raise ContradictoryMethods where a lattice excludes a claim about the worst order.

    `at_most` = (epsilon, delta) claims delta(epsilon) <= delta, `at_least` that it is >= delta;
    a delta of 1 or 0 claims nothing. A quick look leaves out what takes a lattice long: very many
    kinds of steps, or millions of steps.
    """
    looks = [_Look(order, *at_most, thorough) for order in orders]
    epsilon, delta = at_most
    if 0.0 < delta < 1.0:
        found = max(look.bound(epsilon, delta, "lower") for look in looks)
        if found > math.log(delta) + _SLACK:
            raise _contradiction(f"at most {delta!r}", epsilon, f"at least {math.exp(found)!r}")
    epsilon, delta = at_least
    if 0.0 < delta < 1.0:
        largest = -math.inf
        for look in looks:  # the first order that reaches the claim settles it
            largest = max(largest, look.bound(epsilon, delta, "upper"))
            if largest >= math.log(delta) - _SLACK:
                return
        raise _contradiction(f"at least {delta!r}", epsilon, f"at most {math.exp(largest)!r}")


def _contradiction(claimed: str, epsilon: float, found: str) -> ContradictoryMethods:
    return ContradictoryMethods(
        f"Two certified methods contradict each other: delta({epsilon!r}) should be {claimed}, and "
        f"the lattice proves that it is {found}. Neither is believed; please report this."
    )


class _Look:
    """Bounds on delta of one order, from a lattice planned where the claim was made."""

    def __init__(self, order: Components, epsilon: float, delta: float, thorough: bool) -> None:
        self.order, self.epsilon, self.delta = order, epsilon, delta
        self.thorough = thorough
        self.highest = math.fsum(count * pair.support[1] for pair, count in order)

    @cached_property
    def plan(self) -> Plan | None:
        """None where it would take too long."""
        if self.thorough:
            return best_plan(self.order, self.epsilon, math.log(self.delta), _THOROUGH)
        if len(self.order) > _MOST_KINDS:
            return None
        plan = plain_plan(self.order, self.epsilon, math.log(self.delta), _QUICK)
        return plan if plan.work <= _MOST_WORK else None

    def bound(self, epsilon: float, delta: float, side: Side) -> float:
        """ln of a bound on delta(epsilon), from one side."""
        if epsilon >= self.highest:
            return infinite_log_mass(self.order).upper if side == "upper" else -math.inf
        if self.plan is None:
            return 0.0 if side == "upper" else -math.inf
        found = _read(self.plan, epsilon, side)
        alone = len(self.order) == 1 and has_jumps(self.order[0][0])
        if alone and not self.thorough and abs(found - math.log(delta)) > _VACUOUS:
            better = best_plan(self.order, epsilon, math.log(delta), _QUICK)
            both = (found, _read(better, epsilon, side))
            return max(both) if side == "lower" else min(both)
        return found


def _read(plan: Plan, epsilon: float, side: Side) -> float:
    law = one_side(plan, side)
    return law.log_lower(epsilon) if side == "lower" else law.log_upper(epsilon)
