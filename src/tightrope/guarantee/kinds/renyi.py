"""Renyi divergence as a function of the order: terms that add up."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply, InvalidInput, NotCertified
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.guarantee.renyi.best import best_delta, best_epsilon
from tightrope.guarantee.renyi.kernel import checked_gamma, rounded_up
from tightrope.guarantee.renyi.regions import type_ii_of_curve
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency
from tightrope.validate import (
    FloatArray,
    check_delta,
    check_non_negative,
    check_order,
    check_probability,
    check_real,
)


class RenyiTerm(Protocol):
    """One release: a valid upper bound of its Renyi divergence at each order (inf = unknown)."""

    def upper(self, orders: FloatArray) -> FloatArray: ...


@final
@dataclass(frozen=True)
class LinearTerm:
    """gamma = xi + rho * order: zCDP, and the Gaussian mechanism with rho = mu^2/2 and xi = 0."""

    rho: float
    xi: float = 0.0

    def upper(self, orders: FloatArray) -> FloatArray:
        return self.rho * orders + self.xi


@final
@dataclass(frozen=True)
class TableTerm:
    """Known at some orders only; in between by convexity, beyond the largest unknown."""

    orders: tuple[float, ...]
    gammas: tuple[float, ...]

    def upper(self, orders: FloatArray) -> FloatArray:
        return TabulatedCurve(self.orders, self.gammas)(orders)


@final
@dataclass(frozen=True)
class PureTerm:
    """epsilon-DP."""

    epsilon: float

    def upper(self, orders: FloatArray) -> FloatArray:
        from tightrope.guarantee.renyi.optimal import renyi_of_pure

        return np.asarray(renyi_of_pure(orders, self.epsilon), dtype=np.float64)


@final
@dataclass(frozen=True)
class PairsTerm:
    """Composed dominating pairs; the larger divergence of the two orders of the neighbours."""

    directions: tuple[Components, ...]

    def upper(self, orders: FloatArray) -> FloatArray:
        each = [
            [sum(count * _renyi_upper(pair, order) for pair, count in part) for order in orders]
            for part in self.directions
        ]
        return np.asarray(np.max(np.array(each), axis=0), dtype=np.float64)


@final
@dataclass(frozen=True)
class ViewTerm:
    """The Renyi view of a guarantee that is known by nothing else, such as that of a group."""

    guarantee: Guarantee

    def upper(self, orders: FloatArray) -> FloatArray:
        return np.array([known_renyi(self.guarantee, float(order)) for order in orders])


def known_renyi(guarantee: Guarantee, order: float) -> float:
    """The upper end of a divergence; inf (unknown, hence valid) where it is out of reach."""
    try:
        return guarantee.renyi(order).upper
    except NotCertified:
        return math.inf


@lru_cache(maxsize=1 << 16)
def _renyi_upper(pair: AbstractLossPair, order: float) -> float:
    """One divergence; searches over orders ask for the same ones again and again.

    inf (unknown, hence valid) at orders whose quadrature would be too large.
    """
    from tightrope.guarantee.loss.renyi import renyi

    try:
        return float(renyi(pair, order)[1])
    except NotCertified:
        return math.inf


@final
@dataclass(frozen=True)
class RenyiCurve:
    """A sum of terms with their counts."""

    terms: tuple[tuple[RenyiTerm, float], ...]

    @classmethod
    def of(cls, term: RenyiTerm) -> RenyiCurve:
        return cls(((term, 1.0),))

    def __call__(self, orders: float | FloatArray) -> FloatArray:
        """Upper bounds at the orders; rounding of the sum is added."""
        at = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        with np.errstate(over="ignore"):
            total = sum(count * term.upper(at) for term, count in self.terms)
        bound = np.asarray(total) * (1 + 1e-15 * (2 + len(self.terms)))
        return bound if np.ndim(orders) else bound[0]

    def __add__(self, other: RenyiCurve) -> RenyiCurve:
        merged: Counter[RenyiTerm] = Counter()
        for term, count in self.terms + other.terms:
            merged[term] += count  # type: ignore[assignment]
        return RenyiCurve(tuple(merged.items()))

    def __mul__(self, count: float) -> RenyiCurve:
        count = check_non_negative(count, "count")
        return RenyiCurve(tuple((term, have * count) for term, have in self.terms))


# ---- A Renyi curve known at a finite set of orders, continued between them -----------------------
# Statement: K(z) = z D_{1+z}(P||Q) is convex in z with K(0) = 0. Hence between known orders K lies
#     below its chords, below the smallest order D is at most its value there, and D never
#     decreases.
# Conditions: each gamma bounds the divergence at its order (both directions, all neighbours).
# Validity: bound; exact at the listed orders.
# Source: van Erven and Harremoes 2014 (arXiv:1206.2459), Theorem 3 and Corollary 2.
# Error: rounded upwards by 4 ulp.
# Vectors: tests/unit/guarantee/test_renyi_best.py.


class TabulatedCurve:
    """Upper bounds at any order up to the largest listed one; inf beyond it."""

    def __init__(self, orders: ArrayLike, gammas: ArrayLike) -> None:
        a = np.atleast_1d(np.asarray(check_order(orders), dtype=np.float64))
        g = np.atleast_1d(np.asarray(checked_gamma(gammas), dtype=np.float64))
        if a.shape != g.shape or a.ndim != 1:
            raise InvalidInput(
                f"Give one gamma for each order; got {a.size} orders and {g.size} gammas."
            )
        known = np.argsort(a)[np.isfinite(g[np.argsort(a)])]
        if known.size == 0:
            raise InvalidInput("Every gamma is infinite, so the table says nothing.")
        # a larger order bounds all smaller ones
        self.orders = a[known]
        self.gammas = np.minimum.accumulate(g[known][::-1])[::-1]

    def __call__(self, orders: FloatArray) -> FloatArray:
        z, known = np.asarray(orders, dtype=np.float64) - 1.0, self.orders - 1.0
        chord = np.interp(z, np.append(0.0, known), np.append(0.0, known * self.gammas)) / z
        next_gamma = np.append(self.gammas, np.inf)[np.searchsorted(known, z)]
        return np.where(z > known[-1], np.inf, np.minimum(rounded_up(chord), next_gamma))


# ---- Renyi DP for a range of orders: the moments accountant's view


@final
@dataclass(frozen=True)
class RenyiGuarantee(Guarantee):
    """(order, curve(order))-Renyi DP for every order of the curve, in both directions.

    `route` names the conversion to (epsilon, delta)-DP: "optimal" (the two-sided optimum), or an
    older one for comparison (the table is guarantee.renyi.ROUTES).
    """

    curve: RenyiCurve
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    validity: Validity = Validity.BOUND
    route: str = "optimal"
    records: int = 1

    def _one_epsilon(self, delta: float) -> Interval:
        d = check_delta(delta)
        if d == 0.0 or d == 1.0:
            return Interval.exact(math.inf if d == 0.0 else 0.0)
        return Interval.exact(_best_epsilon(self.curve, d, self.route))

    def _one_delta(self, epsilon: float) -> Interval:
        eps = check_real(epsilon, "epsilon", low=0.0)
        return Interval.exact(min(1.0, best_delta(self.curve, eps, route=self.route)))

    def _one_tradeoff(self, type_i: float) -> Interval:
        """Corollary 1 of Three Variants: the binary divergences of all orders."""
        a = check_probability(type_i, "type_i")
        return Interval.exact(float(type_ii_of_curve(self.curve, a)))

    def _one_renyi(self, order: float) -> Interval:
        return Interval.exact(float(self.curve(check_order(order))))


@lru_cache(maxsize=512)
def _best_epsilon(curve: RenyiCurve, delta: float, route: str) -> float:
    """An account asks for the same number several times: as answer, in tables, for errors."""
    return float(best_epsilon(curve, delta, route=route))


def renyi_guarantee_of(part: Guarantee) -> RenyiGuarantee:
    """The Renyi view of any guarantee that has one at every order."""
    if isinstance(part, RenyiGuarantee):
        return part
    if isinstance(part, GaussianGuarantee):
        curve = RenyiCurve.of(LinearTerm(0.5 * part.mu * part.mu))
    elif isinstance(part, ApproxGuarantee) and part.failure == 0.0:
        curve = RenyiCurve.of(PureTerm(part.level))
    else:
        directions = part.directions()
        if not math.isfinite(part.renyi(2.0).upper):
            raise DoesNotApply(
                f"{type(part).__name__} has no finite Renyi divergence (a failure probability "
                "delta > 0 makes it infinite), so it cannot be composed with a Renyi guarantee. "
                "Compose the (epsilon, delta) statements instead."
            )
        curve = RenyiCurve.of(ViewTerm(part) if directions is None else PairsTerm(directions))
    return RenyiGuarantee(curve, part.adjacency, part.validity, records=part.records)
