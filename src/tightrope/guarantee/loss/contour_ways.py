"""Which law is inverted: the whole one, one without the rarest losses, or one with jumps apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.closed_form import estimate_single
from tightrope.guarantee.loss.contour_line import (
    COARSE,
    FINE,
    AlsoRead,
    certified_point,
    certified_value,
)
from tightrope.guarantee.loss.contour_one_jump import OneJump
from tightrope.guarantee.loss.contour_split import Jumps
from tightrope.guarantee.loss.cumulant import sum_law
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.numerics.inversion import NO_LIMIT, Enclosure, Limit, Line
from tightrope.numerics.inversion_kernel import EXCESS
from tightrope.numerics.inversion_law import TotalLaw
from tightrope.numerics.inversion_saddle import log_estimate, saddle

__all__ = ["finite_log_delta", "first_certified", "one_step"]

Answer = TypeVar("Answer")
# worth spending before the next way is tried
_QUICK, _MORE = Limit(4000, 1e6), Limit(4000, 2e7)
_ACCEPTED = 1e-4  # the widest answer that is given where the width asked for is out of reach
_LEVELS = 4
# jumps apart are tried first up to so many steps and so many hits expected, from this mu on
_FEW, _RARE, _LARGE = 6, 0.2, 0.7


def finite_log_delta(
    held: Components, epsilon: float, relative_width: float, also: AlsoRead | None = None
) -> tuple[Enclosure, Line | None]:
    """The finite part of ln delta, and the line of the whole law where it comes from one."""

    def accept(lower: float, upper: float) -> tuple[Enclosure, None] | None:
        return (Enclosure(lower, upper), None) if upper - lower <= _ACCEPTED else None

    def whole(limit: Limit) -> tuple[Enclosure, Line | None]:
        law = sum_law(held)
        return certified_point(law, EXCESS, epsilon, relative_width, limit, FINE, also)

    level = partial(_by_level, held, epsilon, relative_width)
    return first_certified(
        held,
        whole,
        lambda limit: level(Jumps.none, _saddle_level(held, epsilon), limit),
        lambda: (_one_jump(held, epsilon, relative_width), None),
        lambda: level(lambda jumps: jumps.at(epsilon), one_step(held, epsilon), NO_LIMIT),
        accept,
    )


def first_certified(
    held: Components,
    whole: Callable[[Limit], Answer],
    none: Callable[[Limit], Answer],
    one: Callable[[], Answer],
    jumps: Callable[[], Answer],
    accept: Callable[[float, float], Answer | None],
) -> Answer:
    """The whole law, then that without jumps, where few frequencies do; one jump alone; jumps
    apart; at any cost.

    Where it is plain that jumps decide they come first. Where none is as narrow as asked for, the
    narrowest is given if it is accepted; otherwise the NotCertified raised carries it.
    """
    if not any(isinstance(p, SampledGaussianPair) and p.direction == "remove" for p, _ in held):
        return whole(NO_LIMIT)
    quick = partial(whole, _QUICK), partial(none, _MORE)
    ways: list[Callable[[], Answer]] = [*quick, one, jumps]
    if _jumps_decide(held):
        ways = [one, jumps, *quick]
    nearest: NotCertified | None = None
    ways += [partial(none, NO_LIMIT), partial(whole, NO_LIMIT)]
    for way in ways:
        try:
            return way()
        except NotCertified as problem:
            if nearest is None or _width(problem) <= _width(nearest):
                nearest = problem
        best = nearest.reached
        accepted = None if best is None or way in ways[:3] else accept(*best)
        if accepted is not None:
            return accepted
    assert nearest is not None
    raise nearest


def _one_jump(held: Components, epsilon: float, relative_width: float) -> Enclosure:
    """The finite part of ln delta, from one jump alone."""
    jump = OneJump.of(held, one_step(held, epsilon), relative_width)
    if not jump.is_plausible:
        raise NotCertified("More than one step may decide; use the lattice method.")
    found = jump.enclosure(epsilon)
    if found.width > relative_width:
        raise NotCertified("The other steps spread too far.", (found.lower, found.upper))
    return found


def _jumps_decide(held: Components) -> bool:
    """Whether the quick ways would fail: a rule found by trying, which costs only time if wrong."""
    steps = [(p, n) for p, n in held if isinstance(p, SampledGaussianPair) and p.mu >= _LARGE]
    few = len(steps) == len(held) and sum(n for _, n in steps) <= _FEW
    return few and sum(n * p.rate for p, n in steps) <= _RARE


def _width(problem: NotCertified) -> float:
    return math.inf if problem.reached is None else problem.reached[1] - problem.reached[0]


def _by_level(
    held: Components,
    epsilon: float,
    relative_width: float,
    law_of: Callable[[Jumps], tuple[TotalLaw, float]],
    log_guess: float,
    limit: Limit,
) -> tuple[Enclosure, None]:
    """The finite part of ln delta, from a law that leaves something out.

    What it leaves out adds at most its probability to delta, and how much that may be follows from
    delta, so that a first guess is corrected.
    """
    tolerance = max(FINE, COARSE * relative_width)
    for _ in range(_LEVELS):
        law, missing = law_of(Jumps(held, log_guess, relative_width))
        try:
            found = certified_value(law, EXCESS, epsilon, relative_width, limit, tolerance)
        except NotCertified as problem:
            raise _with_missing(problem, missing) from problem
        share = math.exp(min(missing - found.lower, 700.0))
        if share <= 0.1 * relative_width:
            break
        log_guess = found.lower
    if share > relative_width:
        raise NotCertified(
            "What the law of the inversion integral leaves out could not be made small enough. Use "
            "the lattice method.",
            (found.lower, found.upper + share),
        )
    whole = Enclosure(
        found.lower,
        found.upper + share,
        found.quadrature,
        found.aliasing,
        found.truncation + share,
        found.rounding,
    )
    return whole, None


def _with_missing(problem: NotCertified, missing: float) -> NotCertified:
    """What was proved of the law, as a statement about delta."""
    if problem.reached is None or problem.reached[0] == -math.inf:
        return NotCertified(str(problem))
    lower, upper = problem.reached
    return NotCertified(str(problem), (lower, upper + math.exp(min(missing - lower, 700.0))))


def _saddle_level(held: Components, epsilon: float) -> float:
    """The saddle-point estimate of ln delta."""
    whole = sum_law(held)
    at, estimate, _ = log_estimate(whole, EXCESS, c := saddle(whole, EXCESS, epsilon))
    return min(estimate - c * (epsilon - at), 0.0)


def one_step(held: Components, epsilon: float) -> float:
    """ln of the sum of the steps' own delta: the size of delta where one large loss decides."""
    logs = [math.log(n) + estimate_single(pair, epsilon) for pair, n in held]
    return min(float(np.logaddexp.reduce(np.array(logs))), 0.0)
