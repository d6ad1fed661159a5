"""Certified delta(epsilon) and epsilon(delta) of a composition by the inversion integral.

delta(eps) = P(L = inf) + (1/2 pi i) int e^{K(z) - z eps} / (z(z+1)) dz,  K = sum of count * K_pair.

Two laws are tried: the whole one, and one without losses too rare to matter.

Error: each answer is an enclosure; its terms are quadrature (strip or ellipse bound), aliasing
(Chernoff at another tilt), truncation (decay of the transform, and what a law leaves out) and
rounding. Where they cannot be made small within the limits on work, NotCertified is raised before
the work is done; it carries what was proved nevertheless.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian.profile import log_gaussian_delta
from tightrope.guarantee.loss.abstract import (
    AbstractLossPair,
    Components,
    infinite_log_mass,
    is_single,
    joint_members,
    largest_loss,
    sum_law,
)
from tightrope.guarantee.loss.contour.line import (
    FINE,
    AlsoRead,
    EpsilonGoal,
    Inverse,
    at_reverse,
    certified_value,
    invert_closed_form,
    log_reverse,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import NO_LIMIT, Limit, Line, log_estimate, saddle
from tightrope.numerics.inversion_law import AbstractFamily, SumLaw
from tightrope.numerics.rounding import UNIT

Answer = TypeVar("Answer")
# an interval, and the line of the whole law that it was read from, if it was
Read = tuple[Interval, Line | None]
# worth spending before the other law is tried
_QUICK, _MORE = Limit(4000, 1e6), Limit(16_000, 6e7)
_MANY_KINDS, _MANY_QUICK = 320, Limit(8000, 4e6)
_COARSE = 2e-2  # error allowed to a line of the width asked for, where something is left out
_LEVELS = 4
_WIDER = 1e3  # times the mass of infinite losses: a delta at which they hardly count
_FAR = 12.0  # deviations that a group moves a sum by, if all of it is drawn


def log_delta(components: Components, epsilon: float, relative_width: float = 1e-6) -> Interval:
    """ln delta(epsilon) for any real epsilon, between two proved bounds."""
    return log_delta_and_reverse(components, epsilon, relative_width, reverse=False)[0]


def log_delta_and_reverse(
    components: Components, epsilon: float, relative_width: float = 1e-6, reverse: bool = True
) -> tuple[Interval, float]:
    """ln delta(epsilon), and a proved upper bound on it for the other order of the neighbours.

    The second is 0 where it is not wanted, or would take the work of a second order.
    """
    also = at_reverse if reverse and epsilon >= 0.0 else None
    found, line = _log_delta(components, epsilon, relative_width, also)
    return found, 0.0 if line is None or also is None else log_reverse(line, epsilon)


def _log_delta(
    components: Components, epsilon: float, relative_width: float, also: AlsoRead | None
) -> Read:
    held = tuple((pair, count) for pair, count in components if count > 0)
    infinite = infinite_log_mass(held)
    if epsilon >= largest_loss(held).upper or infinite.lower == 0.0:
        return infinite, None
    closed = _closed_form(held, epsilon)
    if closed is not None:
        return closed, None
    try:
        found, line = _finite_log_delta(held, epsilon, relative_width, also)
    except NotCertified as problem:
        if problem.reached is None:
            raise
        whole = _with_infinite(Interval(*problem.reached), infinite)
        raise NotCertified(str(problem), (whole.lower, whole.upper)) from problem
    return _with_infinite(found, infinite), line if infinite.upper == -math.inf else None


def _finite_log_delta(
    held: Components, epsilon: float, relative_width: float, also: AlsoRead | None
) -> Read:
    def whole(limit: Limit) -> Read:
        found, line = certified_value(sum_law(held), epsilon, relative_width, limit, FINE, also)
        return found.interval, line

    return _first(
        held, whole, lambda limit: (_without_rare(held, epsilon, relative_width, limit), None)
    )


def _first(
    held: Components, whole: Callable[[Limit], Answer], without: Callable[[Limit], Answer]
) -> Answer:
    """The whole law, then that without rare losses, where few frequencies do.

    Where none is as narrow as asked for, the NotCertified raised carries the narrowest.
    """
    if not any(pair.has_rare_losses for pair, _ in held):
        return whole(NO_LIMIT)
    if len(held) > _MANY_KINDS:  # without rare losses all of them are one family of laws
        return whole(_MANY_QUICK)
    ways = [(whole, _QUICK), (without, _MORE)]
    if any(p.reach >= _FAR for p, _ in held):
        ways.reverse()  # their rare losses reach so far that following them is most of the work
    nearest: NotCertified | None = None
    for way, limit in ways:
        try:
            return way(limit)
        except NotCertified as problem:
            if nearest is None or _width(problem) <= _width(nearest):
                nearest = problem
    assert nearest is not None
    raise nearest


def _width(problem: NotCertified) -> float:
    return math.inf if problem.reached is None else problem.reached[1] - problem.reached[0]


def _without_rare(
    held: Components, epsilon: float, relative_width: float, limit: Limit
) -> Interval:
    """The finite part of ln delta, from a law that leaves something out.

    What it leaves out adds at most its probability to delta, and how much that may be follows from
    delta, so that a first guess is corrected.
    """
    tolerance, law = max(FINE, _COARSE * relative_width), sum_law(held)
    at, estimate, _ = log_estimate(law, c := saddle(law, epsilon))
    log_level = min(estimate - c * (epsilon - at), 0.0)
    for _ in range(_LEVELS):
        law, missing = without_rare(held, log_level, relative_width)
        try:
            found = certified_value(law, epsilon, relative_width, limit, tolerance)[0].interval
        except NotCertified as problem:
            raise _with_missing(problem, missing) from problem
        share = math.exp(min(missing - found.lower, 700.0))
        if share <= 0.1 * relative_width:
            break
        log_level = found.lower
    whole = Interval(found.lower, found.upper + share)
    if share > relative_width:
        raise NotCertified(
            "What the law of the inversion integral leaves out could not be made small enough. Use "
            "the lattice method.",
            (whole.lower, whole.upper),
        )
    return whole


def _with_missing(problem: NotCertified, missing: float) -> NotCertified:
    """The bounds proved for the law, as a statement about delta."""
    if problem.reached is None or problem.reached[0] == -math.inf:
        return NotCertified(str(problem))
    lower, upper = problem.reached
    return NotCertified(str(problem), (lower, upper + math.exp(min(missing - lower, 700.0))))


def _closed_form(components: Components, epsilon: float) -> Interval | None:
    """One release, or Gaussians only."""
    if not components:
        if epsilon >= 0.0:
            return Interval.exact(-math.inf)
        value = math.log(-math.expm1(epsilon))
        return Interval(value - _slack(value), min(value + _slack(value), 0.0))
    if is_single(components):
        return components[0][0].log_delta_single(epsilon)
    if any(pair.plain_mu is None for pair, _ in components):
        return None
    law = sum_law(components)
    mu, slack = math.sqrt(law.variance), 4.0 * UNIT * len(components)
    low = log_gaussian_delta(epsilon, mu * (1.0 - slack))
    return Interval(low.lower, log_gaussian_delta(epsilon, mu * (1.0 + slack)).upper)


def _with_infinite(finite: Interval, infinite: Interval) -> Interval:
    if infinite.upper == -math.inf:
        return Interval(finite.lower, min(finite.upper, 0.0))
    lower = _log_add(finite.lower, infinite.lower)
    upper = _log_add(finite.upper, infinite.upper)
    return Interval(lower - _slack(lower), min(upper + _slack(upper), 0.0))


def _slack(value: float) -> float:
    """The rounding of a logarithm: units of its own size, too."""
    return 8.0 * UNIT * (1.0 + abs(value))


def _log_add(a: float, b: float) -> float:
    top, low = max(a, b), min(a, b)
    return top if low == -math.inf else top + math.log1p(math.exp(low - top))


def epsilon(components: Components, delta: float, relative_width: float = 1e-6) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta, between two proved bounds.

    [inf, inf] when delta is below P(L = inf).
    """
    return epsilon_and_reverse(components, delta, relative_width, reverse=False)[0]


