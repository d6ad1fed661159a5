"""Renyi divergence as a function of the order: terms that add up."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components, Guarantee
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.renyi.tabulated import TabulatedCurve
from tightrope.validate import FloatArray, check_non_negative

__all__ = ["RenyiTerm", "LinearTerm", "TableTerm", "PairsTerm", "PureTerm", "ViewTerm"]
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
    from tightrope.guarantee.loss.cumulant import renyi

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
