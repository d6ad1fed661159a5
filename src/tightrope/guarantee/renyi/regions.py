"""Renyi DP to f-DP: the smallest type II error that one level, or a curve of levels, allows.

Statement: every test between neighbours of an (order, gamma)-Renyi DP mechanism, with type I
    error t and type II error b <= 1 - t, satisfies d(1-t||b) <= gamma and d(1-b||t) <= gamma, where
    d is the Renyi divergence of two outcomes. At fixed t both hold on an interval [b_min, 1-t];
    b_min is the larger of the two roots. The Kullback-Leibler form (order -> 1) is weaker.
    With a curve of orders b_min is the largest over the orders (Corollary 1).
    The bound is attained: (1-t, b_min) is itself such a pair, so it is the best f-DP statement that
    one level implies, and equals lemma3.py with the two-sided delta.
Conditions: order > 1, gamma in [0, inf], 0 <= type_i <= 1; divergences bounded in both directions.
Validity: exact for one order; bound over several.
Source: Lemma 4 and Corollary 1, (44)-(49) of arXiv:2008.06529.
Error: each root is checked on both sides with the stated rounding of the divergence.
    Safe side: lower.
Vectors: lemma4_boundary in tests/golden/renyi.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from tightrope.guarantee.renyi.best import HIGHEST_ORDER, LOWEST_ORDER, Curve, gammas_at
from tightrope.guarantee.renyi.kernel import (
    TINY,
    checked_gamma,
    checked_type_i,
    excess_order,
    log_chi,
    log_chi_of_gamma,
    log_chi_slack,
)
from tightrope.numerics.arrays import (
    Enclosure,
    Indices,
    elementwise,
    increasing_root,
    shaped,
    verified,
)
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_probability

_SMALLEST_ERROR = 1e-300
_SCAN, _ZOOM, _ROUNDS = 49, 17, 6  # over the orders of a curve
# (ln chi, slope in the unknown, slack) at a value of the unknown
Shape = Callable[[FloatArray, Indices], tuple[FloatArray, FloatArray, FloatArray]]


def boundary(z: FloatArray, gamma: FloatArray, t: FloatArray) -> Enclosure:
    """The larger of both roots; type I errors whose inverse overflows are answered at 1e-300."""
    tiny = (t > 0.0) & (t < _SMALLEST_ERROR)
    raised = np.where(tiny, _SMALLEST_ERROR, t)  # the type II error falls
    one, other = _forward(z, gamma, raised), _backward(z, gamma, raised)
    upper = np.maximum(one.upper, other.upper)
    return Enclosure(np.maximum(one.lower, other.lower), np.where(tiny, 1.0, upper))


type_ii = elementwise(excess_order, checked_gamma, checked_type_i)(boundary)


def _forward(z: FloatArray, gamma: FloatArray, t: FloatArray) -> Enclosure:
    """p = 1-t is fixed, q = b = p e^-u; the unknown is u."""

    def shape(u: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray, FloatArray]:
        moved = (1.0 - t[i]) * -np.expm1(-u)  # p - q
        v = -np.log1p(moved / t[i])
        log_p = np.log1p(-t[i])
        value = log_chi(log_p, u, np.log(t[i] + moved), v, z[i])
        with np.errstate(under="ignore", over="ignore"):
            slope = np.exp(log_p + z[i] * u - value) * -np.expm1((1.0 + z[i]) * (v - u))
        return value, slope, log_chi_slack(log_p, u, z[i], value)

    inner = (t > 0.0) & (t < 1.0) & (gamma > 0.0) & np.isfinite(gamma)
    u = _roots(shape, z, gamma, inner)
    edge = np.where(t < 1.0, np.where(gamma > 0.0, gamma, 0.0), 0.0)  # t = 0: d = u
    low, high = np.where(inner, u.lower, edge), np.where(inner, u.upper, edge)
    with np.errstate(under="ignore"):
        lower = (1.0 - t) * np.exp(-high) * (1.0 - 4.0 * ULP)
        upper = (1.0 - t) * np.exp(-low) * (1.0 + 4.0 * ULP)
    return Enclosure(np.where(lower < TINY, 0.0, lower), np.minimum(upper, 1.0 - t))


def _backward(z: FloatArray, gamma: FloatArray, t: FloatArray) -> Enclosure:
    """q = t is fixed, p = 1-b, b = (1-t) e^-w; the unknown is w; b = 0 once gamma >= ln(1/t)."""

    def shape(w: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray, FloatArray]:
        moved = (1.0 - t[i]) * -np.expm1(-w)  # p - q
        u = np.log1p(moved / t[i])
        log_p = np.log(t[i] + moved)
        value = log_chi(log_p, u, np.log1p(-t[i]), -w, z[i])
        with np.errstate(under="ignore", over="ignore"):
            power = z[i] * u + np.log(-np.expm1(-z[i] * (u + w)) / z[i]) + np.log1p(z[i])
            slope = (1.0 - t[i]) * np.exp(power - w - value)
        return value, slope, log_chi_slack(log_p, u, z[i], value)

    reach = -xlogy(np.sign(t), t)  # the largest divergence, ln(1/t)
    inner = (t > 0.0) & (t < 1.0) & (gamma > 0.0) & (gamma < reach * (1.0 - 4.0 * ULP))
    w = _roots(shape, z, gamma, inner)
    with np.errstate(under="ignore"):
        lower = (1.0 - t) * np.exp(-np.where(inner, w.upper, 0.0)) * (1.0 - 4.0 * ULP)
        upper = (1.0 - t) * np.exp(-np.where(inner, w.lower, 0.0)) * (1.0 + 4.0 * ULP)
    free = (t == 0.0) | (gamma == 0.0)  # no loss at all: b = 1 - t
    lower = np.where(inner | free, lower, 0.0)
    upper = np.where(inner | free, upper, np.where(gamma < reach * (1 + 4 * ULP), 4 * ULP, 0.0))
    return Enclosure(np.where(lower < TINY, 0.0, lower), np.minimum(upper, 1.0 - t))


def _roots(shape: Shape, z: FloatArray, gamma: FloatArray, inner: ArrayLike) -> Enclosure:
    """Enclosure of the unknown with ln chi = that of gamma, where `inner`; 0 elsewhere."""
    lower, upper = np.zeros_like(z), np.full_like(z, np.inf)
    todo = np.flatnonzero(inner)
    if todo.size == 0:
        return Enclosure(lower, upper)
    level = gamma[todo]
    target = log_chi_of_gamma(level, z[todo])
    slack = 4.0 * ULP * (1.0 + z[todo] * level + np.abs(target))

    def residual(log_x: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        x = np.exp(np.minimum(log_x, 700.0))
        value, slope, _ = shape(x, todo[i])
        return value - target[i], x * slope

    unbounded = np.full_like(level, np.inf)
    found = np.exp(np.minimum(increasing_root(residual, np.log(level), -unbounded, unbounded), 700))
    value, slope, error = shape(found, todo)
    doubt = 2.0 * (error + slack + np.abs(value - target))
    step = np.minimum(doubt / np.maximum(slope, TINY), 0.25 * found) + 2.0 * ULP * found

    def above(x: FloatArray, i: Indices) -> Any:
        value, _, error = shape(x, todo[i])
        return value - error >= target[i] + slack[i]

    def below(x: FloatArray, i: Indices) -> Any:
        value, _, error = shape(np.maximum(x, TINY), todo[i])
        return (x <= 0.0) | (value + error <= target[i] - slack[i])

    (high, high_holds), (low, low_holds) = (
        verified(found, step, above),
        verified(found, -step, below),
    )
    upper[todo] = np.where(high_holds, high, np.inf)
    lower[todo] = np.where(low_holds, np.maximum(low, 0.0), 0.0)
    return Enclosure(lower, upper)


# ---- Corollary 1: a whole curve
# Statement: if a mechanism is (order, curve(order))-Renyi DP for every order of a set, its type II
#     error at type I error t is at least the largest, over the orders, of `type_ii`.
# Conditions: curve(orders) bounds the divergences in both directions; inf where nothing is known.
# Validity: bound (lower): every order is valid.
# Source: Corollary 1, (48) of arXiv:2008.06529.
# Error: the best order is found by a scan in ln(order - 1) and zooming. Safe side: lower.
# Vectors: tests/unit/guarantee/test_renyi_regions.py.


def type_ii_of_curve(
    curve: Curve, type_i: ArrayLike, *, lowest: float = LOWEST_ORDER, highest: float = HIGHEST_ORDER
) -> Any:
    """A lower bound on the type II error at type_i, over all orders of the curve."""
    t = np.asarray(check_probability(type_i, "type_i"), dtype=np.float64)
    flat_t = t.ravel()
    columns, best, count = np.arange(flat_t.size), np.zeros(flat_t.size), _SCAN
    low = np.full(flat_t.size, math.log(lowest - 1.0))
    high = np.full(flat_t.size, math.log(highest - 1.0))
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, count)
        orders = 1.0 + np.exp(grid)
        gammas = gammas_at(curve, orders.ravel()).reshape(orders.shape)
        values = type_ii(orders, gammas, flat_t).lower
        place = values.argmax(axis=0)
        best = np.maximum(best, values[place, columns])
        low = grid[np.maximum(place - 1, 0), columns]
        high = grid[np.minimum(place + 1, count - 1), columns]
        count = _ZOOM
    return shaped(best, t.shape)
