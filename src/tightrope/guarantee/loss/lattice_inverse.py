"""The smallest epsilon with delta(epsilon) <= delta, bracketed by lattice laws."""

from __future__ import annotations

import math
from collections.abc import Callable

from tightrope.guarantee.base import Components
from tightrope.guarantee.loss import lattice
from tightrope.guarantee.loss.lattice_plan import best_plan
from tightrope.guarantee.loss.lattice_sketch import sketch_of
from tightrope.numerics.interval import Interval

__all__ = ["smallest_epsilon"]

_ROUGH = 0.05


def smallest_epsilon(components: Components, delta: float, relative_width: float) -> Interval:
    """Both ends are verified: delta_upper(upper) <= delta and delta_lower(lower) >= delta."""
    if delta >= 1.0 or not components:
        return Interval.exact(0.0)
    highest = math.fsum(count * pair.support[1] for pair, count in components)
    floor = lattice.infinite_log_mass(components)
    target = math.log(delta) if delta > 0.0 else -math.inf
    if target < floor.lower:
        return Interval.exact(math.inf)
    if target <= floor.upper or delta == 0.0:
        return Interval(0.0, highest * (1.0 + 1e-14))
    at_zero = lattice.log_delta(components, 0.0, _ROUGH)
    if at_zero.upper <= target:
        return Interval.exact(0.0)
    guess, rate = _near(components, target, min(highest, 1e6))
    width = min(max(relative_width * guess * (rate + 1e-9), 1e-9), _ROUGH)
    law = lattice.build(best_plan(components, guess, target, width))
    top = highest * (1.0 + 1e-14)
    upper = _crossing(law.log_upper, target, guess, top, rate, relative_width, -1.0)
    lower = _crossing(law.log_lower, target, guess, top, rate, relative_width, 1.0)
    return Interval(min(max(lower, 0.0), upper), upper)


def _near(components: Components, target: float, highest: float) -> tuple[float, float]:
    """An epsilon where ln delta is about `target`, and the slope there."""
    sketch = sketch_of(components)
    low, high = 0.0, 1.0
    while high < highest and sketch.saddle(high).log_delta > target:
        high *= 2.0
    high = min(high, highest)
    for _ in range(30):
        middle = 0.5 * (low + high)
        if sketch.saddle(middle).log_delta > target:
            low = middle
        else:
            high = middle
    guess = 0.5 * (low + high)
    rate = 1.0
    for _ in range(8):
        law = lattice.build(best_plan(components, guess, target, _ROUGH))
        here = law.log_upper(guess)
        rate = _slope(law.log_upper, guess, highest)
        if abs(here - target) < 0.5:
            return guess + (here - target) / rate, rate
        found = _crossing(law.log_upper, target, guess, highest, rate, 1e-3, 0.0)
        guess = max(found, 0.25 * guess)
    return guess, rate


def _slope(log_delta: Callable[[float], float], epsilon: float, highest: float) -> float:
    """- d ln delta / d eps, by a difference."""
    move = max(1e-4 * epsilon, 1e-12)
    move = min(move, 0.25 * (highest - epsilon)) if epsilon < highest else move
    change = log_delta(epsilon) - log_delta(epsilon + move)
    return max(change / move, 1e-3) if math.isfinite(change) else 1.0


def _crossing(
    log_delta: Callable[[float], float],
    target: float,
    guess: float,
    highest: float,
    rate: float,
    relative_width: float,
    side: float,
) -> float:
    """Where a decreasing function passes `target`; side < 0: from right, > 0: from left."""
    low, high = 0.0, highest
    value, x = log_delta(guess), guess
    tolerance = 0.02 * relative_width
    for _ in range(60):
        if value > target:
            low = max(low, x)
        else:
            high = min(high, x)
        if high - low <= tolerance * max(high, 1e-300) or value == target:
            break
        step = (value - target) / rate if math.isfinite(value) else -0.5 * (x - low)
        # step beyond the root by a hair, so that the two sides close in on it
        x_next = x + step + (0.5 * tolerance * x if value > target else -0.5 * tolerance * x)
        if not low < x_next < high:
            x_next = 0.5 * (low + (high if math.isfinite(high) else 2.0 * low + 1.0))
        x, value = x_next, log_delta(x_next)
    if side == 0.0:
        return 0.5 * (low + high) if math.isfinite(high) else low
    return high if side < 0.0 else low
