"""One value of the inversion integral for a composition: which line, and what may be left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.cumulant import log_dropped, sum_law
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.numerics.inversion import MAX_FREQUENCIES, Enclosure, Line
from tightrope.numerics.inversion_kernel import EXCESS, Kernel
from tightrope.numerics.inversion_law import TotalLaw
from tightrope.numerics.inversion_saddle import log_estimate, saddle

__all__ = [
    "finite_log_delta",
    "certified_value",
    "certified_line",
    "first_certified",
    "CUT_NATS",
    "CAUTION",
]

Answer = TypeVar("Answer")
SHARPNESS = (3.0, 16.0, 64.0)  # of the cut, tried in turn
CUT_NATS = 32.0  # losses left out weigh about e^-32 of delta
CAUTION = 0.1  # see inversion_saddle.plan
_QUICK = 500  # frequencies worth spending before something is cut off


def finite_log_delta(held: Components, epsilon: float, relative_width: float) -> Enclosure:
    """The finite part of ln delta, with sharper and sharper cuts until one is certified."""

    def answer(sharpness: float | None, most: int) -> Enclosure:
        if sharpness is None:
            return certified_value(sum_law(held), EXCESS, epsilon, relative_width, most)
        return _cut_log_delta(held, epsilon, relative_width, sharpness)

    return first_certified(held, answer)


def first_certified(held: Components, answer: Callable[[float | None, int], Answer]) -> Answer:
    """The first certified answer of (sharpness of the cut or None, most frequencies).

    The whole law first, where few frequencies do; otherwise cuts, of which sharper ones hold larger
    tilts back but need finer grids.
    """
    if not any(isinstance(p, SampledGaussianPair) and p.direction == "remove" for p, _ in held):
        return answer(None, MAX_FREQUENCIES)
    ways = [(None, _QUICK), *((sharpness, MAX_FREQUENCIES) for sharpness in SHARPNESS[:-1])]
    for way in ways:
        try:
            return answer(*way)
        except NotCertified:
            continue
    return answer(SHARPNESS[-1], MAX_FREQUENCIES)


def _cut_log_delta(
    held: Components, epsilon: float, relative_width: float, sharpness: float
) -> Enclosure:
    """The finite part of ln delta, from a law without the losses too rare to matter.

    Each of them adds at most its probability to delta. Without them the tilted law has no second
    mode, and there is no phase transition (theory D(i), hard regime).
    """
    whole = sum_law(held)
    at, estimate, _ = log_estimate(whole, EXCESS, c := saddle(whole, EXCESS, epsilon))
    log_guess = min(estimate - c * (epsilon - at), 0.0)
    for _ in range(4):
        law = sum_law(held, CUT_NATS - log_guess, sharpness)
        found = certified_value(law, EXCESS, epsilon, relative_width)
        missing = log_dropped(law)
        if missing <= found.lower - 0.8 * CUT_NATS:
            break
        log_guess = found.lower
    share = math.exp(min(missing - found.lower, 700.0))
    if share > relative_width:
        raise _too_wide(found, relative_width)
    return Enclosure(
        found.lower,
        found.upper + share,
        found.quadrature,
        found.aliasing,
        found.truncation + share,
        found.rounding,
    )


def certified_value(
    law: TotalLaw,
    kernel: Kernel,
    x: float,
    relative_width: float,
    most: int = MAX_FREQUENCIES,
) -> Enclosure:
    """ln g(x), on further lines when the first guess of g was far off or too much cancelled."""
    c = saddle(law, kernel, x)
    guess, caution = None, CAUTION
    for _ in range(4):
        line = certified_line(law, kernel, c, x, guess, caution, most)
        found = line.certified(x)
        if found.width <= relative_width:
            return found
        guess, caution = _better_guess(line, found), 4.0 * caution
    raise _too_wide(found, relative_width)


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
    most: int = MAX_FREQUENCIES,
) -> Line:
    if guess is None:
        k, _, k2 = law.moments(c)
        guess = k - c * x + kernel.log_size(c)
        guess -= 0.5 * math.log(2.0 * math.pi * (k2 + kernel.slope(c)[1]))
    try:
        return Line(law, kernel, c, x, guess, caution=caution, most=most)
    except OverflowError as error:
        raise NotCertified(
            f"The inversion integral needs too much work ({error}). Use the lattice method."
        ) from error


def _too_wide(found: Enclosure, relative_width: float) -> NotCertified:
    return NotCertified(
        f"The inversion integral proved a relative width of {found.width:.1e} where "
        f"{relative_width:.1e} was asked for. Ask for a wider interval, or use the lattice method."
    )