def epsilon_and_reverse(
    components: Components, delta: float, relative_width: float = 1e-6, reverse: bool = True
) -> tuple[Interval, float]:
    """`epsilon`, and a bound on ln delta of the other order of the neighbours at its lower end."""
    also = at_reverse if reverse else None
    found, line = _epsilon(components, delta, relative_width, also)
    return found, 0.0 if line is None or also is None else log_reverse(line, found.lower)


def _epsilon(
    components: Components, delta: float, relative_width: float, also: AlsoRead | None
) -> Read:
    held = tuple((pair, count) for pair, count in components if count > 0)
    infinite = infinite_log_mass(held)
    log_target = math.log(delta) if delta > 0.0 else -math.inf
    if _exceeds(held, infinite.lower, delta):
        return Interval(math.inf, math.inf), None
    if delta == 0.0 and infinite.upper == -math.inf:
        return largest_loss(held).clamp(0.0, math.inf), None
    if _closed_form(held, 0.0) is not None:
        top = largest_loss(held).upper
        return invert_closed_form(lambda e: log_delta(held, e), log_target, top), None
    if trivially_zero(held, log_target):
        return Interval(0.0, 0.0), None
    if infinite.upper == -math.inf:
        return _beside(held, log_target, 0.0, relative_width, also)
    # so much of delta goes to infinite losses, with and without those that were cut off
    most, least = (math.exp(min(log - log_target, 0.0)) for log in (infinite.upper, infinite.lower))
    if most > 1.0 - 1e-9:  # too close to tell, or less than what was cut off
        wider = _WIDER * math.exp(infinite.upper)
        at_least = _epsilon(held, wider, relative_width, None)[0].lower if wider < 1.0 else 0.0
        return Interval(at_least, math.inf), None
    found, _ = _beside(held, log_target, most, relative_width, None)
    if most - least > UNIT:
        below, _ = _beside(held, log_target, least, relative_width, None)
        found = Interval(min(below.lower, found.upper), found.upper)
    return found, None


