"""Certified delta(epsilon) and epsilon(delta) of a composition by the inversion integral.

delta(eps) = P(L = inf) + (1/2 pi i) int e^{K(z) - z eps} / (z(z+1)) dz,  K = sum of count * K_pair.

Two laws are tried: the whole one, and one without losses too rare to matter.

The other order of the neighbours has delta'(eps) = 1 - e^eps + e^eps delta(-eps). So a line made
for delta at eps, read at -eps too, bounds both orders, and as aliases are >= 0 the sum itself is
the bound. Where too much would cancel, Chernoff's bound of the other order is compared instead.

Error: each answer is an enclosure; its terms are quadrature (strip or ellipse bound), aliasing
(Chernoff at another tilt), truncation (decay of the transform, and what a law leaves out) and
rounding. Where they cannot be made small within the limits on work, NotCertified is raised before
the work is done; it carries what was proved nevertheless. docs/certificate_argument.md, 3 and 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss.abstract import (
    AbstractLossPair,
    Components,
    infinite_log_mass,
    is_single,
    joint_members,
    largest_loss,
    sum_law,
)
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

Answer = TypeVar("Answer")
# an interval, and the line of the whole law that it was read from, if it was
Read = tuple[Interval, Line | None]
FINE = 1e-12  # error allowed to a line, of g
_CAUTION = 0.1  # see inversion.plan
# worth spending before the other law is tried
_QUICK, _MORE = Limit(4000, 1e6), Limit(16_000, 6e7)
_MANY_KINDS, _MANY_QUICK = 320, Limit(8000, 4e6)
_COARSE = 2e-2  # error allowed to a line of the width asked for, where something is left out
_LEVELS = 4
_WIDER = 1e3  # times the mass of infinite losses: a delta at which they hardly count
_FAR = 12.0  # deviations that a group moves a sum by, if all of it is drawn


# ---- delta
def log_delta(components: Components, epsilon: float, relative_width: float = 1e-6) -> Interval:
    """ln delta(epsilon) for any real epsilon, between two proved bounds."""
    return log_delta_and_reverse(components, epsilon, relative_width, reverse=False)[0]


def log_delta_and_reverse(
    components: Components, epsilon: float, relative_width: float = 1e-6, reverse: bool = True
) -> tuple[Interval, float]:
    """ln delta(epsilon), and a proved upper bound on it for the other order of the neighbours.

    The second is 0 where it is not wanted, or would take the work of a second order.
    """
    reverse = reverse and epsilon >= 0.0
    held = tuple((pair, count) for pair, count in components if count > 0)
    infinite = infinite_log_mass(held)
    if epsilon >= largest_loss(held).upper or infinite.lower == 0.0:
        return infinite, 0.0
    closed = _closed_form(held, epsilon)
    if closed is not None:
        return closed, 0.0

    def whole(limit: Limit) -> Read:
        law = sum_law(held)
        found, line = certified_value(law, epsilon, relative_width, limit, both=reverse)
        return found.interval, line

    def without(limit: Limit) -> Read:
        return _without_rare(held, epsilon, relative_width, limit), None

    try:
        found, line = _first(held, whole, without)
    except NotCertified as problem:
        if problem.reached is None:
            raise
        reached = _with_infinite(Interval(*problem.reached), infinite)
        raise NotCertified(str(problem), (reached.lower, reached.upper)) from problem
    if line is None or not reverse or infinite.upper > -math.inf:
        return _with_infinite(found, infinite), 0.0
    return _with_infinite(found, infinite), log_reverse(line, epsilon)


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
    problems = []
    for way, limit in ways:
        try:
            return way(limit)
        except NotCertified as problem:
            reached = problem.reached
            width = math.inf if reached is None else reached[1] - reached[0]
            problems.append((width, problem))
    raise min(reversed(problems), key=lambda each: each[0])[1]


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
            if problem.reached is None or problem.reached[0] == -math.inf:
                raise NotCertified(str(problem)) from problem
            lower, upper = problem.reached  # of the law, now of delta
            upper += math.exp(min(missing - lower, 700.0))
            raise NotCertified(str(problem), (lower, upper)) from problem
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


# ---- epsilon
def epsilon(components: Components, delta: float, relative_width: float = 1e-6) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta, between two proved bounds.

    [inf, inf] when delta is below P(L = inf).
    """
    return epsilon_and_reverse(components, delta, relative_width, reverse=False)[0]


