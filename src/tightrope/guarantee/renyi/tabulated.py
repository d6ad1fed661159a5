"""A Renyi curve known at a finite set of orders, continued between them.

Statement: K(z) = z D_{1+z}(P||Q) is convex in z with K(0) = 0. Hence between known orders K lies
    below its chords, below the smallest order D is at most its value there, and D never decreases.
Conditions: each gamma bounds the divergence at its order (both directions, all neighbours).
Validity: bound; exact at the listed orders.
Source: van Erven and Harremoes 2014 (arXiv:1206.2459), Theorem 3 and Corollary 2.
Error: rounded upwards by 4 ulp.
Vectors: tests/unit/guarantee/test_renyi_best.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi._arrays import checked_gamma, rounded_up
from tightrope.validate import FloatArray, check_order

__all__ = ["TabulatedCurve"]


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
