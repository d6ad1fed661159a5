"""A whole profile from a few lattice laws: one law bounds delta(epsilon) at every epsilon.

Where it costs more to ask the exact method again and again (few steps, or many questions), laws
built where they are needed answer most questions in a tenth of a millisecond.
Error: every answer is an enclosure; its width is that asked for, or what the exact method reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from tightrope.errors import NotCertified
from tightrope.guarantee.loss import lattice
from tightrope.guarantee.loss.abstract import Components, infinite_log_mass, largest_loss
from tightrope.guarantee.loss.lattice.best import guesses
from tightrope.guarantee.loss.lattice.law import LatticeLaw, build
from tightrope.guarantee.loss.lattice.plan import plain_plan
from tightrope.numerics.interval import Interval

_MOST_KINDS, _MOST_LAWS = 16, 12
_FEW = 20  # steps up to which a fine law is cheaper than the exact method
_COARSE, _FINE = 1e-3, 1e-6  # widths of ln delta asked of a law
_MOST_WORK = 3e5  # points of windows
_NEAR = 8.0  # a law that misses the width asked for by no more than this will do


class LossCurve:
    """Bounds on the profile of composed pairs, the worse of its orders (a `Profile`)."""

    def __init__(self, orders: tuple[Components, ...], exact: Callable[[float], Interval]) -> None:
        self.exact = exact
        self.orders = [_order_of(order) for order in orders]
        self.known: dict[float, Interval] = {}

    def near(self, epsilon: float, room: float) -> Interval:
        """Within a thousandth, or within `room`."""
        found = self._laws(epsilon, room, _COARSE)
        wide = found.width > max(room, 1.2 * _NEAR * _COARSE * found.upper)
        return self._exact(epsilon) if wide else found

    def sharp(self, epsilon: float, room: float) -> Interval:
        """Within `room` if laws are good for that, otherwise by the exact method."""
        found = self._laws(epsilon, room, _COARSE)
        if found.width > room and all(order.steps <= _FEW for order in self.orders):
            found = self._laws(epsilon, room, _FINE)
            if found.width <= _NEAR * _FINE * found.upper:
                return found
        return found if found.width <= room else found.intersect(self._exact(epsilon))

    def _laws(self, epsilon: float, room: float, width: float) -> Interval:
        return _worst(self.orders, lambda order, worst: order.bounds(epsilon, room, width, worst))

    def _exact(self, epsilon: float) -> Interval:
        """delta by the exact method; where it has no answer, at most delta of a smaller epsilon."""
        if epsilon not in self.known:
            below = [found.upper for known, found in self.known.items() if known <= epsilon]
            try:
                self.known[epsilon] = self.exact(epsilon)
            except NotCertified:
                if not below:
                    raise
                self.known[epsilon] = Interval(0.0, min(below))
        return self.known[epsilon]


class LatticeCurve:
    """The profile by the lattice alone, a method independent of the contour."""

    def __init__(self, orders: tuple[Components, ...]) -> None:
        self.orders = [_order_of(order) for order in orders]

    def delta(self, epsilon: float, room: float) -> Interval:
        """Within a few thousandths, or within `room`, where the lattice can reach that."""
        return _worst(self.orders, lambda order, worst: self._of(order, epsilon, room, worst))

    def _of(self, order: _Order, epsilon: float, room: float, worst: float) -> Interval:
        found = order.bounds(epsilon, room, _COARSE, worst)
        if found.width <= max(room, _NEAR * _COARSE * found.upper) or found.upper <= worst:
            return found
        return found.intersect(_exponential(lattice.log_delta(order.components, epsilon, _COARSE)))


def _worst(orders: list[_Order], asked: Callable[[_Order, float], Interval]) -> Interval:
    """The worst of the orders; one that is proved not to be it need not be known closely."""
    found, worst = list[Interval](), 0.0
    for order in orders:
        found.append(asked(order, worst))
        worst = max(worst, found[-1].lower)
    return Interval.worst(found)


class _Order:
    """One order of the neighbours and the laws built for it so far."""

    def __init__(self, components: Components) -> None:
        self.components = tuple((pair, n) for pair, n in components if n > 0)
        self.steps = sum(n for _, n in self.components)
        self.highest = largest_loss(self.components).upper
        self.laws: list[LatticeLaw] = []
        self.full = not self.components or len(self.components) > _MOST_KINDS
        self.full |= not all(pair.on_lattice for pair, _ in self.components)

    def bounds(self, epsilon: float, room: float, width: float, worst: float) -> Interval:
        """From the laws there are, and one more where they are too wide, and not below `worst`."""
        if epsilon >= self.highest:
            return _exponential(infinite_log_mass(self.components))
        found = Interval(0.0, 1.0)
        for law in sorted(self.laws, key=lambda law: abs(law.plan.goal.epsilon - epsilon)):
            found = found.intersect(_exponential(law.log_delta(epsilon)))
            if found.width <= max(room, _NEAR * width * found.upper) or found.upper <= worst:
                return found
        new = None if self.full else self._law(epsilon, width)
        return found if new is None else found.intersect(_exponential(new.log_delta(epsilon)))

    def _law(self, epsilon: float, width: float) -> LatticeLaw | None:
        """A new law planned for this epsilon, where it is cheap and none like it was built."""
        guess = min(guesses(self.components, epsilon)[0], -1e-3)
        plan = plain_plan(self.components, epsilon, guess, width)
        if plan.work > _MOST_WORK or any(plan.no_finer_than(law.plan) for law in self.laws):
            return None
        law = build(plan)
        self.laws.append(law)
        useless = law.log_delta(epsilon).width > 30.0 * _COARSE  # rare large losses decide
        self.full = useless or len(self.laws) >= _MOST_LAWS
        return law


@lru_cache(maxsize=4)
def _order_of(components: Components) -> _Order:
    """An order whose laws are kept, for trade-off curves and second methods alike."""
    return _Order(components)


def _exponential(log_value: Interval) -> Interval:
    lower, upper = math.exp(log_value.lower), math.exp(log_value.upper)
    return Interval(lower * (1.0 - 1e-15), min(upper * (1.0 + 1e-15), 1.0))
