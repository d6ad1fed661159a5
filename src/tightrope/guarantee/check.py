"""The one second look: is an answer proved, or excluded, by an independent method?

Contour and lattice share only elementary parts (normal distribution, Gauss-Legendre rule), and
every lattice, however coarse, gives valid bounds. `confirm` refuses an answer outside of the bounds
of a lattice planned for it; `second_method` states what both methods prove of it, as a factor:
delta(epsilon) <= factor * delta; `Methods` holds many claims of one run against both. Accounts,
certificates and their verification all ask here.

Many kinds of steps are grouped upwards for the lattice's upper bound: a larger mu, or a larger
rate, only adds information (mixing with fresh noise undoes it), so each group counts as its worst
member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import final

from tightrope.errors import ContradictoryMethods, DoesNotApply, NotCertified, TightropeError
from tightrope.guarantee.loss import contour, lattice
from tightrope.guarantee.loss.abstract import Components, Side, infinite_log_mass, largest_loss
from tightrope.guarantee.loss.curve import LatticeCurve
from tightrope.guarantee.loss.grouping import grouped
from tightrope.guarantee.loss.lattice.best import best_plan
from tightrope.guarantee.loss.lattice.law import one_side
from tightrope.guarantee.loss.lattice.plan import LatticePlan, plain_plan, sketch_of
from tightrope.guarantee.loss.pairs import GaussianPair
from tightrope.numerics.interval import Interval

_MOST_KINDS, _MOST_WORK = 16, 2e5  # of a quick look: kinds of steps, points of windows
# widths of ln delta asked for: to contradict, to prove again, to do either thoroughly
_ROUGH, _QUICK, _THOROUGH = 0.3, 0.1, 1e-3
_COARSE = 1e-3  # of the contour
_FAR = 0.7  # nats below the claim: such an order is probably not the worse one
_VACUOUS = 5.0  # times the width: a law further off than this is not the last one tried
_LARGEST_FACTOR = 20.0  # beyond, a bound says too little to count as a second proof
_SLACK = 1e-9  # rounding of a claim that sits on the bound itself
_FAINTEST = -600.0  # ln of a delta that a lattice is planned for
_CLOSE = 0.01  # of delta: a method that proves this much more proves a claim again


# ---- what a lattice says
@final
@dataclass(frozen=True)
class _Look:
    """A lattice for one order, planned where the claim delta(epsilon) = delta was made."""

    order: Components
    epsilon: float
    delta: float
    width: float  # of ln delta asked for

    @property
    def thorough(self) -> bool:
        return self.width <= _THOROUGH

    @cached_property
    def plain(self) -> LatticePlan:
        return plain_plan(self.order, self.epsilon, math.log(self.delta), self.width)

    def seems_far_below(self) -> bool:
        """Does a rough picture, which proves nothing, put this order well below the claim?"""
        unbounded = len(self.order) > _MOST_KINDS  # `bound` follows no more: nothing to save
        if self.thorough or unbounded or any(pair.has_jumps for pair, _ in self.order):
            return False
        return sketch_of(self.order).saddle(self.epsilon).log_delta < math.log(self.delta) - _FAR

    def bound(self, epsilon: float, side: Side) -> float:
        """ln of a bound on delta(epsilon) from one side; 0 or -inf where it would take too long."""
        if epsilon >= largest_loss(self.order).upper:
            return infinite_log_mass(self.order).upper if side == "upper" else -math.inf
        nothing = 0.0 if side == "upper" else -math.inf
        if len(self.order) > _MOST_KINDS and not self.thorough:
            return nothing
        found = self._read(self.thorough, side, epsilon, nothing)
        alone = len(self.order) == 1 and self.order[0][0].has_jumps
        off = abs(found - math.log(self.delta)) > _VACUOUS * self.width
        if alone and off and not self.thorough:
            other = self._read(True, side, epsilon, nothing)
            return min(found, other) if side == "upper" else max(found, other)
        return found

    def _read(self, jumps: bool, side: Side, epsilon: float, nothing: float) -> float:
        """One side of the lattice, with jumps or without."""
        asked = (self.order, self.epsilon, math.log(self.delta), self.width)
        plan = best_plan(*asked) if jumps else self.plain
        if plan.work > _MOST_WORK and not self.thorough:
            return nothing
        law = one_side(plan, side)
        return law.log_lower(epsilon) if side == "lower" else law.log_upper(epsilon)


# ---- is it contradicted?
def confirm_epsilon(
    orders: tuple[Components, ...], delta: float, answer: Interval, thorough: bool = False
) -> None:
    """Hold epsilon(delta) of the worst order against a lattice."""
    at_most = (answer.upper, delta if answer.upper < math.inf else 1.0)
    at_least = (answer.lower, delta if 0.0 < answer.lower < math.inf else 0.0)
    if not all(_is_closed(order) for order in orders):
        _confirm(orders, at_most, at_least, thorough)


def confirm_delta(
    orders: tuple[Components, ...], epsilon: float, answer: Interval, thorough: bool = False
) -> None:
    """Hold delta(epsilon) of the worst order, epsilon >= 0, against a lattice."""
    if epsilon >= 0.0 and not all(_is_closed(order) for order in orders):
        _confirm(orders, (epsilon, answer.upper), (epsilon, answer.lower), thorough)


def _confirm(
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
    planned = at_most if 0.0 < at_most[1] < 1.0 else at_least
    if not 0.0 < planned[1] < 1.0:
        return
    width = _THOROUGH if thorough else _ROUGH
    looks = [_Look(order, *planned, width) for order in orders]
    far = [look.seems_far_below() for look in looks] if len(looks) > 1 else [False]
    looks = [looks[i] for i in sorted(range(len(looks)), key=far.__getitem__)]  # likely worst first
    needed = far.count(False) or len(looks)
    epsilon, delta = at_least
    if 0.0 < delta < 1.0:
        proved: list[float] = []  # upper bounds: no order may be left out of a contradiction
        for look in looks:
            proved.append(look.bound(epsilon, "upper"))
            if proved[-1] >= math.log(delta) - _SLACK:
                break
        else:
            raise _contradiction(
                f"at least {delta!r}", epsilon, f"at most {math.exp(max(proved))!r}"
            )
        needed = max(needed, len(proved))
    epsilon, delta = at_most
    if 0.0 < delta < 1.0:  # any order may contradict
        found = max(look.bound(epsilon, "lower") for look in looks[:needed])
        if found > math.log(delta) + _SLACK:
            raise _contradiction(f"at most {delta!r}", epsilon, f"at least {math.exp(found)!r}")


def _contradiction(claimed: str, epsilon: float, found: str) -> ContradictoryMethods:
    return ContradictoryMethods(
        f"Two certified methods contradict each other: delta({epsilon!r}) should be {claimed}, and "
        f"the lattice proves that it is {found}. Neither is believed; please report this."
    )


def _is_closed(order: Components) -> bool:
    """One release, or Gaussians only."""
    held = [(pair, n) for pair, n in order if n > 0]
    once = sum(n for _, n in held) <= 1 and all(pair.has_closed_form for pair, _ in held)
    return once or all(isinstance(pair, GaussianPair) for pair, _ in held)


# ---- is it proved twice?
class SecondVerdict(Enum):
    """How an answer was checked."""

    CONFIRMED = "confirmed"
    ONE_METHOD = "one method"
    CLOSED_FORM = "closed form"
    NOT_ASKED = "not asked"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True)
class SecondMethod:
    """The verdict of a second method about an answer; `factor` is None where there is none."""

    verdict: SecondVerdict
    method: str | None
    factor: float | None
    words: str


@final
@dataclass(frozen=True)
class _Opinion:
    """ln of the smallest delta that one method proves; inf, and why, where it gives none."""

    log_delta: float
    reason: str = ""


def second_method(
    orders: tuple[Components, ...], epsilon: float, delta: float, thorough: bool = False
) -> SecondMethod:
    """Both methods' proofs of delta(epsilon) <= delta, the claim behind an answer."""
    if delta >= 1.0 or math.isinf(epsilon):
        return _closed("There is no claim that a second method could check.")
    if all(_is_closed(order) or epsilon >= largest_loss(order).upper for order in orders):
        return _closed("A closed formula gives it; no second method is needed.")
    if delta == 0.0:
        return _closed("Losses are bounded; the largest one gives it.")
    opinions = {
        "contour": [_by_contour(order, epsilon) for order in orders],
        "lattice": [_by_lattice(order, epsilon, delta, thorough) for order in orders],
    }
    factors = {}  # the largest of the orders, over the delta claimed; at least 1
    for name, parts in opinions.items():
        excess = max(part.log_delta for part in parts) - math.log(delta)
        factors[name] = math.exp(min(max(excess, 0.0), 700.0))
    weaker, stronger = sorted(factors, key=lambda name: factors[name], reverse=True)
    factor = factors[weaker]
    if factor <= _LARGEST_FACTOR:
        more = f", for a delta {factor:.2g} times as large"
        if factor < 2.0:
            more = f", for a delta {100.0 * (factor - 1.0):.2g} % larger"
        if factor < 1.0 + 1e-9:
            more = ""
        said = f"Proved twice: a second method ({weaker}) proves it too{more}."
        return SecondMethod(SecondVerdict.CONFIRMED, weaker, factor, said)
    reasons = [part.reason for part in opinions[weaker] if part.reason]
    why = reasons[0] if reasons else f"its bound is more than {_LARGEST_FACTOR:g} times as large."
    said = f"One method only, the {stronger}. The {weaker} did not confirm it: {why}"
    return SecondMethod(SecondVerdict.ONE_METHOD, None, None, said)


