"""The smallest epsilon for a delta: a bracketed search over lines, then the certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.contour_line import (
    CAUTION,
    COARSE,
    FINE,
    AlsoRead,
    certified_line,
    certified_value,
)
from tightrope.guarantee.loss.contour_one_jump import OneJump
from tightrope.guarantee.loss.contour_split import Jumps
from tightrope.guarantee.loss.contour_ways import one_step
from tightrope.guarantee.loss.cumulant import sum_law
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import NO_LIMIT, Limit, Line
from tightrope.numerics.inversion_kernel import EXCESS
from tightrope.numerics.inversion_law import TotalLaw
from tightrope.numerics.inversion_saddle import log_estimate, saddle, saddle_of_level
from tightrope.numerics.quadrature import UNIT

__all__ = [
    "Goal",
    "Inverted",
    "accepted",
    "invert_whole",
    "invert_none",
    "invert_one_jump",
    "invert_jumps",
]

_MAX_LINES = 24
_ACCEPTED = 1e-4  # relative width
_SECANT, _LARGEST = 1.4, 14.0  # longest step and end of the search in ln epsilon
_AGAIN, _FURTHEST = Limit(8000, 3e7), 12.0  # worth spending on a second start; how far it may be
_LOWER = 0.9  # laws with jumps are made for a little less than epsilon


@final
@dataclass(frozen=True)
class Goal:
    """The target of ln g, the width of epsilon asked for, and the rounding of the target."""

    log_target: float
    relative_width: float
    slack: float


# epsilon, and the line of the whole law that it was read from, if it was
Inverted = tuple[Interval, Line | None]


def accepted(lower: float, upper: float) -> Inverted | None:
    """A wide answer, where it is narrow enough to be given at all."""
    return (Interval(lower, upper), None) if upper - lower <= _ACCEPTED * upper else None


def invert_whole(law: TotalLaw, goal: Goal, limit: Limit, also: AlsoRead | None = None) -> Inverted:
    """The smallest epsilon >= 0, from the transform of the whole law."""
    x = log_estimate(law, EXCESS, saddle_of_level(law, EXCESS, goal.log_target))[0]
    if x <= 0.0:
        try:
            at_zero = certified_value(law, EXCESS, 0.0, 1e-6, limit)
        except NotCertified as problem:  # what it reached is no epsilon
            raise NotCertified(str(problem)) from problem
        if at_zero.upper <= goal.log_target - goal.slack:
            return Interval(0.0, 0.0), None
    inverse = Inverse(goal, lambda _: (law, -math.inf, 0.0), limit, FINE, also)
    return inverse.solve(max(x, 0.0)), inverse.line


def invert_jumps(held: Components, goal: Goal) -> Inverted:
    """The same from the law with at least one jump, which holds from an epsilon on."""
    jumps = Jumps(held, goal.log_target, goal.relative_width)

    @lru_cache(maxsize=2)
    def law_at(x: float) -> tuple[TotalLaw, float, float]:
        return *jumps.at(_LOWER * x), _LOWER * x

    tolerance = max(FINE, COARSE * goal.relative_width)
    nearest: NotCertified | None = None
    limit = NO_LIMIT
    for start in _starts(held, goal.log_target):
        try:
            return Inverse(goal, law_at, limit, tolerance).solve(start), None
        except NotCertified as problem:
            if nearest is None or nearest.reached is None:
                nearest = problem
        limit = _AGAIN
    assert nearest is not None
    raise nearest


def invert_one_jump(held: Components, goal: Goal) -> Inverted:
    """The same where one jump alone decides."""
    jump = OneJump.of(held, goal.log_target, goal.relative_width)
    if not jump.is_plausible:
        raise NotCertified("More than one step may decide; use the lattice method.")
    return jump.epsilon(_one_step_epsilon(held, goal.log_target), goal.slack), None


def _starts(held: Components, log_target: float) -> Iterator[float]:
    """Where one step decides, and the saddle-point estimate, by which several may decide.

    The latter is of no use where it is far larger: near a phase transition it lies between.
    """
    first = max(_one_step_epsilon(held, log_target), 1e-300)
    yield first
    whole = sum_law(held)
    second = log_estimate(whole, EXCESS, saddle_of_level(whole, EXCESS, log_target))[0]
    if 1.05 * first < second < _FURTHEST * first:
        yield second


def invert_none(held: Components, goal: Goal, limit: Limit) -> Inverted:
    """The same from the law without any jump, where jumps are too rare to matter."""
    law, missing = Jumps(held, goal.log_target, goal.relative_width).none()
    x = log_estimate(law, EXCESS, saddle_of_level(law, EXCESS, goal.log_target))[0]
    tolerance = max(FINE, COARSE * goal.relative_width)
    inverse = Inverse(goal, lambda _: (law, missing, 0.0), limit, tolerance)
    return inverse.solve(max(x, 0.0)), None


def _one_step_epsilon(held: Components, log_target: float) -> float:
    """Where the sum of the steps' own delta is the target, to a few percent: secants in ln eps."""

    def excess(log_x: float) -> float:
        return max(one_step(held, math.exp(log_x)) - log_target, -1e4)

    before, at, last, value = math.inf, 0.0, math.nan, excess(0.0)
    for _ in range(30):
        slope = (value - last) / (at - before)
        move = -value / slope if slope < 0.0 else math.copysign(math.inf, value)
        move = max(-_SECANT, min(_SECANT, move))
        if abs(move) < 0.02 or at + move > _LARGEST:
            break
        before, at, last = at, at + move, value
        value = excess(at)
    return math.exp(at)


