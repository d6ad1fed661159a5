"""Arrays in, arrays out: broadcasting, enclosures and outward rounding for this package."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

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
