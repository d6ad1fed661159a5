"""Arrays in, arrays out: broadcasting, enclosures and outward rounding for this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.errors import InvalidInput
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_delta, check_order, check_real

__all__ = [
    "Enclosure",
    "ULP",
    "SMALLEST_DELTA",
    "flat",
    "shaped",
    "checked_order",
    "checked_epsilon",
    "checked_delta",
    "checked_gamma",
    "rounded_up",
    "rounded_down",
    "increasing_root",
    "verified",
]

TINY = np.finfo(np.float64).tiny
SMALLEST_DELTA = 1e-300
LARGEST_EPSILON = 1e100


class Enclosure(NamedTuple):
    """lower <= truth <= upper, elementwise (floats for scalar input)."""

    lower: Any
    upper: Any


def flat(*values: Any) -> tuple[list[FloatArray], tuple[int, ...]]:
    """Broadcast to one shape; the flattened arrays and that shape."""
    arrays = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in values))
    return [a.ravel() for a in arrays], arrays[0].shape


def shaped(values: FloatArray, shape: tuple[int, ...]) -> Any:
    return float(values[0]) if shape == () else values.reshape(shape)


def checked_order(order: ArrayLike) -> Any:
    return check_order(order)


def checked_epsilon(epsilon: ArrayLike) -> Any:
    return check_real(epsilon, "epsilon", low=0.0, high=LARGEST_EPSILON)


def checked_gamma(gamma: ArrayLike) -> Any:
    """A Renyi divergence; infinity is allowed (nothing is known at that order)."""
    return check_real(gamma, "gamma", low=0.0, finite=False)


def checked_delta(delta: ArrayLike) -> Any:
    """delta in [0, 1]; positive values below 1e-300 are refused: their logarithms lose digits."""
    checked = check_delta(delta)
    small = (np.asarray(checked) > 0.0) & (np.asarray(checked) < SMALLEST_DELTA)
    if np.any(small):
        raise InvalidInput(
            f"delta must be 0 or at least {SMALLEST_DELTA:g}; got {float(np.min(checked)):g}. "
            "Smaller values are subnormal in double precision, where no digit is certain. "
            f"Use delta={SMALLEST_DELTA:g}: no data set can tell the two apart."
        )
    return checked


def rounded_up(value: FloatArray, *sizes: FloatArray | float) -> FloatArray:
    """`value` plus a bound on its rounding: 4 ulp of each quantity that entered the sum."""
    return np.asarray(value + _slack(value, sizes))


def rounded_down(value: FloatArray, *sizes: FloatArray | float) -> FloatArray:
    return np.asarray(value - _slack(value, sizes))


def _slack(value: FloatArray, sizes: tuple[FloatArray | float, ...]) -> FloatArray:
    total: FloatArray = np.abs(np.where(np.isfinite(value), value, 0.0))
    for size in sizes:
        part = np.abs(size)
        total = total + np.where(np.isfinite(part), part, 0.0)
    return 4.0 * ULP * total


# ---- Roots of increasing functions, many at a time, and verified steps away from them ------------
# `increasing_root` is Newton's method kept inside a bracket that the signs prove; elements that
# have
# converged leave the batch. It returns a point near the root and promises nothing: what is promised
# comes from `verified`, which moves outwards until a check with its own error bound passes.


Indices = NDArray[np.intp]
ValueAndSlope = Callable[[FloatArray, Indices], tuple[FloatArray, FloatArray]]
Check = Callable[[FloatArray, Indices], NDArray[np.bool_]]

_MOST_STEPS = 300
_CONVERGED = 1e-9  # Newton squares the error, so the step after this one is at rounding level


def increasing_root(
    function: ValueAndSlope,
    start: FloatArray,
    low: FloatArray,
    high: FloatArray,
    *,
    smallest: float = 1.0,
) -> FloatArray:
    """x with function(x) = 0 for each element; the ends of the bracket may be infinite.

    Roots are found relative to max(|x|, smallest).
    """
    x, low, high = start.copy(), low.copy(), high.copy()
    active: Indices = np.arange(x.size)
    for _ in range(_MOST_STEPS):
        value, slope = function(x[active], active)
        at = x[active]
        low[active] = np.where(value <= 0.0, at, low[active])
        high[active] = np.where(value >= 0.0, at, high[active])
        step = _step(value, slope, at, low[active], high[active])
        x[active] = at + step
        moving = (np.abs(step) > _CONVERGED * np.maximum(smallest, np.abs(at))) & (value != 0.0)
        active = active[moving]
        if active.size == 0:
            break
    return x


def _step(
    value: FloatArray, slope: FloatArray, at: FloatArray, low: FloatArray, high: FloatArray
) -> FloatArray:
    """Newton's step; halving where it leaves the bracket, doubling while the bracket is open."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        newton = -value / slope
        reach = 4.0 + 2.0 * np.abs(at)
        newton = np.clip(np.where(np.isnan(newton), -np.sign(value) * reach, newton), -reach, reach)
        inside = (at + newton >= low) & (at + newton <= high)  # equal: a step below the spacing
        middle = 0.5 * (low + high) - at
        return np.asarray(np.where(inside | ~np.isfinite(middle), newton, middle))


def verified(
    found: FloatArray, step: FloatArray, check: Check, *, tries: int = 24
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """found + step, +4 step, +16 step, ... until `check` passes; and where it did."""
    x = found + step
    active: Indices = np.arange(x.size)
    for _ in range(tries):
        passed = check(x[active], active)
        active = active[~passed]
        if active.size == 0:
            break
        step = step * 4.0
        x[active] = found[active] + step[active]
    done = np.ones(x.size, dtype=np.bool_)
    done[active] = False
    return x, done
