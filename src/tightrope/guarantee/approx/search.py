"""The smallest epsilon of a profile given as intervals, safe on both sides.

Statement: for a non-increasing profile that is constant from `top` on, the interval around
    min{x : delta(x) <= target}; inf where even that constant exceeds the target.
Conditions: `delta` returns an Interval around the true profile for every x >= 0.
Validity: exact; the upper end x has delta(x).upper <= target, the lower end delta(x).lower >
    target.
Source: Brent 1973 on ln delta; each end is then verified by itself.
Error: a few ulp of epsilon beyond the width of the intervals of delta.
Vectors: kov_epsilon in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tightrope.numerics.interval import Interval

__all__ = ["smallest_epsilon"]

_RELATIVE = 8.9e-16
_STEPS = 300


def smallest_epsilon(
    delta: Callable[[float], Interval], target: float, top: float, beyond: Interval
) -> Interval:
    """Interval around the smallest x with delta(x) <= target; delta is `beyond` from `top` on."""

    def profile(x: float) -> Interval:
        return beyond if x >= top else delta(x)

    if target >= 1.0 or profile(0.0).upper <= target:
        return Interval.exact(0.0)
    if beyond.lower > target:
        return Interval.exact(math.inf)
    upper = math.inf
    if beyond.upper <= target:
        upper = _crossing(lambda x: profile(x).upper, target, 0.0, top)[1]
    if profile(0.0).lower <= target:
        return Interval(0.0, upper)
    lower = _crossing(lambda x: profile(x).lower, target, 0.0, top)[0]
    return Interval(min(lower, upper), upper)


def _crossing(
    function: Callable[[float], float], target: float, low: float, high: float
) -> tuple[float, float]:
    """(low, high) with function(low) > target >= function(high), as close as can be."""

    def excess(x: float) -> float:
        value = function(x)
        return (_log(value) - _log(target)) or (1.0 if value > target else -1e-300)

    from scipy.optimize import brentq  # slow to import, and seldom needed

    root = brentq(excess, low, high, xtol=1e-300, rtol=_RELATIVE, maxiter=_STEPS)
    reach = 2.0 * _RELATIVE * root
    while True:  # grows fourfold, so it ends at `low` and `high`, which are known to hold
        a, b = max(root - reach, low), min(root + reach, high)
        if function(a) > target >= function(b):
            return a, b
        reach = 4.0 * reach + 5e-324


def _log(value: float) -> float:
    return math.log(max(value, 5e-324))