def _closed(words: str) -> SecondMethod:
    return SecondMethod(SecondVerdict.CLOSED_FORM, None, None, words)


def _by_contour(order: Components, epsilon: float, width: float = _COARSE) -> _Opinion:
    try:
        return _Opinion(contour.log_delta(order, epsilon, width).upper)
    except NotCertified as problem:
        if problem.reached is not None:  # wider than it is given alone, and a proof
            return _Opinion(problem.reached[1], _first_sentence(problem))
        return _Opinion(math.inf, _first_sentence(problem))
    except DoesNotApply as problem:
        return _Opinion(math.inf, _first_sentence(problem))


def _by_lattice(order: Components, epsilon: float, delta: float, thorough: bool) -> _Opinion:
    """An upper bound on ln delta(epsilon) from a lattice planned for the claim."""
    held = grouped(order, _MOST_KINDS, "upper")
    if len(held) > _MOST_KINDS:
        return _Opinion(math.inf, f"{len(held)} kinds of steps are too many for it.")
    try:
        width = _THOROUGH if thorough else _QUICK
        found = _Look(held, epsilon, delta, width).bound(epsilon, "upper")
        own = math.exp(max(sketch_of(held).saddle(epsilon).log_delta, _FAINTEST))
        if found >= 0.0 and own < delta:  # too coarse for an order that is far below the claim
            found = _Look(held, epsilon, own, width).bound(epsilon, "upper")
    except TightropeError as problem:
        return _Opinion(math.inf, _first_sentence(problem))
    if found >= 0.0:
        return _Opinion(math.inf, 'it would take too long; check="full" waits for it.')
    return _Opinion(found)


def _first_sentence(problem: Exception) -> str:
    return str(problem).split(". ")[0].rstrip(".") + "."


# ---- many claims of one run
@final
class Methods:
    """Lattice and contour, both asked whether delta(epsilon) <= delta."""

    def __init__(self, orders: tuple[Components, ...]) -> None:
        self.orders, self.lattice = orders, LatticeCurve(orders)

    def agree(self, epsilon: float, delta: float) -> bool | None:
        """False where the lattice refutes it, True where both prove it but for a hundredth."""
        enough = delta * (1 + _CLOSE)
        try:
            found = self.lattice.delta(epsilon, 0.1 * _CLOSE * delta)
        except (TightropeError, ValueError, ArithmeticError):
            return None
        if found.lower > delta * (1 + _SLACK):
            return False
        if found.upper > enough:
            return None
        by_contour = [_by_contour(order, epsilon, 0.1 * _CLOSE) for order in self.orders]
        return max(part.log_delta for part in by_contour) <= math.log(enough) or None

    def epsilon(self, delta: float) -> Interval:
        """epsilon(delta) by the lattice alone."""
        return Interval.worst([lattice.epsilon(order, delta) for order in self.orders if order])
