"""Certified delta(epsilon) and epsilon(delta) of a composition by the inversion integral (Part D).

delta(eps) = P(L = inf) + (1/2 pi i) int e^{K(z) - z eps} / (z(z+1)) dz,  K = sum of count * K_pair.

Error: each answer is an enclosure; its terms are quadrature (strip or ellipse bound), aliasing
(Chernoff at another tilt), truncation (decay of the transform) and rounding. Where they cannot be
made small within the limits on work, NotCertified is raised before the work is done.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.closed_form import log_delta_single, log_gaussian_delta
from tightrope.guarantee.loss.cumulant import sum_law
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import Enclosure, Line
from tightrope.numerics.inversion_kernel import (
    ABOVE,
    BELOW,
    EXCESS,
    TILTED_ABOVE,
    TILTED_BELOW,
    Kernel,
)
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.inversion_saddle import log_estimate, saddle, saddle_of_level
from tightrope.numerics.quadrature import UNIT

__all__ = ["log_delta", "log_survival", "epsilon"]

_CAUTION = 0.1  # see inversion_saddle.plan
_MAX_LINES = 24
_KERNELS: dict[tuple[str, str], Kernel] = {
    ("P", "above"): ABOVE,
    ("P", "below"): BELOW,
    ("Q", "above"): TILTED_ABOVE,
    ("Q", "below"): TILTED_BELOW,
}


def log_delta(components: Components, epsilon: float, relative_width: float = 1e-6) -> Enclosure:
    """ln delta(epsilon) for any real epsilon, between two proved bounds."""
    held = tuple((pair, count) for pair, count in components if count > 0)
    log_infinite = _log_infinite_mass(held)
    if epsilon >= _largest_loss(held):
        return Enclosure(log_infinite - 8.0 * UNIT, min(log_infinite + 8.0 * UNIT, 0.0))
    closed = _closed_form(held, epsilon)
    if closed is not None:
        return Enclosure(closed.lower, closed.upper)
    return _with_infinite(_finite(sum_law(held), EXCESS, epsilon, relative_width), log_infinite)


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
    found = _finite(sum_law(held), kernel, loss, relative_width)
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
    law = sum_law(components)
    if law.parts:
        return None
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


# ------------------------------------------------------------------------------------ one value
def _finite(law: SumLaw, kernel: Kernel, x: float, relative_width: float) -> Enclosure:
    """ln g(x), on further lines when the first guess of g was far off or too much cancelled."""
    c = saddle(law, kernel, x)
    guess, caution = None, _CAUTION
    for _ in range(4):
        line = _line(law, kernel, c, x, guess, caution)
        found = line.certified(x)
        if found.width <= relative_width:
            return found
        guess, caution = _better_guess(line, found), 4.0 * caution
    raise _too_wide(found, relative_width)


def _better_guess(line: Line, found: Enclosure) -> float:
    """What ln g could be as low as, to size the aliases against."""
    low = found.lower if found.lower > -math.inf else min(found.upper, line.log_guess) - 5.0
    return min(low, line.log_guess - 3.0)


def _line(
    law: SumLaw,
    kernel: Kernel,
    c: float,
    x: float,
    guess: float | None,
    caution: float,
) -> Line:
    if guess is None:
        k, _, k2 = law.moments(c)
        guess = k - c * x + kernel.log_size(c)
        guess -= 0.5 * math.log(2.0 * math.pi * (k2 + kernel.slope(c)[1]))
    try:
        return Line(law, kernel, c, x, guess, caution=caution)
    except OverflowError as error:
        raise NotCertified(
            f"The inversion integral needs too much work ({error}). Use the lattice method."
        ) from error


def _too_wide(found: Enclosure, relative_width: float) -> NotCertified:
    return NotCertified(
        f"The inversion integral proved a relative width of {found.width:.1e} where "
        f"{relative_width:.1e} was asked for. Ask for a wider interval, or use the lattice method."
    )


# -------------------------------------------------------------------------------------- inverse
def epsilon(components: Components, delta: float, relative_width: float = 1e-6) -> Interval:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta, between two proved bounds.

    [inf, inf] when delta is below P(L = inf).
    """
    held = tuple((pair, count) for pair, count in components if count > 0)
    log_infinite = _log_infinite_mass(held)
    log_target = math.log(delta) if delta > 0.0 else -math.inf
    if _exceeds(held, log_infinite, delta):
        return Interval(math.inf, math.inf)
    if delta == 0.0:
        top = _largest_loss(held)
        return Interval(max(0.0, top - 8.0 * UNIT * abs(top)), max(0.0, top))
    if _closed_form(held, 0.0) is not None:
        return _invert(lambda e: log_delta(held, e), log_target, _largest_loss(held))
    if _trivially_zero(held, log_target):
        return Interval(0.0, 0.0)
    share = math.exp(log_infinite - log_target)  # of delta that infinite losses take
    if share > 1.0 - 1e-9:
        return Interval(0.0, math.inf)  # too close to tell; sound on both sides
    slack = 8.0 * UNIT * (abs(log_target) + abs(log_target) * share + 4.0) / (1.0 - share)
    log_finite = log_target + math.log1p(-share)
    return _Inverse(sum_law(held), log_finite, relative_width, slack).solve()


