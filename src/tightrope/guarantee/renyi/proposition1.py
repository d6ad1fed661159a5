"""Proposition 1, corrected: f-DP to Renyi DP.

Statement: with f = T(P, Q) (H0 is P),
    D_order(P||Q) = ln( int_0^1 |f'(t)|^(1-order) dt )/(order-1), infinite if f reaches 0 before 1.
    The printed term 1 - f(0) is wrong: it cancels against the mass of Q where P has none.
    On a cell with end slopes s >= s' (in size), mean slope m and any convex power x^-z:
    m^-z <= mean of |f'|^-z <= the chord of x^-z between s' and s, at m.
Conditions: order > 1; f convex, non-increasing; `slope` gives |f'| and may be 0 only at 1. The last
    cell needs |f'(1)| > 0, or `tail(order, t)`, an upper bound on the integral over [t, 1].
Validity: exact; the enclosure is rigorous for exact f and f'.
Source: Proposition 1, (42) of arXiv:2008.06529, corrected as in theory A21.
Error: the two rules above, summed over the mesh; upper end infinite where nothing bounds the tail.
    Rounding of the sums: 8 ulp.
Vectors: prop1 in tests/golden/renyi.json.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi._arrays import ULP, Enclosure
from tightrope.validate import FloatArray, check_order

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
    mesh = _mesh(cells)
    values, slopes = (np.asarray(g(mesh), dtype=np.float64) for g in (tradeoff, slope))
    _check_tradeoff(mesh, values, slopes)
    if values[-2] <= 0.0:
        return Enclosure(np.inf, np.inf)  # f reaches 0 before 1
    lower, upper = _cell_bounds(mesh, values, slopes, a - 1.0)
    if tail is not None:
        upper[-1] = min(upper[-1], tail(a, float(mesh[-2])))
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


def _mesh(cells: int) -> FloatArray:
    """Fine near both ends, down to one unit of rounding before 1."""
    body = np.sin(0.5 * np.pi * np.linspace(0.0, 1.0, cells + 1)) ** 2
    return np.unique(np.concatenate([body, 1.0 - 2.0 ** -np.arange(20.0, 50.0, 0.25), [1.0]]))


def _check_tradeoff(mesh: FloatArray, values: FloatArray, slopes: FloatArray) -> None:
    falling = np.all(np.diff(values) <= 1e-12) and np.all(np.diff(slopes) <= 1e-9 * slopes[:-1])
    below = np.all(values <= 1.0 - mesh + 1e-12)
    if not (falling and below) or np.isnan(values).any() or np.isnan(slopes).any():
        raise InvalidInput(
            "A trade-off function is convex, non-increasing and at most 1 - type_i, and `slope` is "
            "the size of its derivative, so it does not increase; the functions given do not "
            "behave like that. Pass f and |f'| of T(P, Q)."
        )


def _cell_bounds(
    mesh: FloatArray, values: FloatArray, slopes: FloatArray, z: float
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds of the integral over each cell."""
    widths = np.diff(mesh)
    steep, gentle = slopes[:-1], slopes[1:]
    mean = np.clip(-np.diff(values) / widths, gentle, steep)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        lower = widths * mean**-z
        share = np.where(steep > gentle, (mean - gentle) / (steep - gentle), 1.0)
        share = np.where(np.isinf(steep), 0.0, share)  # |f'(0)| = inf: its power is 0
        high_end = np.where(share > 0.0, share * steep**-z, 0.0)
        low_end = np.where(share < 1.0, (1.0 - share) * gentle**-z, 0.0)
        upper = widths * (high_end + low_end)
    return lower, upper
