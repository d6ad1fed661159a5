"""One value of the inversion integral: the first line that proves it to the width asked for."""

from __future__ import annotations

import math

from tightrope.errors import NotCertified
from tightrope.numerics.inversion import NO_LIMIT, Enclosure, Limit, Line
from tightrope.numerics.inversion_kernel import Kernel
from tightrope.numerics.inversion_law import TotalLaw
from tightrope.numerics.inversion_saddle import saddle

__all__ = ["certified_value", "certified_line", "FINE", "COARSE", "CAUTION"]

CAUTION = 0.1  # see inversion_saddle.plan
FINE, COARSE = 1e-12, 3e-3  # error allowed to a line: of delta; of the width asked for, with jumps


def certified_value(
    law: TotalLaw,
    kernel: Kernel,
    x: float,
    relative_width: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
) -> Enclosure:
    """ln g(x), on further lines when the first guess of g was far off or too much cancelled."""
    c = saddle(law, kernel, x)
    guess, caution, best = None, CAUTION, None
    for _ in range(4):
        try:
            line = certified_line(law, kernel, c, x, guess, caution, limit, tolerance)
        except NotCertified:
            if best is None:
                raise
            break
        found = line.certified(x)
        best = found if best is None or found.width < best.width else best
        if found.width <= relative_width:
            return found
        guess, caution = _better_guess(line, found), 4.0 * caution
    assert best is not None
    raise _too_wide(best, relative_width)


def _better_guess(line: Line, found: Enclosure) -> float:
    """What ln g could be as low as, to size the aliases against."""
    low = found.lower if found.lower > -math.inf else min(found.upper, line.log_guess) - 5.0
    return min(low, line.log_guess - 3.0)


def certified_line(
    law: TotalLaw,
    kernel: Kernel,
    c: float,
    x: float,
    guess: float | None,
    caution: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
) -> Line:
    if guess is None:
        k, _, k2 = law.moments(c)
        guess = k - c * x + kernel.log_size(c)
        guess -= 0.5 * math.log(2.0 * math.pi * (k2 + kernel.slope(c)[1]))
    try:
        return Line(law, kernel, c, x, guess, tolerance, caution, limit)
    except OverflowError as error:
        raise NotCertified(
            f"The inversion integral needs too much work ({error}). Use the lattice method."
        ) from error


def _too_wide(found: Enclosure, relative_width: float) -> NotCertified:
    return NotCertified(
        f"The inversion integral proved a relative width of {found.width:.1e} where "
        f"{relative_width:.1e} was asked for. Ask for a wider interval, or use the lattice method.",
        (found.lower, found.upper),
    )
