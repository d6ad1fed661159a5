"""Lemma 3: the f-DP statement that the whole family of (epsilon, delta) pairs gives.

Statement: an (order, gamma)-Renyi DP mechanism is (eps, delta(eps))-DP for every eps >= 0, so its
    type II error at type I error t is at least the supremum over eps of
    max{ 1 - delta(eps) - e^eps t, e^-eps (1 - delta(eps) - t) }.
    With the two-sided delta this equals `regions.type_ii`; with Theorem 3's delta it is weaker.
Conditions: order > 1, gamma >= 0, 0 <= type_i <= 1.
Validity: bound (lower): any finite set of eps gives a valid one.
Source: Lemma 3, (43) of arXiv:2008.06529.
Error: the supremum is approached from below by a scan in ln(1 + eps) and zooming, to about 1e-10.
Vectors: tests/unit/reproduce/test_renyi_formulas.py (against `regions.type_ii`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.guarantee.renyi.kernel import checked_gamma
from tightrope.guarantee.renyi.optimal import optimal_delta
from tightrope.numerics.arrays import flat, shaped
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_order, check_probability

__all__ = ["type_ii", "type_ii_of_family"]

_SCAN, _ZOOM, _ROUNDS = 65, 17, 8


def type_ii(order: Any, gamma: Any, type_i: Any, *, sides: int = 2) -> Any:
    """A lower bound on the type II error at type_i."""
    (a, g, t), shape = flat(
        check_order(order), checked_gamma(gamma), check_probability(type_i, "type_i")
    )
    finite = np.minimum(g, 1e6)  # nothing survives beyond: the bound is 0

    def value(log_eps: FloatArray) -> FloatArray:
        eps = np.expm1(log_eps)
        delta = optimal_delta(*np.broadcast_arrays(a, finite, eps), sides=sides).upper
        return type_ii_of_family(eps, delta, t)

    # eps above gamma + ln 2/(order - 1) adds nothing that delta could still buy
    high = np.log1p(finite + 40.0 / np.minimum(a - 1.0, 1.0))
    best = _largest(value, np.zeros_like(high), high)
    return shaped(np.where(np.isinf(g), 0.0, best), shape)


def type_ii_of_family(eps: FloatArray, delta: FloatArray, type_i: FloatArray) -> FloatArray:
    """max{0, 1 - delta - e^eps t, e^-eps (1 - delta - t)}, rounded downwards."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        steep = np.where(type_i > 0.0, np.exp(np.minimum(eps, 709.0)) * type_i, 0.0)
        first = (1.0 - delta) - steep * (1.0 + 4.0 * ULP) - 2.0 * ULP
        second = np.exp(-eps) * ((1.0 - delta) - type_i) * (1.0 - 4.0 * ULP) - ULP
    return np.maximum(np.maximum(first, second), 0.0)


def _largest(value: Any, low: FloatArray, high: FloatArray) -> FloatArray:
    columns, best, count = np.arange(low.size), np.zeros_like(low), _SCAN
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, count)
        values = value(grid)
        place = values.argmax(axis=0)
        best = np.maximum(best, values[place, columns])
        low = grid[np.maximum(place - 1, 0), columns]
        high = grid[np.minimum(place + 1, count - 1), columns]
        count = _ZOOM
    return best
