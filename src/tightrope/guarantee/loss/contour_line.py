"""One value of the inversion integral: the first line that proves it to the width asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

from tightrope.errors import NotCertified
from tightrope.numerics import inversion_kernel as kernel
from tightrope.numerics.inversion import NO_LIMIT, Enclosure, Limit, Line
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.inversion_saddle import Reading, saddle

__all__ = ["AlsoRead", "certified_value", "certified_line", "FINE", "CAUTION"]

AlsoRead = Callable[[float, float], Reading]

CAUTION = 0.1  # see inversion_saddle.plan
FINE = 1e-12  # error allowed to a line, of g


def certified_value(
    law: SumLaw,
    x: float,
    relative_width: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
    also: AlsoRead | None = None,
) -> tuple[Enclosure, Line]:
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


def _better_guess(line: Line, found: Enclosure) -> float:
    """What ln g could be as low as, to size the aliases against."""
    low = found.lower if found.lower > -math.inf else min(found.upper, line.log_guess) - 5.0
    return min(low, line.log_guess - 3.0)


def _log_guess(law: SumLaw, c: float, x: float) -> float:
    """The estimate of ln g(x) from a line near its saddle point."""
    k, _, k2 = law.moments(c)
    curvature = k2 + kernel.slope(c)[1]
    return k - c * x + kernel.log_size(c) - 0.5 * math.log(2.0 * math.pi * curvature)


def certified_line(
    law: SumLaw,
    c: float,
    x: float,
    guess: float,
    caution: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
    also: Reading | None = None,
) -> Line:
    try:
        return Line(law, c, x, guess, tolerance, caution, limit, also)
    except OverflowError as error:
        raise NotCertified(
            f"The inversion integral needs too much work ({error}). Use the lattice method."
        ) from error