def epsilon_and_reverse(
    components: Components, delta: float, relative_width: float = 1e-6, reverse: bool = True
) -> tuple[Interval, float]:
    """`epsilon`, and a bound on ln delta of the other order of the neighbours at its lower end."""
    held = tuple((pair, count) for pair, count in components if count > 0)
    infinite = infinite_log_mass(held)
    log_target = math.log(delta) if delta > 0.0 else -math.inf
    if len(held) == 1 and held[0][1] == 1:  # exactly so for one release
        exceeds = held[0][0].least_infinite_mass > delta
    else:
        exceeds = infinite.lower > log_target
    if exceeds:
        return Interval(math.inf, math.inf), 0.0
    if delta == 0.0 and infinite.upper == -math.inf:
        return largest_loss(held).clamp(0.0, math.inf), 0.0
    if _closed_form(held, 0.0) is not None:
        top = largest_loss(held).upper
        return invert_closed_form(lambda e: log_delta(held, e), log_target, top), 0.0
    if trivially_zero(held, log_target):
        return Interval(0.0, 0.0), 0.0
    if infinite.upper == -math.inf:
        found, line = _beside(held, log_target, 0.0, relative_width, reverse)
        return found, 0.0 if line is None or not reverse else log_reverse(line, found.lower)
    # so much of delta goes to infinite losses, with and without those that were cut off
    most, least = (math.exp(min(log - log_target, 0.0)) for log in (infinite.upper, infinite.lower))
    if most > 1.0 - 1e-9:  # too close to tell, or less than what was cut off
        wider = _WIDER * math.exp(infinite.upper)
        at_least = epsilon(held, wider, relative_width).lower if wider < 1.0 else 0.0
        return Interval(at_least, math.inf), 0.0
    found, _ = _beside(held, log_target, most, relative_width, False)
    if most - least > UNIT:
        below, _ = _beside(held, log_target, least, relative_width, False)
        found = Interval(min(below.lower, found.upper), found.upper)
    return found, 0.0


def _beside(
    held: Components, log_target: float, share: float, relative_width: float, both: bool
) -> Read:
    """The smallest epsilon where infinite losses take this share of delta."""
    slack = 8.0 * UNIT * (abs(log_target) * (1.0 + 2.0 * share) + 4.0 + 4.0 * share) / (1.0 - share)
    goal = EpsilonGoal(log_target + math.log1p(-share), relative_width, slack)

    def without(limit: Limit) -> Read:
        law, missing = without_rare(held, goal.log_target, goal.relative_width)
        inverse = Inverse(law, missing, goal, limit, max(FINE, _COARSE * goal.relative_width))
        return inverse.solve(inverse.start), None

    return _first(held, partial(_invert_whole, held, goal, both), without)


def _invert_whole(held: Components, goal: EpsilonGoal, both: bool, limit: Limit) -> Read:
    """The smallest epsilon >= 0, from the transform of the whole law."""
    law = sum_law(held)
    inverse = Inverse(law, -math.inf, goal, limit, FINE, both)
    x = inverse.start
    if x <= 0.0:
        try:
            at_zero = certified_value(law, 0.0, 1e-6, limit)[0]
        except NotCertified as problem:  # what it reached is no epsilon
            raise NotCertified(str(problem)) from problem
        if at_zero.upper <= goal.log_target - goal.slack:
            return Interval(0.0, 0.0), None
    return inverse.solve(x), inverse.line


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
    kept, logs = [], []
    alone = [[(pair, n)] for pair, n in jumping if pair.joint is None]
    for members in (*alone, *joint_members(jumping)):
        pairs, counts = zip(*members, strict=True)
        law, log = type(pairs[0]).cut_cumulant(pairs, counts, nats)
        kept.append(law)
        logs.append(log)
    dropped = float(np.logaddexp.reduce(logs)) + 1e-12
    return SumLaw((*kept, *rest.parts), rest.mean, rest.variance), dropped


