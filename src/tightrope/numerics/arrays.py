"""Functions of arrays, element by element: broadcasting, enclosures, roots and verified steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.validate import FloatArray


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


def elementwise(*checks: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Check the arguments, one check for each, and broadcast them; floats in give floats out."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def asked(*values: ArrayLike, **options: Any) -> Any:
            arrays, shape = flat(*(check(v) for check, v in zip(checks, values, strict=True)))
            found = function(*arrays, **options)
            if isinstance(found, tuple):
                return Enclosure(shaped(found[0], shape), shaped(found[1], shape))
            return shaped(found, shape)

        return asked

    return decorated


# ---- Roots of increasing functions, many at a time, and verified steps away from them ------------
# `increasing_root` is Newton's method kept inside a bracket that the signs prove; elements that
# have converged leave the batch. It returns a point near the root and promises nothing: what is
# promised comes from `verified`, which moves outwards until a check with its own error passes.
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
