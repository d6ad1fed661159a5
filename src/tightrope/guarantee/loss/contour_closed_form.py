"""The smallest epsilon for a delta that is known in closed form: bisection on both sides."""

from __future__ import annotations

from collections.abc import Callable

from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import Enclosure
from tightrope.numerics.quadrature import UNIT

__all__ = ["invert_closed_form"]


def invert_closed_form(
    log_delta_at: Callable[[float], Enclosure], log_target: float, largest: float
) -> Interval:
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
