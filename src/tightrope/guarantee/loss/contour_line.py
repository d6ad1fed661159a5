"""One value of the inversion integral for a composition: which line, and what may be left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.closed_form import log_delta_single
from tightrope.guarantee.loss.contour_split import Jumps
from tightrope.guarantee.loss.cumulant import sum_law
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
    "FINE",
    "COARSE",
    "one_step",
    "CAUTION",
]

Answer = TypeVar("Answer")
CAUTION = 0.1  # see inversion_saddle.plan
FINE, COARSE = 1e-12, 1e-3  # error allowed to a line: of delta; of the width asked for, with jumps
_QUICK = 500  # frequencies worth spending before jumps are followed apart
_LEVELS = 4


def finite_log_delta(held: Components, epsilon: float, relative_width: float) -> Enclosure:
    """The finite part of ln delta."""
    return first_certified(
        held,
        lambda most: certified_value(sum_law(held), EXCESS, epsilon, relative_width, most),
        lambda most: _by_level(
            held, epsilon, relative_width, Jumps.none, _saddle_level(held, epsilon), most
        ),
        lambda: _by_level(
            held, epsilon, relative_width, lambda jumps: jumps.at(epsilon), one_step(held, epsilon)
        ),
    )


def first_certified(
    held: Components,
    whole: Callable[[int], Answer],
    none: Callable[[int], Answer],
    jumps: Callable[[], Answer],
) -> Answer:
    """The whole law or the law without jumps where few frequencies do; jumps apart; at any cost.

    Raises the NotCertified that came nearest.
    """
    if not any(isinstance(p, SampledGaussianPair) and p.direction == "remove" for p, _ in held):
        return whole(MAX_FREQUENCIES)
    problems = []
    slow = MAX_FREQUENCIES
    ways = partial(whole, _QUICK), partial(none, 5 * _QUICK), jumps, partial(none, slow)
    for way in (*ways, partial(whole, slow)):
        try:
            return way()
        except NotCertified as problem:
            problems.append(problem)
    reached = [p for p in problems if p.reached is not None]
    raise min(reached, key=_width) if reached else problems[-1]


def _width(problem: NotCertified) -> float:
    assert problem.reached is not None
    return problem.reached[1] - problem.reached[0]


def _by_level(
    held: Components,
    epsilon: float,
    relative_width: float,
    law_of: Callable[[Jumps], tuple[TotalLaw, float]],
    log_guess: float,
    most: int = MAX_FREQUENCIES,
) -> Enclosure:
    """The finite part of ln delta, from a law that leaves something out.

    What it leaves out adds at most its probability to delta, and how much that may be follows from
    delta, so that a first guess is corrected.
    """
    tolerance = max(FINE, COARSE * relative_width)
    for _ in range(_LEVELS):
        law, missing = law_of(Jumps(held, log_guess, relative_width))
        found = certified_value(law, EXCESS, epsilon, relative_width, most, tolerance)
        share = math.exp(min(missing - found.lower, 700.0))
        if share <= 0.1 * relative_width:
            break
        log_guess = found.lower
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


def _saddle_level(held: Components, epsilon: float) -> float:
    """The saddle-point estimate of ln delta."""
    whole = sum_law(held)
    at, estimate, _ = log_estimate(whole, EXCESS, c := saddle(whole, EXCESS, epsilon))
    return min(estimate - c * (epsilon - at), 0.0)


def one_step(held: Components, epsilon: float) -> float:
    """ln of the sum of the steps' own delta: the size of delta where one large loss decides."""
    logs = [math.log(n) + log_delta_single(pair, epsilon).upper for pair, n in held]
    return min(float(np.logaddexp.reduce(np.array(logs))), 0.0)


def certified_value(
    law: TotalLaw,
    kernel: Kernel,
    x: float,
    relative_width: float,
    most: int = MAX_FREQUENCIES,
    tolerance: float = FINE,
) -> Enclosure:
    """ln g(x), on further lines when the first guess of g was far off or too much cancelled."""
    c = saddle(law, kernel, x)
    guess, caution, best = None, CAUTION, None
    for _ in range(4):
        try:
            line = certified_line(law, kernel, c, x, guess, caution, most, tolerance)
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
    most: int = MAX_FREQUENCIES,
    tolerance: float = FINE,
) -> Line:
    if guess is None:
        k, _, k2 = law.moments(c)
        guess = k - c * x + kernel.log_size(c)
        guess -= 0.5 * math.log(2.0 * math.pi * (k2 + kernel.slope(c)[1]))
    try:
        return Line(law, kernel, c, x, guess, tolerance, caution, most)
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
