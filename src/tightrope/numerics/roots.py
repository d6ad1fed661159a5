"""The crossing of zero of a monotone function, with both sides of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tightrope.errors import NotCertified


@dataclass(frozen=True)
class Crossing:
    """function(above) > 0 and function(below) <= 0; the two points are close together."""

    above: float
    below: float


def crossing(
    function: Callable[[float], float],
    guess: float,
    *,
    smallest: float,
    largest: float,
    tolerance: float = 1e-7,
) -> Crossing:
    """The point x > 0 where a non-increasing function falls to zero, to `tolerance` relative.

    Secant steps in ln x, kept inside a bracket and bisected when they stall; the last step looks
    `tolerance/2` to the safe side of the secant point, so that the bracket closes from both ends.

    Error: both ends were evaluated; nothing is extrapolated. Raises NotCertified when the function
    is positive on all of [smallest, largest]; returns smallest for both ends when it never is.
    """
    above, below = _bracket(function, guess, smallest, largest)
    if above is None:
        return Crossing(smallest, smallest)
    (a, fa), (b, fb) = above, below
    last = [above, below]  # the two points looked at last: their secant closes in ever faster
    for attempt in range(200):
        if b - a <= tolerance:
            break
        x = _next(last, (a, fa), (b, fb)) if attempt % 8 != 7 else 0.5 * (a + b)
        nudge = 0.45 * tolerance
        for point in (x + nudge, x - nudge):
            if not a < point < b:
                continue
            value = function(math.exp(point))
            last = [last[1], (point, value)]
            a, fa, b, fb = (point, value, b, fb) if value > 0 else (a, fa, point, value)
            if abs(value) > 1e-3 * abs(fa - fb) + 1e-12 and b - a > 100 * tolerance:
                break  # far from the root still: the second look would be wasted
    return Crossing(math.exp(a), math.exp(b))


Point = tuple[float, float]


def _bracket(
    function: Callable[[float], float], guess: float, smallest: float, largest: float
) -> tuple[Point | None, Point]:
    """ln x with a positive value (None if there is none) and ln x with a non-positive one."""
    low, high = math.log(smallest), math.log(largest)
    x, reach = min(max(math.log(guess), low), high), 0.05
    value = function(math.exp(x))
    sign = 1.0 if value > 0 else -1.0
    known = (x, value)
    while True:
        moved = min(max(x + sign * reach, low), high)
        value = function(math.exp(moved))
        if (value > 0) != (sign > 0):
            return (known, (moved, value)) if sign > 0 else ((moved, value), known)
        if moved == high and sign > 0:
            raise NotCertified(
                f"No value up to {largest:g} suffices (looked at {math.exp(moved):g}). Relax the "
                "target, or change the other parameters."
            )
        if moved == low and sign < 0:
            return None, (moved, value)
        known, x, reach = (moved, value), moved, 3.0 * reach


def _next(last: list[Point], above: Point, below: Point) -> float:
    """The zero of the secant of the two last points, or of the bracket."""
    (p, fp), (q, fq) = last
    if math.isfinite(fp) and math.isfinite(fq) and fp != fq:
        x = q - fq * (q - p) / (fq - fp)
        if above[0] < x < below[0]:
            return x
    (a, fa), (b, fb) = above, below
    if not (math.isfinite(fa) and math.isfinite(fb)) or fa == fb:
        return 0.5 * (a + b)
    x = a + (b - a) * fa / (fa - fb)
    return min(max(x, a + 0.02 * (b - a)), b - 0.02 * (b - a))


def last_integer(accept: Callable[[int], float], guess: int, largest: int) -> int:
    """The largest n in [0, largest] with accept(n) <= 0, for a non-decreasing function.

    Secant steps in ln n inside a bracket of integers; every claim was evaluated.
    """
    low, high = 0, largest + 1
    flow, fhigh = -math.inf, math.inf
    step, n = 2.0, min(max(guess, 1), largest)
    while high - low > 1:
        value = accept(n)
        if value <= 0:
            low, flow = n, value
        else:
            high, fhigh = n, value
        if high > largest:
            n = min(int(low * step) + 1, largest)
            if low == largest:
                return largest
            step *= 2.0
        elif low == 0:
            n = max(int(high / step), 1)
            step *= 2.0
        elif math.isfinite(flow) and math.isfinite(fhigh):
            share = -flow / (fhigh - flow) if fhigh > flow else 0.5
            n = int(low + min(max(share, 0.05), 0.95) * (high - low))
            n = min(max(n, low + 1), high - 1)
        else:
            n = (low + high) // 2
    return low
