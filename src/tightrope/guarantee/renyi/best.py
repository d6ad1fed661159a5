"""The best (epsilon, delta) over all orders of a Renyi curve.

Statement: if a mechanism is (order, curve(order))-Renyi DP for every order of a set, then each
    order gives a valid (epsilon, delta); the smallest is found by a scan in ln(order - 1) and
    repeated zooming into the best cell.
Conditions: curve(orders) gives, for an array of orders, upper bounds on the divergence in both
    directions; inf where nothing is known. `lowest`, `highest` limit the orders looked at.
Validity: bound: every order is valid, so stopping early or missing the best order is safe. For the
    whole curve no order-by-order conversion is optimal; only the privacy profile is lossless.
Source: Abadi et al. 2016 (moments accountant), (26)-(27) of arXiv:2008.06529.
Error: the order is found to about 1e-6 in ln(order - 1), which moves the value by about 1e-12
    relative (the minimand is quasi-convex for the curves of mechanisms).
Vectors: gaussian_composition in tests/golden/renyi.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi.closed_forms import (
    balle_delta,
    balle_epsilon,
    classical_delta,
    classical_epsilon,
    lemma1_delta,
    lemma1_epsilon,
)
from tightrope.guarantee.renyi.kernel import checked_delta, checked_epsilon
from tightrope.guarantee.renyi.optimal import optimal_delta, optimal_epsilon
from tightrope.validate import FloatArray, check_order

Curve = Callable[[FloatArray], Any]
Conversion = Callable[[Any, Any, float], Any]

LOWEST_ORDER = 1.0 + 1e-9
HIGHEST_ORDER = 1e9
_SCAN, _FINE_SCAN, _ZOOM = 49, 2001, 17
_NARROW = 1e-5


class Best(NamedTuple):
    """An upper bound and the order that gives it (nan where no order gives anything)."""

    bound: float
    order: float


def best_epsilon(curve: Curve, delta: float, *, route: str = "optimal", **limits: float) -> float:
    """The smallest epsilon at delta over all orders."""
    return best_for_delta(curve, delta, route=route, **limits).bound


def best_delta(curve: Curve, epsilon: float, *, route: str = "optimal", **limits: float) -> float:
    """The smallest delta at epsilon over all orders."""
    return best_for_epsilon(curve, epsilon, route=route, **limits).bound


def best_for_delta(
    curve: Curve,
    delta: float,
    *,
    route: str = "optimal",
    lowest: float = LOWEST_ORDER,
    highest: float = HIGHEST_ORDER,
) -> Best:
    """The smallest epsilon at delta, and its order."""
    target = float(checked_delta(delta))
    return _best(curve, target, route, lambda r: r.epsilon, math.inf, (lowest, highest))


def best_for_epsilon(
    curve: Curve,
    epsilon: float,
    *,
    route: str = "optimal",
    lowest: float = LOWEST_ORDER,
    highest: float = HIGHEST_ORDER,
) -> Best:
    """The smallest delta at epsilon, and its order."""
    target = float(checked_epsilon(epsilon))
    return _best(curve, target, route, lambda r: r.delta, 1.0, (lowest, highest))


def _best(
    curve: Curve,
    target: float,
    route: str,
    read: Callable[[Route], Conversion],
    worst: float,
    limits: tuple[float, float],
) -> Best:
    lowest, highest = (float(check_order(limit)) for limit in limits)
    if lowest > highest:
        raise InvalidInput(f"lowest={lowest} exceeds highest={highest}; swap them.")
    search, low, high = _Search(curve, target, worst), math.log(lowest - 1), math.log(highest - 1)
    search.look(np.linspace(low, high, _SCAN), read(ROUTES["lemma1"]))  # cheap: where to look
    if not math.isfinite(search.center):
        search.look(np.linspace(low, high, _FINE_SCAN), read(ROUTES["lemma1"]))
    if not math.isfinite(search.center):
        return Best(worst, math.nan)
    width = (high - low) / (_SCAN - 1)
    for _ in range(3):
        search.look(_around(search.center, width, low, high), read(ROUTES["lemma1"]))
        width *= 2.0 / (_ZOOM - 1)
    conversion = read(route_named(route))
    best = search.finish(conversion, 64.0 * width, low, high)
    listed = getattr(curve, "orders", None)
    if listed is None:
        return best
    # a table is tight at its own orders, which the zoom only approaches
    log_z = np.log(np.asarray(listed, dtype=np.float64) - 1.0)
    search.look(log_z[(log_z >= low) & (log_z <= high)], conversion)
    return min(best, Best(search.bound, search.order))


def _around(center: float, width: float, low: float, high: float) -> FloatArray:
    return np.linspace(max(low, center - width), min(high, center + width), _ZOOM)


class _Search:
    """The best point so far for one conversion of one curve."""

    def __init__(self, curve: Curve, target: float, worst: float) -> None:
        self.curve, self.target, self.worst = curve, target, worst
        self.bound, self.order, self.center, self.vertex = worst, math.nan, math.nan, 0.0

    def look(self, log_z: FloatArray, conversion: Conversion) -> None:
        """Evaluate at these orders and move the centre to the best of them."""
        if log_z.size == 0:
            return
        orders = 1.0 + np.exp(log_z)
        gammas = gammas_at(self.curve, orders)
        known = np.isfinite(gammas)
        if not known.any():
            return
        values = np.asarray(conversion(orders[known], gammas[known], self.target), dtype=float)
        # flat where the bound is trivial (delta = 1) or perfect (0): take the middle of the tie
        ties = np.flatnonzero(values == values.min())
        place = ties[ties.size // 2]
        if values[place] < self.worst:
            self.bound, self.order = float(values[place]), float(orders[known][place])
            self.center = float(log_z[known][place])
            self.vertex = _vertex(values, int(place))

    def finish(self, conversion: Conversion, width: float, low: float, high: float) -> Best:
        """Zoom with the conversion itself, following the minimum if it leaves the window."""
        best = Best(self.worst, math.nan)
        while width > _NARROW:
            window = _around(self.center, width, low, high)
            self.look(window, conversion)
            best = min(best, Best(self.bound, self.order))
            spacing = window[1] - window[0]
            edges = {window[0], window[-1]} - {low, high}
            width = 8.0 * width if self.center in edges else spacing / 4.0
            self.center += self.vertex * spacing
        return best


def _vertex(values: FloatArray, place: int) -> float:
    """The lowest point of the parabola through the best value and its neighbours, in spacings."""
    if not 0 < place < values.size - 1:
        return 0.0
    left, here, right = values[place - 1 : place + 2]
    bend = (left - here) + (right - here)
    return float(0.5 * (left - right) / bend) if bend > 0.0 and math.isfinite(bend) else 0.0


def gammas_at(curve: Curve, orders: FloatArray) -> FloatArray:
    """The curve at the orders, checked."""
    gammas = np.asarray(curve(orders), dtype=np.float64)
    if gammas.shape != orders.shape:
        raise InvalidInput(
            f"A Renyi curve gives one number for each order; got shape {gammas.shape} for "
            f"{orders.size} orders. Wrap a function of one order in numpy.vectorize."
        )
    if np.isnan(gammas).any() or (gammas < 0.0).any():
        bad = orders[np.isnan(gammas) | (gammas < 0.0)][0]
        raise InvalidInput(
            f"The Renyi curve is negative or NaN at order {bad:g}; a divergence is >= 0. "
            "Return inf at orders where nothing is known."
        )
    return gammas


# ---- Every conversion of this package with its name, its side and its source ---------------------
# `ROUTES` is keyed by a short name. A route from Renyi DP has `epsilon(order, gamma, delta)` and
# `delta(order, gamma, epsilon)`, both upper bounds.


@final
@dataclass(frozen=True)
class Route:
    """A way from (order, gamma)-Renyi DP to (epsilon, delta)-DP."""

    name: str
    side: str
    source: str
    epsilon: Callable[[Any, Any, Any], Any]
    delta: Callable[[Any, Any, Any], Any]


def _upper(conversion: Callable[..., Any], sides: int) -> Conversion:
    return lambda order, gamma, given: conversion(order, gamma, given, sides=sides).upper


_ASOODEH = "Asoodeh et al. 2021, arXiv:2008.06529"
_TWO, _ONE = ((_upper(optimal_epsilon, n), _upper(optimal_delta, n)) for n in (2, 1))
_PROVED = "made two-sided (docs/theorems/renyi_two_sided.md)"
_BALLE, _MIRONOV = "Balle et al. 2020, arXiv:1905.09982", "Mironov 2017, arXiv:1702.07476"
_LEMMA_1 = (lemma1_epsilon, lemma1_delta)

ROUTES: dict[str, Route] = {
    key: Route(name, "exact" if key == "optimal" else "upper bound", source, *conversions)
    for key, name, source, conversions in (
        ("optimal", "optimal, both directions", f"{_ASOODEH}, Theorem 3, {_PROVED}", _TWO),
        ("one_sided", "optimal, one direction (Theorem 3)", f"{_ASOODEH}, Theorem 3", _ONE),
        ("lemma1", "closed form (Lemma 1)", f"{_ASOODEH}, Lemma 1", _LEMMA_1),
        (
            "balle",
            "best constant (Balle et al.)",
            f"{_BALLE}, Theorem 21",
            (balle_epsilon, balle_delta),
        ),
        (
            "classical",
            "classical (Theorem 1)",
            f"{_MIRONOV}, Proposition 3",
            (classical_epsilon, classical_delta),
        ),
    )
}


def route_named(name: str) -> Route:
    """The route of that key."""
    if name not in ROUTES:
        raise InvalidInput(f"No conversion is named {name!r}; the table has {', '.join(ROUTES)}.")
    return ROUTES[name]
