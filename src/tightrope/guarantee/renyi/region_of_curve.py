"""Corollary 1: the f-DP statement of a whole Renyi curve.

Statement: if a mechanism is (order, curve(order))-Renyi DP for every order of a set, its type II
    error at type I error t is at least the largest, over the orders, of region_of_level.type_ii.
    The Kullback-Leibler form (49) needs only inf over orders of curve(order).
Conditions: curve(orders) bounds the divergences in both directions; inf where nothing is known.
Validity: bound (lower): every order is valid.
Source: Corollary 1, (48)-(49) of arXiv:2008.06529.
Error: the best order is found by a scan in ln(order - 1) and zooming. Safe side: lower.
Vectors: tests/unit/guarantee/test_renyi_regions.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi import region_of_level
from tightrope.guarantee.renyi._arrays import shaped
from tightrope.guarantee.renyi.best import HIGHEST_ORDER, LOWEST_ORDER, Curve, gammas_at
from tightrope.validate import FloatArray, check_probability

__all__ = ["type_ii", "type_ii_kullback_leibler"]

_SCAN, _ZOOM, _ROUNDS = 49, 17, 6


def type_ii(
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
        values = _at(curve, grid, flat_t)
        place = values.argmax(axis=0)
        best = np.maximum(best, values[place, columns])
        low = grid[np.maximum(place - 1, 0), columns]
        high = grid[np.minimum(place + 1, count - 1), columns]
        count = _ZOOM
    return shaped(best, t.shape)


def type_ii_kullback_leibler(
    curve: Curve, type_i: ArrayLike, *, lowest: float = LOWEST_ORDER, highest: float = HIGHEST_ORDER
) -> Any:
    """(49): the weaker region through Kullback-Leibler divergences."""
    orders = 1.0 + np.geomspace(lowest - 1.0, highest - 1.0, 8 * _SCAN)
    return region_of_level.type_ii_kullback_leibler(gammas_at(curve, orders).min(), type_i).lower


def _at(curve: Curve, log_z: FloatArray, type_i: FloatArray) -> FloatArray:
    orders = 1.0 + np.exp(log_z).ravel()
    gammas = gammas_at(curve, orders).reshape(log_z.shape)
    return np.asarray(region_of_level.type_ii(orders.reshape(log_z.shape), gammas, type_i).lower)
