"""Lines of the inversion integral: the first that proves a value to the width asked for.

And the other order of the neighbours: delta'(eps) = 1 - e^eps + e^eps delta(-eps) there. So a line
made for delta at eps, read at -eps too, bounds both orders, and as aliases are >= 0 the sum itself
is the bound. Where too much would cancel, Chernoff's bound of the other order is compared instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.guarantee.loss.contour.law import sum_law
from tightrope.numerics.inversion import NO_LIMIT, Limit, Line, LogEnclosure
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.inversion_saddle import (
    SaddleReading,
    kernel_slope,
    log_kernel,
    log_peak,
    saddle,
)
from tightrope.numerics.rounding import UNIT

__all__ = [
    "CAUTION",
    "FINE",
    "AlsoRead",
    "are_reversed",
    "at_reverse",
    "certified_line",
    "certified_value",
    "log_chernoff",
    "log_reverse",
]

AlsoRead = Callable[[float, float], SaddleReading]
CAUTION = 0.1  # see inversion_saddle.plan
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
    """What ln g could be as low as, to size the aliases against."""
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
    """Where a line must be read for the other order; delta(-eps) is needed to e^-eps delta."""
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