def _beside(
    held: Components, log_target: float, share: float, relative_width: float, also: AlsoRead | None
) -> Read:
    """The smallest epsilon where infinite losses take this share of delta."""
    slack = 8.0 * UNIT * (abs(log_target) * (1.0 + 2.0 * share) + 4.0 + 4.0 * share) / (1.0 - share)
    goal = EpsilonGoal(log_target + math.log1p(-share), relative_width, slack)
    whole = partial(_invert_whole, held, goal, also)
    return _first(held, whole, partial(_invert_without_rare, held, goal))


def _invert_whole(held: Components, goal: EpsilonGoal, also: AlsoRead | None, limit: Limit) -> Read:
    """The smallest epsilon >= 0, from the transform of the whole law."""
    law = sum_law(held)
    inverse = Inverse(law, -math.inf, goal, limit, FINE, also)
    x = inverse.start
    if x <= 0.0:
        try:
            at_zero = certified_value(law, 0.0, 1e-6, limit)[0]
        except NotCertified as problem:  # what it reached is no epsilon
            raise NotCertified(str(problem)) from problem
        if at_zero.upper <= goal.log_target - goal.slack:
            return Interval(0.0, 0.0), None
    return inverse.solve(x), inverse.line


def _invert_without_rare(held: Components, goal: EpsilonGoal, limit: Limit) -> Read:
    """The smallest epsilon >= 0, from a law without losses too rare to matter."""
    law, missing = without_rare(held, goal.log_target, goal.relative_width)
    tolerance = max(FINE, _COARSE * goal.relative_width)
    inverse = Inverse(law, missing, goal, limit, tolerance)
    return inverse.solve(inverse.start), None


def _exceeds(components: Components, log_infinite: float, delta: float) -> bool:
    """Whether the mass of infinite losses is above delta: exactly so for one release.

    log_infinite: a lower bound on its logarithm.
    """
    if len(components) == 1 and components[0][1] == 1:
        return components[0][0].least_infinite_mass > delta
    return log_infinite > (math.log(delta) if delta > 0.0 else -math.inf)


def trivially_zero(components: Components, log_target: float) -> bool:
    """Whether the kinds of steps, whose total variations add up, vary too little to lose delta."""
    total = math.fsum(_most_variation(pair, count) for pair, count in components)
    return total * (1.0 + 1e-12) <= math.exp(log_target)


def _most_variation(pair: AbstractLossPair, count: int) -> float:
    """A bound on delta(0) of `count` steps of a kind: the sum of theirs, or by the mean square.

    delta(0) = E|r - 1|/2 <= sqrt(E (r - 1)^2)/2, r the ratio of the laws, and E r^2 is a product.
    """
    square = 0.25 * math.expm1(min(count * pair.log_mean_square, 700.0))
    one = pair.total_variation
    if one is None:
        one = math.exp(pair.log_delta_single(0.0).upper) if pair.has_closed_form else 1.0
    return min(count * one, math.sqrt(square))


# ---- The law without losses too rare to matter
# Rare large losses ("jumps") give the tilted law a second mode, and a line between the two needs
# very many frequencies. Steps beyond a point that is passed too rarely to matter are left out; they
# add at most their probability to delta.
def without_rare(held: Components, log_level: float, relative_width: float) -> tuple[SumLaw, float]:
    """The law, and ln of a bound on the probability of what it leaves out.

    log_level: ln delta, roughly, of which a small share of `relative_width` may be left out.
    """
    jumping = [(p, n) for p, n in held if p.has_rare_losses]
    if not jumping:
        raise NotCertified("There are no rare losses to leave out; use the lattice method.")
    rest = sum_law(tuple((p, n) for p, n in held if not p.has_rare_losses))
    steps = sum(n for _, n in jumping)
    nats = math.log(steps) - (log_level + math.log(relative_width) - 4.0)
    kept, logs = zip(*_cut(jumping, nats), strict=True)
    dropped = float(np.logaddexp.reduce(logs)) + 1e-12
    return SumLaw((*kept, *rest.parts), rest.mean, rest.variance), dropped


def _cut(
    jumping: list[tuple[AbstractLossPair, int]], nats: float
) -> list[tuple[AbstractFamily, float]]:
    """The laws up to points that a step passes with probability about e^-nats.

    Each with ln of a bound on the probability that any of its steps passes them.
    """
    alone = [[(pair, n)] for pair, n in jumping if pair.joint is None]
    kept = []
    for members in (*alone, *joint_members(jumping)):
        pairs, counts = zip(*members, strict=True)
        kept.append(type(pairs[0]).cut_cumulant(pairs, counts, nats))
    return kept
