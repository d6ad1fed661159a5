"""Certified delta(epsilon) and epsilon(delta) of a composition by the inversion integral (Part D).

delta(eps) = P(L = inf) + (1/2 pi i) int e^{K(z) - z eps} / (z(z+1)) dz,  K = sum of count * K_pair.

Three laws are tried (contour_ways): the whole one; one without losses too rare to matter; and
"at least one jump", which leaves out that the loss exceeds eps without any large step. Where one
jump alone decides, it needs no transform (contour_one_jump).

Error: each answer is an enclosure; its terms are quadrature (strip or ellipse bound), aliasing
(Chernoff at another tilt), truncation (decay of the transform, and what a law leaves out) and
rounding. Where they cannot be made small within the limits on work, NotCertified is raised before
the work is done; it carries what was proved nevertheless.
"""

from __future__ import annotations

import math
from typing import Literal

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.closed_form import log_delta_single, log_gaussian_delta
from tightrope.guarantee.loss.contour_closed_form import invert_closed_form
from tightrope.guarantee.loss.contour_inverse import (
    Goal,
    Inverted,
    accepted,
    invert_jumps,
    invert_none,
    invert_one_jump,
    invert_whole,
)
from tightrope.guarantee.loss.contour_line import AlsoRead, certified_value
from tightrope.guarantee.loss.contour_reverse import at_reverse, log_reverse
from tightrope.guarantee.loss.contour_ways import finite_log_delta, first_certified
from tightrope.guarantee.loss.cumulant import plain_mu, sum_law
from tightrope.guarantee.loss.gaussian import SampledGaussianPair
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import Enclosure, Line
from tightrope.numerics.inversion_kernel import (
    ABOVE,
    BELOW,
    TILTED_ABOVE,
    TILTED_BELOW,
    Kernel,
)
from tightrope.numerics.quadrature import UNIT

__all__ = [
    "log_delta",
    "log_delta_and_reverse",
    "log_survival",
    "epsilon",
    "epsilon_and_reverse",
]

_KERNELS: dict[tuple[str, str], Kernel] = {
    ("P", "above"): ABOVE,
    ("P", "below"): BELOW,
    ("Q", "above"): TILTED_ABOVE,
    ("Q", "below"): TILTED_BELOW,
}


def log_delta(components: Components, epsilon: float, relative_width: float = 1e-6) -> Enclosure:
    """ln delta(epsilon) for any real epsilon, between two proved bounds.

    Where the width asked for is out of reach, up to 1e-4 is given; NotCertified beyond that.
    """
    return log_delta_and_reverse(components, epsilon, relative_width, reverse=False)[0]


def log_delta_and_reverse(
    components: Components, epsilon: float, relative_width: float = 1e-6, reverse: bool = True
) -> tuple[Enclosure, float]:
    """ln delta(epsilon), and a proved upper bound on it for the other order of the neighbours.

    The second is 0 where it is not wanted, or would take the work of a second order.
    """
    also = at_reverse if reverse and epsilon >= 0.0 else None
    found, line = _log_delta(components, epsilon, relative_width, also)
    return found, 0.0 if line is None or also is None else log_reverse(line, epsilon)


def _log_delta(
    components: Components, epsilon: float, relative_width: float, also: AlsoRead | None
) -> tuple[Enclosure, Line | None]:
    held = tuple((pair, count) for pair, count in components if count > 0)
    log_infinite = _log_infinite_mass(held)
    if epsilon >= _largest_loss(held):
        return Enclosure(log_infinite - 8.0 * UNIT, min(log_infinite + 8.0 * UNIT, 0.0)), None
    closed = _closed_form(held, epsilon)
    if closed is not None:
        return Enclosure(closed.lower, closed.upper), None
    try:
        found, line = finite_log_delta(held, epsilon, relative_width, also)
    except NotCertified as problem:
        if problem.reached is None:
            raise
        whole = _with_infinite(Enclosure(*problem.reached), log_infinite)
        raise NotCertified(str(problem), (whole.lower, whole.upper)) from problem
    return _with_infinite(found, log_infinite), line if log_infinite == -math.inf else None


def log_survival(
    components: Components,
    loss: float,
    under: Literal["P", "Q"] = "P",
    side: Literal["above", "below"] = "above",
    relative_width: float = 1e-6,
) -> Enclosure:
    """ln of P(L > loss) or Q(L > loss), or of the mass at or below it; finite losses only.

    Needs a composition whose law has no atoms.
    """
    held = tuple((pair, count) for pair, count in components if count > 0)
    kernel = _KERNELS[under, side]
    found = certified_value(sum_law(held), kernel, loss, relative_width)
    if under == "P":
        return found
    # the kernel 1/(z+1) gives e^loss E_P[e^-L; ...]
    slack = 4.0 * UNIT * (abs(loss) + abs(found.upper))
    return _moved(found, -loss - slack, -loss + slack)


def _moved(found: Enclosure, low: float, high: float) -> Enclosure:
    return Enclosure(
        found.lower + low,
        found.upper + high,
        found.quadrature,
        found.aliasing,
        found.truncation,
        found.rounding,
    )


def _log_infinite_mass(components: Components) -> float:
    """ln(1 - prod (1 - P_i(L = inf))); -inf when there is none."""
    total = sum(
        count * math.log1p(-p.infinite_mass) for p, count in components if p.infinite_mass < 1
    )
    if any(p.infinite_mass >= 1 for p, _ in components):
        return 0.0
    return math.log(-math.expm1(total)) if total < 0.0 else -math.inf


