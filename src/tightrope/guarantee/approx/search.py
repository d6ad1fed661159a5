"""The smallest epsilon of a profile given as intervals, safe on both sides.

Statement: for a non-increasing profile with delta(top) <= target, the interval around
    min{x in [0, top] : delta(x) <= target}; inf where even delta(top) exceeds the target.
Conditions: `delta` returns an Interval around the true profile for every x >= 0.
Validity: exact; the upper end x has delta(x).upper <= target, the lower end delta(x).lower >
    target.
Source: bisection, refined by the secant through ln delta (Illinois rule).
Error: stops at relative width 1e-13 (or where the intervals of delta overlap the target).
Vectors: kov_epsilon in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tightrope.numerics.interval import Interval

__all__ = ["smallest_epsilon"]

_TOLERANCE = 1e-13
_STEPS = 200


def smallest_epsilon(delta: Callable[[float], Interval], target: float, top: float) -> Interval:
    """Interval around the smallest x in [0, top] with delta(x) <= target."""
    if target >= 1.0 or delta(0.0).upper <= target:
        return Interval.exact(0.0)
    at_top = delta(top)
    if at_top.upper > target:
        # the truth is `top` where only rounding is in the way, infinite where it cannot be reached
        return Interval(top if at_top.lower > target else _lower(delta, target, top), math.inf)
    upper = _crossing(lambda x: delta(x).upper, target, 0.0, top)[1]
    return Interval(min(_lower(delta, target, upper), upper), upper)


def _lower(delta: Callable[[float], Interval], target: float, top: float) -> float:
    if delta(0.0).lower <= target:
        return 0.0
    if delta(top).lower > target:
        return top
    return _crossing(lambda x: delta(x).lower, target, 0.0, top)[0]


def _crossing(
    function: Callable[[float], float], target: float, low: float, high: float
) -> tuple[float, float]:
    """(low, high) with function(low) > target >= function(high), as close as can be."""
    log_target = _log(target)
    f_low, f_high = _log(function(low)) - log_target, _log(function(high)) - log_target
    side = 0
    for step in range(_STEPS):
        width = high - low
        if width <= _TOLERANCE * high:
            break
        x = 0.5 * (low + high)
        if step % 3 and math.isfinite(f_low) and math.isfinite(f_high) and f_low > f_high:
            x = min(
                max(low + width * f_low / (f_low - f_high), low + 1e-14 * high), high - 1e-14 * high
            )
        value = _log(function(x)) - log_target
        if value > 0.0:
            low, f_low, f_high = x, value, f_high * (0.5 if side == 1 else 1.0)
            side = 1
        else:
            high, f_high, f_low = x, value, f_low * (0.5 if side == -1 else 1.0)
            side = -1
    return low, high


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
