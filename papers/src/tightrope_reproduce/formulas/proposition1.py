"""Proposition 1, corrected: f-DP to Renyi DP.

Statement: with f = T(P, Q) (H0 is P),
    D_order(P||Q) = ln( int_0^1 |f'(t)|^(1-order) dt )/(order-1), infinite if f reaches 0 before 1.
    The printed term 1 - f(0) is wrong: it cancels against the mass of Q where P has none.
    It is the f-divergence of t^order under a logarithm; the integral is enclosed as there.
Conditions: order > 1; f convex, non-increasing; `slope` gives |f'| and may be 0 only at 1. The last
    cell needs |f'(1)| > 0, or `tail(order, t)`, an upper bound on the integral over [t, 1].
Validity: exact; the enclosure is rigorous for exact f and f'.
Source: Proposition 1, (42) of arXiv:2008.06529, corrected: its term 1 - beta(0) must go.
Error: two rules for convex functions (tradeoff/divergence.py), summed over the mesh; upper end
    infinite where nothing bounds the tail. Rounding of the sums: 8 ulp.
Vectors: prop1 in tests/golden/renyi.json.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tightrope.numerics.arrays import Enclosure
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_order
from tightrope_reproduce.tradeoff.divergence import cell_bounds, mesh

__all__ = ["renyi_of_tradeoff", "gaussian_tail"]

Function = Callable[[FloatArray], FloatArray]
Tail = Callable[[float, float], float]


def renyi_of_tradeoff(
    order: float,
    tradeoff: Function,
    slope: Function,
    *,
    cells: int = 4096,
    tail: Tail | None = None,
) -> Enclosure:
    """Enclosure of D_order(P||Q) for f = T(P, Q) given with its slope |f'|."""
    a = check_order(order)
    at = mesh(cells)
    values, slopes = (np.asarray(g(at), dtype=np.float64) for g in (tradeoff, slope))
    lower, upper = cell_bounds(at, values, slopes, lambda x: x ** (1.0 - a), at_steepest=0.0)
    if values[-2] <= 0.0:
        return Enclosure(np.inf, np.inf)  # f reaches 0 before 1
    if tail is not None:
        upper[-1] = min(upper[-1], tail(a, float(at[-2])))
    with np.errstate(over="ignore"):
        low = np.log(lower.sum()) / (a - 1.0) - 8.0 * ULP / (a - 1.0)
        high = np.log(upper.sum()) / (a - 1.0) + 8.0 * ULP / (a - 1.0)
    return Enclosure(float(max(low, 0.0)), float(max(high, 0.0)))


def gaussian_tail(mu: float) -> Tail:
    """For G_mu: int over [t, 1] of |f'|^(1-order) = e^{z order mu^2/2} Phi(Phi^-1(1-t) + z mu)."""
    from scipy.special import log_ndtr, ndtri

    def tail(order: float, type_i: float) -> float:
        z = order - 1.0
        log_value = 0.5 * z * order * mu * mu + log_ndtr(ndtri(1.0 - type_i) + z * mu)
        return float(np.exp(min(log_value, 709.0)) * (1.0 + 1e-12))

    return tail
