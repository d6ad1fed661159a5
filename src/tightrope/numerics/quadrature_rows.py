"""Row-wise versions of the strip rule: one row for each integrand of a family."""

from __future__ import annotations

import math

import numpy as np

from tightrope.numerics.quadrature import FloatArray

__all__ = ["dyadic_floors", "widest_steps", "log_strip_errors"]


def dyadic_floors(x: FloatArray, bits: int = 10) -> FloatArray:
    """The largest numbers <= x with `bits` binary digits, so that small multiples are exact."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.floor(np.ldexp(mantissa, bits)), exponent - bits))


def widest_steps(
    depths: FloatArray, log_integrals: FloatArray, nats: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each row the largest step with a strip error below e^-nats, its depth and its integral.

    A function with int |f(x + i d)| dx <= e^log_integral on both sides of the strip |Im x| <= d has
    a trapezoidal error of at most 2 e^log_integral / (e^{2 pi d/h} - 1) on the infinite grid.
    """
    need = np.maximum(nats[:, None] + log_integrals + math.log(2.0) + 1e-3, 1.0)
    steps = 2.0 * math.pi * depths / need
    best = np.argmax(steps, axis=1)[:, None]
    step, depth, log_integral = (
        np.take_along_axis(a, best, axis=1)[:, 0] for a in (steps, depths, log_integrals)
    )
    return dyadic_floors(step), depth, log_integral


def log_strip_errors(depth: FloatArray, log_integral: FloatArray, step: FloatArray) -> FloatArray:
    """ln of the error bound of `widest_steps`."""
    rate = 2.0 * math.pi * depth / step
    return np.asarray(math.log(2.0) + log_integral - rate - np.log(-np.expm1(-rate)))