# ---- Lines: the first that proves a value to the width asked for
def certified_value(
    law: SumLaw,
    x: float,
    relative_width: float,
    limit: Limit = NO_LIMIT,
    tolerance: float = FINE,
    both: bool = False,
) -> tuple[LogEnclosure, Line]:
    """ln g(x) and its line, on further lines when the guess was far off or too much cancelled.

    both: the line is read for the other order of the neighbours, too.
    """
    c = saddle(law, x)
    k, _, k2 = law.moments(c)
    curvature = k2 + kernel_slope(c)[1]
    guess = k - c * x + log_kernel(c) - 0.5 * math.log(2.0 * math.pi * curvature)
    caution, best = _CAUTION, None
    for _ in range(4):
        try:
            line = _line(law, c, x, guess, caution, limit, tolerance, both)
        except NotCertified:
            if best is None:
                raise
            break
        found = line.certified(x)
        best = found if best is None or found.width < best.width else best
        if found.width <= relative_width:
            return found, line
        # the least that ln g could be, to size the aliases against
        low = found.lower if found.lower > -math.inf else min(found.upper, line.log_guess) - 5.0
        guess, caution = min(low, line.log_guess - 3.0), 4.0 * caution
    assert best is not None
    raise NotCertified(
        f"The inversion integral proved a relative width of {best.width:.1e} where "
        f"{relative_width:.1e} was asked for. Ask for a wider interval, or use the lattice method.",
        (best.lower, best.upper),
    )


def _line(
    law: SumLaw,
    c: float,
    x: float,
    guess: float,
    caution: float,
    limit: Limit,
    tolerance: float,
    both: bool,
) -> Line:
    # for the other order: delta(-eps) to a share of e^-eps delta
    also = SaddleReading(-x, guess - x + _SHARE) if both else None
    try:
        return Line(law, c, x, guess, tolerance, caution, limit, also)
    except OverflowError as error:
        raise NotCertified(
            f"The inversion integral needs too much work ({error}). Use the lattice method."
        ) from error


# ---- The other order of the neighbours: is it proved not to be the worse one?
_SHARE = -5.0  # ln of the error of the other delta that is asked for
_TILTS = np.geomspace(0.1, 10.0, 33)  # times -ln delta / eps
_MARGIN = 1e-3  # by which an estimate must be smaller for a proof to be tried
_MOST_TILT = 1e100  # whose square a double holds: epsilon may be next to nothing


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
        law = sum_law(components)
        tilts = _TILTS * min(-log_enough / epsilon, _MOST_TILT)
        tilts = tilts[tilts <= law.max_tilt]
        if len(tilts) == 0:
            return 0.0
        logs = law.values(tilts) - tilts * epsilon + log_peak(tilts)
        tilt = float(tilts[logs.argmin()])
        if logs.min() > log_enough - _MARGIN:
            return 0.0
        value, error = law.real(tilt, math.log(max(law.steps, 1.0)) + 8.0)
    except (OverflowError, NotCertified):
        return 0.0
    found = value + error - tilt * epsilon + float(log_peak(np.array(tilt)))
    return min(0.0, found + 16.0 * UNIT * (abs(value) + tilt * epsilon + abs(found) + 4.0))


# ---- The smallest epsilon for a delta: a bracketed search over lines, then the certificate
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
        both: bool = False,
    ) -> None:
        self.law, self.limit, self.tolerance, self.both = law, limit, tolerance, both
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
        low, high, caution, log_c = 0.0, math.inf, _CAUTION, 0.0
        seen: set[tuple[float, float, float]] = set()
        for _ in range(_MAX_LINES):
            c = saddle(self.law, x, log_c)
            target, rest = self.log_target, (self.limit, self.tolerance, self.both)
            line = _line(self.law, c, x, target, caution, *rest)
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
        """Both ends proved on the same line, or None; what is too wide is only remembered."""
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
                found = Interval(low, high)
                if found.width < self._best_width:
                    self.best = found
                return found if found.width <= self.relative_width * found.upper else None
            reach *= 2.0
        return None


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
