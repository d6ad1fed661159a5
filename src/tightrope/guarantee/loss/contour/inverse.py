"""The smallest epsilon for a delta: a bracketed search over lines, then the certificate.

docs/certificate_argument.md, 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.contour.line import CAUTION, FINE, AlsoRead, certified_line
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import Limit, Line
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.inversion_saddle import log_estimate, saddle, saddle_of_level
from tightrope.numerics.rounding import UNIT

__all__ = ["EpsilonGoal", "Inverse", "invert_closed_form"]

_MAX_LINES = 24


@final
@dataclass(frozen=True)
class EpsilonGoal:
    """The target of ln g, the width of epsilon asked for, and the rounding of the target."""

    log_target: float
    relative_width: float
    slack: float


@final
class Inverse:
    """Newton's method on ln g on one line, then the certificate on both sides of the root.

    log_missing: ln of what the law may miss of g.
    """

    def __init__(
        self,
        law: SumLaw,
        log_missing: float,
        goal: EpsilonGoal,
        limit: Limit,
        tolerance: float = FINE,
        also: AlsoRead | None = None,
    ) -> None:
        self.law, self.limit, self.tolerance, self.also = law, limit, tolerance, also
        self.log_target, self.relative_width = goal.log_target, goal.relative_width
        if log_missing > self.log_target - 1.0:
            raise NotCertified("A law leaves out too much to prove anything; use the lattice.")
        # -ln(1 - m) <= 2 m for what is missing, m <= 1/e of the target
        self.slack = goal.slack + 2.0 * math.exp(min(log_missing - self.log_target, 700.0))
        self.line: Line | None = None  # of the answer
        self.best: Interval | None = None

    @property
    def start(self) -> float:
        """The saddle-point estimate of the answer; negative where it is 0."""
        return log_estimate(self.law, saddle_of_level(self.law, self.log_target))[0]

    def solve(self, x: float) -> Interval:
        try:
            found = self._search(max(x, 0.0))
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

    def _search(self, x: float) -> Interval | None:
        low, high, caution, log_c = 0.0, math.inf, CAUTION, 0.0
        seen: set[tuple[float, float, float]] = set()
        for _ in range(_MAX_LINES):
            c = saddle(self.law, x, log_c)
            also = None if self.also is None else self.also(x, self.log_target)
            line = certified_line(
                self.law, c, x, self.log_target, caution, self.limit, self.tolerance, also
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
                if abs(root - x) * line.c < 3.0:
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


def invert_closed_form(
    log_delta_at: Callable[[float], Interval], log_target: float, largest: float
) -> Interval:
    """Bisection on proved values of a decreasing function, on both sides."""
    slack = 8.0 * UNIT * (abs(log_target) + 4.0)

    def safe(x: float) -> bool:
        return log_delta_at(x).upper <= log_target - slack

    if safe(0.0):
        return Interval(0.0, 0.0)
    high = 1.0
    while high < largest and not safe(high):
        high *= 2.0
    upper = _bisected(safe, min(high, largest))[1]
    lower = _bisected(lambda x: log_delta_at(x).lower < log_target + slack, upper)[0]
    return Interval(lower, upper)


def _bisected(holds: Callable[[float], bool], high: float) -> tuple[float, float]:
    """(low, high) close together: `holds` at high, not at low (or low = 0)."""
    low = 0.0
    for _ in range(200):
        mid = 0.5 * (low + high)
        if not low < mid < high or high - low < 1e-15 * high:
            break
        low, high = (low, mid) if holds(mid) else (mid, high)
    return low, high