def _exceeds(components: Components, log_infinite: float, delta: float) -> bool:
    """Whether the mass of infinite losses is above delta: exactly so for one release."""
    if len(components) == 1 and components[0][1] == 1:
        return components[0][0].infinite_mass > delta
    return log_infinite > (math.log(delta) if delta > 0.0 else -math.inf)


def _trivially_zero(components: Components, log_target: float) -> bool:
    """delta(0) is at most the sum of the parts' delta(0) (total variation is subadditive)."""
    total = sum(count * math.exp(log_delta_single(pair, 0.0).upper) for pair, count in components)
    return total * (1.0 + 1e-12) <= math.exp(log_target)


class _Inverse:
    """Newton's method on ln g on one line, then the certificate on both sides of the root."""

    def __init__(self, law: SumLaw, log_target: float, relative_width: float, slack: float) -> None:
        self.law, self.log_target, self.relative_width = law, log_target, relative_width
        self.slack = slack  # the target is rounded: ln, and the infinite part taken off

    def solve(self) -> Interval:
        c = saddle_of_level(self.law, EXCESS, self.log_target)
        x = log_estimate(self.law, EXCESS, c)[0]
        if x <= 0.0:
            at_zero = _finite(self.law, EXCESS, 0.0, 1e-6)
            if at_zero.upper <= self.log_target - self.slack:
                return Interval(0.0, 0.0)
            x = 0.0
        low, high, caution = 0.0, math.inf, _CAUTION
        for _ in range(_MAX_LINES):
            c = saddle(self.law, EXCESS, x, math.log(c))
            line = _line(self.law, EXCESS, c, x, self.log_target, caution)
            at = line.certified(x)
            if at.width < 1.0:
                if at.lower > self.log_target:
                    low = max(low, x)
                elif at.upper < self.log_target:
                    high = min(high, x)
                root = self._newton(line, x)
                if abs(root - x) * line.c < 3.0:
                    answer = self._verify(line, max(root, 0.0))
                    if answer is not None:
                        return answer
                    caution *= 3.0  # too much cancelled for the width asked for
                x = root
            elif at.upper <= self.log_target:
                high, x = min(high, x), -math.inf
            else:
                caution *= 3.0
            if caution > 30.0:
                break
            if not low <= x < high:
                x = math.sqrt(low * high) if low > 0.1 * high else 0.5 * (low + high)
        raise NotCertified(
            "No epsilon of the relative width asked for could be proved by the inversion integral. "
            "Use the lattice method."
        )

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
            if high - low > self.relative_width * high:
                return None
            above = line.certified(low).lower >= self.log_target + self.slack or low == 0.0
            below = line.certified(high).upper <= self.log_target - self.slack
            if above and below:
                return Interval(low, high)
            reach *= 2.0
        return None


def _invert(log_delta_at: Any, log_target: float, largest: float) -> Interval:
    """Bisection on proved values of a decreasing function."""
    slack = 8.0 * UNIT * (abs(log_target) + 4.0)
    if log_delta_at(0.0).upper <= log_target - slack:
        return Interval(0.0, 0.0)
    low, high = 0.0, 1.0
    while high < largest and log_delta_at(high).upper > log_target - slack:
        high *= 2.0
    high = min(high, largest)
    outer = low, high
    for _ in range(200):
        mid = 0.5 * (low + high)
        if not low < mid < high or high - low < 1e-15 * high:
            break
        at = log_delta_at(mid)
        if at.upper <= log_target - slack:
            high = mid
        else:
            low = mid
    upper = high
    low, high = outer[0], upper
    for _ in range(200):
        mid = 0.5 * (low + high)
        if not low < mid < high or high - low < 1e-15 * high:
            break
        if log_delta_at(mid).lower >= log_target + slack:
            low = mid
        else:
            high = mid
    return Interval(low, upper)
