"""Quadrature with proved errors: the trapezoidal rule on a strip, Gauss-Legendre on an ellipse.

Error: both rules converge like e^{-const n} for analytic integrands; the constants below are the
classical ones (Trefethen-Weideman 2014, Theorem 5.1; Trefethen 2013, Theorem 19.3).
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


def dyadic_floor(x: float, bits: int = 10) -> float:
    """The largest number <= x with `bits` binary digits, so that small multiples are exact."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits)


def log_sum_exp(x: FloatArray) -> FloatArray:
    """ln sum e^x along the last axis, for finite or -inf entries."""
    top = x.max(axis=-1, keepdims=True)
    if not np.isfinite(top).all():
        top = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(top[..., 0] + np.log(np.exp(x - top).sum(axis=-1)))
    return np.asarray(top[..., 0] + np.log(np.exp(x - top).sum(axis=-1)))


@lru_cache(maxsize=8)
def gauss_legendre(count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on [-1, 1], right to one unit.

    Those of numpy are off by several hundred units in the weights; one Newton step in decimal
    arithmetic of 40 digits squares their error.
    """
    nodes, weights = [], []
    with localcontext() as context:
        context.prec = 40
        for guess in np.polynomial.legendre.leggauss(count)[0].tolist():
            x = Decimal(guess)
            for _ in range(2):
                value, slope = _legendre(count, x)
                x -= value / slope
            slope = _legendre(count, x)[1]
            nodes.append(float(x))
            weights.append(float(2 / ((1 - x * x) * slope * slope)))
    return np.array(nodes), np.array(weights)


def _legendre(n: int, x: Decimal) -> tuple[Decimal, Decimal]:
    """P_n(x) and P_n'(x) by the three-term recurrence, |x| < 1."""
    before, now = Decimal(1), x
    for k in range(2, n + 1):
        before, now = now, ((2 * k - 1) * x * now - (k - 1) * before) / k
    return now, n * (before - x * now) / (1 - x * x)


def log_ellipse_error(count: int, radius: float, log_bound: float, half_width: float) -> float:
    """ln of the Gauss-Legendre error where |f| <= e^log_bound on the Bernstein ellipse `radius`.

    (64/15) M rho^{-2n} / (1 - rho^{-2}) on [-1, 1], times the half width of the panel.
    """
    tail = 2.0 * count * math.log(radius) + math.log(-math.expm1(-2.0 * math.log(radius)))
    return math.log(64.0 / 15.0 * half_width) + log_bound - tail


def expm1_minus(x: FloatArray) -> FloatArray:
    """e^x - 1 - x >= 0, relative error below 16 units; the series where the terms cancel."""
    x = np.asarray(x, dtype=np.float64)
    near = np.abs(x) < 0.5
    y = np.where(near, x, 0.0)
    series = np.zeros_like(y)
    for k in range(16, 1, -1):  # remainder below 0.5^15/17! of the first term
        series = (series + 1.0) * y / k
    far = np.where(near, 0.0, x)
    return np.where(near, series * y, np.expm1(far) - far)


# ---- the strip rule, one row for each integrand of a family
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
