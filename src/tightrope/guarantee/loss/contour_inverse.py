"""The smallest epsilon for a delta: a bracketed search over lines, then the certificate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.contour_line import CAUTION, certified_line, certified_value
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import MAX_FREQUENCIES, Enclosure, Line
from tightrope.numerics.inversion_kernel import EXCESS
from tightrope.numerics.inversion_law import TotalLaw
from tightrope.numerics.inversion_saddle import log_estimate, saddle, saddle_of_level
from tightrope.numerics.quadrature import UNIT

__all__ = ["Inverse", "invert_closed_form"]

_MAX_LINES = 24


@final
class Inverse:
    """Newton's method on ln g on one line, then the certificate on both sides of the root."""

    def __init__(
        self,
        law: TotalLaw,
        log_target: float,
        relative_width: float,
        slack: float,
        most: int = MAX_FREQUENCIES,
    ) -> None:
        self.law, self.log_target, self.relative_width = law, log_target, relative_width
        self.most = most  # frequencies
        self.slack = slack  # the target is rounded: ln, and the infinite part taken off

    def solve(self) -> Interval:
        c = saddle_of_level(self.law, EXCESS, self.log_target)
        x = log_estimate(self.law, EXCESS, c)[0]
        if x <= 0.0:
            at_zero = certified_value(self.law, EXCESS, 0.0, 1e-6)
            if at_zero.upper <= self.log_target - self.slack:
                return Interval(0.0, 0.0)
            x = 0.0
        low, high, caution = 0.0, math.inf, CAUTION
        for _ in range(_MAX_LINES):
            c = saddle(self.law, EXCESS, x, math.log(c))
            line = certified_line(self.law, EXCESS, c, x, self.log_target, caution, self.most)
            at = line.certified(x)
            if at.width < 1.0:
                if at.lower > self.log_target:
                    low = max(low, x)
                elif at.upper < self.log_target:
                    high = min(high, x)
                root = self._newton(line, x)
                if abs(root - x) * line.c < 3.0:
                    answer = self._verify(line, max(root, 0.0))
                    if answer is not None:
                        return answer
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
        raise NotCertified(
            "No epsilon of the relative width asked for could be proved by the inversion integral. "
            "Use the lattice method."
        )

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
            if high - low > self.relative_width * high:
                return None
            above = line.certified(low).lower >= self.log_target + self.slack or low == 0.0
            below = line.certified(high).upper <= self.log_target - self.slack
            if above and below:
                return Interval(low, high)
            reach *= 2.0
        return None


def _between(low: float, high: float, spread: float) -> float:
    if high == math.inf:
        return 2.0 * low + spread
    return math.sqrt(low * high) if low > 0.1 * high else 0.5 * (low + high)


def invert_closed_form(
    log_delta_at: Callable[[float], Enclosure], log_target: float, largest: float
) -> Interval:
    """Bisection on proved values of a decreasing function."""
    slack = 8.0 * UNIT * (abs(log_target) + 4.0)
    if log_delta_at(0.0).upper <= log_target - slack:
        return Interval(0.0, 0.0)
    low, high = 0.0, 1.0
    while high < largest and log_delta_at(high).upper > log_target - slack:
        high *= 2.0
    high = min(high, largest)
    outer = low, high
    for _ in range(200):
        mid = 0.5 * (low + high)
        if not low < mid < high or high - low < 1e-15 * high:
            break
        at = log_delta_at(mid)
        if at.upper <= log_target - slack:
            high = mid
        else:
            low = mid
    upper = high
    low, high = outer[0], upper
    for _ in range(200):
        mid = 0.5 * (low + high)
        if not low < mid < high or high - low < 1e-15 * high:
            break
        if log_delta_at(mid).lower >= log_target + slack:
            low = mid
        else:
            high = mid
    return Interval(low, upper)
