"""Lines of the inversion integral: the first that proves a value to the width asked for.

And the other order of the neighbours: delta'(eps) = 1 - e^eps + e^eps delta(-eps) there. So a line
made for delta at eps, read at -eps too, bounds both orders, and as aliases are >= 0 the sum itself
is the bound. Where too much would cancel, Chernoff's bound of the other order is compared instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components, sum_law
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import (
    NO_LIMIT,
    Limit,
    Line,
    LogEnclosure,
    SaddleReading,
    kernel_slope,
    log_estimate,
    log_kernel,
    log_peak,
    saddle,
    saddle_of_level,
)
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.rounding import UNIT

AlsoRead = Callable[[float, float], SaddleReading]
CAUTION = 0.1  # see inversion.plan
FINE = 1e-12  # error allowed to a line, of g
_SHARE = -5.0  # ln of the error of the other delta that is asked for
_TILTS = np.geomspace(0.1, 10.0, 33)  # times -ln delta / eps
_MARGIN = 1e-3  # by which an estimate must be smaller for a proof to be tried
_MOST_TILT = 1e100  # whose square a double holds: epsilon may be next to nothing


def certified_value(
    law: SumLaw,
    x: float,
    relative_width: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
    also: AlsoRead | None = None,
) -> tuple[LogEnclosure, Line]:
    """ln g(x) and its line, on further lines when the guess was far off or too much cancelled.

    `also` tells from x and ln g where else the line is read.
    """
    c = saddle(law, x)
    guess, caution, best = _log_guess(law, c, x), CAUTION, None
    for _ in range(4):
        try:
            reading = None if also is None else also(x, guess)
            line = certified_line(law, c, x, guess, caution, limit, tolerance, reading)
        except NotCertified:
            if best is None:
                raise
            break
        found = line.certified(x)
        best = found if best is None or found.width < best.width else best
        if found.width <= relative_width:
            return found, line
        guess, caution = _better_guess(line, found), 4.0 * caution
    assert best is not None
    raise NotCertified(
        f"The inversion integral proved a relative width of {best.width:.1e} where "
        f"{relative_width:.1e} was asked for. Ask for a wider interval, or use the lattice method.",
        (best.lower, best.upper),
    )


def _better_guess(line: Line, found: LogEnclosure) -> float:
    """The least that ln g could be, to size the aliases against."""
    low = found.lower if found.lower > -math.inf else min(found.upper, line.log_guess) - 5.0
    return min(low, line.log_guess - 3.0)


def _log_guess(law: SumLaw, c: float, x: float) -> float:
    """The estimate of ln g(x) from a line near its saddle point."""
    k, _, k2 = law.moments(c)
    curvature = k2 + kernel_slope(c)[1]
    return k - c * x + log_kernel(c) - 0.5 * math.log(2.0 * math.pi * curvature)


def certified_line(
    law: SumLaw,
    c: float,
    x: float,
    guess: float,
    caution: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
    also: SaddleReading | None = None,
) -> Line:
    try:
        return Line(law, c, x, guess, tolerance, caution, limit, also)
    except OverflowError as error:
        raise NotCertified(
            f"The inversion integral needs too much work ({error}). Use the lattice method."
        ) from error


# ---- the other order of the neighbours: is it proved not to be the worse one?
def are_reversed(one: Components, other: Components) -> bool:
    """Whether the pairs of one are those of the other with P and Q exchanged."""
    if any(pair.is_discrete for pair, _ in (*one, *other)):
        return False
    turned, there = Counter[AbstractLossPair](), Counter[AbstractLossPair]()
    for pair, count in one:
        turned[pair.reversed()] += count
    for pair, count in other:
        there[pair] += count
    return turned == there


def at_reverse(epsilon: float, log_delta: float) -> SaddleReading:
    """The point where a line is read for the other order: delta(-eps) to e^-eps delta."""
    return SaddleReading(-epsilon, log_delta - epsilon + _SHARE)


def log_reverse(line: Line, epsilon: float) -> float:
    """A proved upper bound on ln delta(eps) of the other order, from the line of the first."""
    upper = line.certified(-epsilon).upper
    if upper > 1.0:
        return 0.0
    scaled = math.expm1(-epsilon) + math.exp(upper) + 16.0 * UNIT  # e^-eps delta
    value = math.log(max(scaled, UNIT)) + epsilon
    return min(0.0, value + 8.0 * UNIT * (abs(value) + epsilon + 1.0))


def log_chernoff(components: Components, epsilon: float, log_enough: float) -> float:
    """Chernoff's bound on ln delta(eps), proved where it is below log_enough; 0 elsewhere."""
    if epsilon <= 0.0 or log_enough >= 0.0:
        return 0.0
    if any(pair.infinite_mass > 0.0 for pair, _ in components):  # the transform leaves them out
        return 0.0
    try:
        return _log_chernoff(sum_law(components), epsilon, log_enough)
    except (OverflowError, NotCertified):
        return 0.0


def _log_chernoff(law: SumLaw, epsilon: float, log_enough: float) -> float:
    tilts = _TILTS * min(-log_enough / epsilon, _MOST_TILT)
    tilts = tilts[tilts <= law.max_tilt]
    if len(tilts) == 0:
        return 0.0
    logs = law.values(tilts) - tilts * epsilon + log_peak(tilts)
    tilt = float(tilts[logs.argmin()])
    if logs.min() > log_enough - _MARGIN:
        return 0.0
    value, error = law.real(tilt, math.log(max(law.steps, 1.0)) + 8.0)
    found = value + error - tilt * epsilon + float(log_peak(np.array(tilt)))
    return min(0.0, found + 16.0 * UNIT * (abs(value) + tilt * epsilon + abs(found) + 4.0))


# ---- The smallest epsilon for a delta: a bracketed search over lines, then the certificate
# docs/certificate_argument.md, 4.


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
