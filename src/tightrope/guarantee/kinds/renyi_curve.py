"""Renyi divergence as a function of the order: terms that add up."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.base import Components, Guarantee
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.renyi._arrays import checked_gamma, rounded_up
from tightrope.validate import FloatArray, check_non_negative, check_order

__all__ = [
    "LinearTerm",
    "PairsTerm",
    "PureTerm",
    "RenyiTerm",
    "TableTerm",
    "TabulatedCurve",
    "ViewTerm",
]
__all__ += ["RenyiCurve", "known_renyi"]


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
        from tightrope.guarantee.renyi.randomized_response import renyi_of_pure

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
        value = np.minimum(rounded_up(chord), self._next_gamma(z, known))
        return np.where(z > known[-1], np.inf, value)

    def _next_gamma(self, z: FloatArray, known: FloatArray) -> FloatArray:
        return np.append(self.gammas, np.inf)[np.searchsorted(known, z)]