@final
class Inverse:
    """Newton's method on ln g on one line, then the certificate on both sides of the root.

    law_at(x): a law, ln of what it misses of g, and the x from which on that holds.
    """

    def __init__(
        self,
        goal: Goal,
        law_at: Callable[[float], tuple[TotalLaw, float, float]],
        limit: Limit,
        tolerance: float,
        also: AlsoRead | None = None,
    ) -> None:
        self.law_at, self.limit, self.tolerance = law_at, limit, tolerance
        self.also = also
        self.line: Line | None = None  # of the answer
        self.log_target, self.relative_width = goal.log_target, goal.relative_width
        self.slack, self.lowest = goal.slack, 0.0
        self._rounding = goal.slack
        self.best: Interval | None = None

    def solve(self, x: float) -> Interval:
        try:
            found = self._search(x)
        except NotCertified as problem:
            raise self._refusal(str(problem)) from problem
        if found is None:
            raise self._refusal(
                "No epsilon of the relative width asked for could be proved by the inversion "
                "integral. Use the lattice method."
            )
        return found

    @property
    def _best_width(self) -> float:
        return math.inf if self.best is None else self.best.width

    def _refusal(self, message: str) -> NotCertified:
        best = self.best
        return NotCertified(message, None if best is None else (best.lower, best.upper))

    def _law(self, x: float) -> TotalLaw:
        law, missing, self.lowest = self.law_at(x)
        if missing > self.log_target - 1.0:
            raise NotCertified("A law leaves out too much to prove anything; use the lattice.")
        self.slack = self._rounding + 2.0 * math.exp(min(missing - self.log_target, 700.0))
        return law

    def _search(self, x: float) -> Interval | None:
        low, high, caution, law, log_c = 0.0, math.inf, CAUTION, self._law(x), 0.0
        seen: set[tuple[float, float, float]] = set()
        for _ in range(_MAX_LINES):
            if x < self.lowest or x * _LOWER**2 > self.lowest > 0.0:
                law = self._law(x)
            c = saddle(law, EXCESS, x, log_c)
            also = None if self.also is None else self.also(x, self.log_target)
            line = certified_line(
                law, EXCESS, c, x, self.log_target, caution, self.limit, self.tolerance, also
            )
            at, log_c = line.certified(x), math.log(c)
            if (x, line.c, line.period) in seen:
                return None
            seen.add((x, line.c, line.period))
            if at.width < 1.0:
                if at.lower > self.log_target:
                    low = max(low, x)
                elif at.upper < self.log_target:
                    high = min(high, x)
                root = self._newton(line, x)
                if abs(root - x) * line.c < 3.0 and root >= self.lowest:
                    before, answer = self._best_width, self._verify(line, max(root, 0.0))
                    if answer is not None:
                        self.line = line
                        return answer
                    if self._best_width > 0.3 * before:
                        return None  # other lines do not help
                    caution *= 3.0  # too much cancelled for the width asked for
                x = root
            elif at.upper <= self.log_target:
                high, x = min(high, x), -math.inf
            else:
                caution *= 3.0
            if caution > 30.0:
                break
            if not low <= x < high:
                x = _between(low, high, line.spread)
        return None

    def _newton(self, line: Line, x: float) -> float:
        """The root on this line, or the point where the line stops being useful."""
        start, reach = x, 2.0 * line.spread
        for _ in range(12):
            value, slope = line.quick(x)
            if value == -math.inf or slope >= 0.0:
                return 0.5 * (x + start)
            step = (value - self.log_target) / slope
            x -= max(-reach, min(reach, step))
            if abs(x - start) > reach or abs(step) * line.c < 1e-13 * (1.0 + abs(self.log_target)):
                break
        return x

    def _verify(self, line: Line, x: float) -> Interval | None:
        """Both ends proved on the same line, or None."""
        at = line.certified(x)
        if not at.width < 1.0:
            return None
        slope = max(-line.quick(x)[1], 1e-300)
        reach = (at.width + 4.0 * self.slack) / slope + 8.0 * UNIT * x
        for _ in range(6):
            low, high = max(x - reach, 0.0), x + reach
            if low < self.lowest:
                return None
            above = line.certified(low).lower >= self.log_target + self.slack or low == 0.0
            below = line.certified(high).upper <= self.log_target - self.slack
            if above and below:
                return self._kept(Interval(low, high))
            reach *= 2.0
        return None

    def _kept(self, found: Interval) -> Interval | None:
        """The interval if it is as narrow as asked for; otherwise it is only remembered."""
        if found.width < self._best_width:
            self.best = found
        return found if found.width <= self.relative_width * found.upper else None


def _between(low: float, high: float, spread: float) -> float:
    if high == math.inf:
        return 2.0 * low + spread
    return math.sqrt(low * high) if low > 0.1 * high else 0.5 * (low + high)