def _largest_loss(components: Components) -> float:
    """An upper bound on every finite loss of the composition."""
    total = math.fsum(count * p.support[1] for p, count in components)
    return total + 4.0 * UNIT * abs(total)


def _closed_form(components: Components, epsilon: float) -> Interval | None:
    """One release, or Gaussians only."""
    if not components:
        value = math.log(-math.expm1(epsilon)) if epsilon < 0.0 else -math.inf
        return Interval(value - 4.0 * UNIT, value + 4.0 * UNIT)
    if len(components) == 1 and components[0][1] == 1:
        return log_delta_single(components[0][0], epsilon)
    if any(plain_mu(pair) is None for pair, _ in components):
        return None
    law = sum_law(components)
    mu, slack = math.sqrt(law.variance), 4.0 * UNIT * len(components)
    low = log_gaussian_delta(epsilon, mu * (1.0 - slack))
    return Interval(low.lower, log_gaussian_delta(epsilon, mu * (1.0 + slack)).upper)


def _with_infinite(finite: Enclosure, log_infinite: float) -> Enclosure:
    if log_infinite == -math.inf:
        return Enclosure(
            finite.lower,
            min(finite.upper, 0.0),
            finite.quadrature,
            finite.aliasing,
            finite.truncation,
            finite.rounding,
        )
    slack = 8.0 * UNIT
    lower = float(_log_add(finite.lower, log_infinite)) - slack
    upper = float(_log_add(finite.upper, log_infinite)) + slack
    share = math.exp(min(finite.upper - upper, 0.0))
    return Enclosure(
        lower,
        min(upper, 0.0),
        share * finite.quadrature,
        share * finite.aliasing,
        share * finite.truncation,
        share * finite.rounding + slack,
    )


def _log_add(a: float, b: float) -> float:
    top, low = max(a, b), min(a, b)
    return top if low == -math.inf else top + math.log1p(math.exp(low - top))


def epsilon(components: Components, delta: float, relative_width: float = 1e-6) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta, between two proved bounds.

    [inf, inf] when delta is below P(L = inf). Widths as in `log_delta`.
    """
    return epsilon_and_reverse(components, delta, relative_width, reverse=False)[0]


def epsilon_and_reverse(
    components: Components, delta: float, relative_width: float = 1e-6, reverse: bool = True
) -> tuple[Interval, float]:
    """The same, and a bound on ln delta of the other order of the neighbours at the lower end."""
    also = at_reverse if reverse else None
    found, line = _epsilon(components, delta, relative_width, also)
    return found, 0.0 if line is None or also is None else log_reverse(line, found.lower)


def _epsilon(
    components: Components, delta: float, relative_width: float, also: AlsoRead | None
) -> Inverted:
    held = tuple((pair, count) for pair, count in components if count > 0)
    log_infinite = _log_infinite_mass(held)
    log_target = math.log(delta) if delta > 0.0 else -math.inf
    if _exceeds(held, log_infinite, delta):
        return Interval(math.inf, math.inf), None
    if delta == 0.0:
        top = _largest_loss(held)
        return Interval(max(0.0, top - 8.0 * UNIT * abs(top)), max(0.0, top)), None
    if _closed_form(held, 0.0) is not None:
        top = _largest_loss(held)
        return invert_closed_form(lambda e: log_delta(held, e), log_target, top), None
    if _trivially_zero(held, log_target):
        return Interval(0.0, 0.0), None
    share = math.exp(log_infinite - log_target)  # of delta that infinite losses take
    if share > 1.0 - 1e-9:
        return Interval(0.0, math.inf), None  # too close to tell; sound on both sides
    slack = 8.0 * UNIT * (abs(log_target) + abs(log_target) * share + 4.0) / (1.0 - share)
    log_finite = log_target + math.log1p(-share)

    goal = Goal(log_finite, relative_width, slack)
    found, line = first_certified(
        held,
        lambda limit: invert_whole(sum_law(held), goal, limit, also),
        lambda limit: invert_none(held, goal, limit),
        lambda: invert_one_jump(held, goal),
        lambda: invert_jumps(held, goal),
        accepted,
    )
    return found, line if log_infinite == -math.inf else None


def _exceeds(components: Components, log_infinite: float, delta: float) -> bool:
    """Whether the mass of infinite losses is above delta: exactly so for one release."""
    if len(components) == 1 and components[0][1] == 1:
        return components[0][0].infinite_mass > delta
    return log_infinite > (math.log(delta) if delta > 0.0 else -math.inf)


def _trivially_zero(components: Components, log_target: float) -> bool:
    """delta(0) is at most the sum of the parts' delta(0) (total variation is subadditive).

    Also delta(0) = E_Q|r - 1|/2 <= sqrt(E_Q (r-1)^2)/2, and E_Q r^2 = 1 + q^2 (e^{mu^2} - 1) for
    one sampled step, in either order of the neighbours.
    """
    total = sum(count * math.exp(log_delta_single(pair, 0.0).upper) for pair, count in components)
    logs = [count * _log_second_moment(pair) for pair, count in components]
    square = 0.25 * math.expm1(min(math.fsum(logs), 700.0))
    return min(total, math.sqrt(square)) * (1.0 + 1e-12) <= math.exp(log_target)


def _log_second_moment(pair: AbstractLossPair) -> float:
    """ln E_Q r^2 of a sampled or plain Gaussian; inf where no formula is known."""
    mu = plain_mu(pair)
    if mu is not None:
        return mu * mu
    if isinstance(pair, SampledGaussianPair) and pair.mu < 20.0:
        return math.log1p(pair.rate**2 * math.expm1(pair.mu**2))
    return math.inf
