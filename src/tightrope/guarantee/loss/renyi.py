"""Renyi divergences of pairs by two methods: the cumulant, and cells of the loss.

Statement: D_order(P||Q) = K(order - 1)/(order - 1). By cells: with x = dP/dQ and h(x) = x^order - 1
    - order (x - 1), e^{(order-1) D} - 1 = E_Q[h(x)], since E_Q[x] = 1. h is convex and >= 0, so
    nothing cancels. On a cell that holds mass P of the one law and Q of the other, the mean of x is
    P/Q: Q h(P/Q) is a lower bound (Jensen), and Q times the chord of h between the cell's ends an
    upper bound. Both are of second order.
Conditions: P(L = +inf) = 0, otherwise the divergence is infinite (or, where that mass was cut
    off, known from below by the losses that are left).
Validity: bounds on both sides; relative width by cells about (order * cell)^2/8.
Source: convexity.
Error: of the cumulant, quadrature bounded on a strip or an ellipse, truncation by Gaussian tails,
    rounding summed term by term. By cells, masses are widened by their stated rounding,
    and a cell whose mass is lost in it counts with the largest mass it can have; beyond the last
    cell, x <= e^{mu s - mu^2/2}.
Vectors: tests/unit/guarantee/test_renyi_cells.py, against closed forms and the cumulant.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, Components, law_of
from tightrope.guarantee.renyi.kernel import log_excess
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray, check_order

_NATS = 42.0  # quadrature errors below 1e-18


def renyi(pair: AbstractLossPair, order: ArrayLike) -> tuple[Any, Any]:
    """Lower and upper bound of D_order(P||Q) = K(order - 1)/(order - 1), order > 1.

    Infinite where the pair has P(L = +inf) > 0.
    """
    orders = np.atleast_1d(np.asarray(check_order(order), dtype=np.float64))
    bounds = np.array([_renyi_at(pair, float(a)) for a in orders.reshape(-1)])
    lower, upper = bounds[:, 0].reshape(np.shape(order)), bounds[:, 1].reshape(np.shape(order))
    return (lower, upper) if np.shape(order) else (float(lower), float(upper))


def _renyi_at(pair: AbstractLossPair, order: float) -> tuple[float, float]:
    if pair.infinite_mass > 0.0:
        found = renyi_of_endless(pair, order)
        return found.lower, found.upper
    z = order - 1.0  # exact for order in (1, 2]; one rounding otherwise
    mu = pair.plain_mu
    if mu is not None:
        value = 0.5 * mu * mu * order
        return value * (1.0 - 4.0 * UNIT), value * (1.0 + 4.0 * UNIT)
    # K >= z^2 Var/2-like sizes can be tiny: ask for digits relative to K, not to 1
    law = law_of(pair)
    try:
        value, error = (float(v[0]) for v in law.real(z, _NATS))
        if error > 1e-13 * abs(value):
            nats = _NATS - math.log(max(abs(value), 1e-200))
            value, error = (float(v[0]) for v in law.real(z, nats))
    except OverflowError as problem:
        raise NotCertified(
            f"The Renyi divergence of order {order:.3g} of {pair} needs too much work ({problem}). "
            "Ask for a smaller order; those up to 1e6 are answered for mu from 0.01 on."
        ) from problem
    if error == math.inf:
        raise NotCertified(
            f"Nothing is known of the Renyi divergence of order {order:.3g} of {pair}: it rests on "
            "rarer losses than its law was computed for. Ask for a smaller order."
        )
    slack = 8.0 * UNIT * abs(value) / z
    lower = (value - error) / z - slack
    return max(lower, 0.0), (value + error) / z + slack


# ---- by cells
_CELLS = 8_000
_NARROWEST = 1e-10  # cells are no narrower: their error is below 1e-18 order^2
_ROUNDING = 1e-12


def composed_renyi_by_cells(components: Components, order: float) -> Interval:
    """Divergences of independent parts add up."""
    parts = [(renyi_by_cells(pair, order), count) for pair, count in components if count > 0]
    lower = math.fsum(count * part.lower for part, count in parts)
    upper = math.fsum(count * part.upper for part, count in parts)
    return Interval(lower * (1.0 - _ROUNDING), upper * (1.0 + _ROUNDING))


def renyi_by_cells(pair: AbstractLossPair, order: float) -> Interval:
    """D_order(P||Q) from both sides."""
    order = check_order(order)
    if pair.infinite_mass > 0.0:
        return renyi_of_endless(pair, order)
    if len(pair.parts) > 1:  # e^{(order-1) D} - 1 is the mean of the parts'
        found = [(math.log(w), renyi_by_cells(part, order)) for w, part in pair.parts]
        ends = ([(w, part.lower) for w, part in found], [(w, part.upper) for w, part in found])
        logs = [np.array([w + _log_expm1((order - 1.0) * x) for w, x in end]) for end in ends]
        return _divergence(logs[0], logs[1], order)
    below, above = (pair.divergence_terms(order, way) for way in (-1.0, 1.0))
    if below is None or above is None:
        cells = _cells(pair, _reach(pair, order))
        below = cells.log_below(order)
        above = np.append(cells.log_above(order), pair.log_last_cell(order))
    return _divergence(below, above, order)


def renyi_of_endless(pair: AbstractLossPair, order: float) -> Interval:
    """Infinite where a loss is; of a pair that was cut, by what is left and by a proved slope."""
    if pair.least_infinite_mass > 0.0:
        return Interval.exact(math.inf)
    terms = pair.divergence_terms(order, -1.0)
    if terms is None:
        return Interval(0.0, math.inf)
    upper = pair.zero_concentrated * order * (1.0 + _ROUNDING)
    there = terms[:-1]  # what was cut adds something positive
    lower = _divergence(there, there, order).lower
    return Interval(min(lower, upper), upper)


def _log_expm1(value: float) -> float:
    if value == 0.0:
        return -math.inf
    return math.log(math.expm1(value)) if value < 30.0 else value + math.log1p(-math.exp(-value))


def _divergence(below: FloatArray, above: FloatArray, order: float) -> Interval:
    """ln(1 + sum)/(order - 1)."""
    lower, upper = (
        max(value, 0.0) + math.log1p(math.exp(-abs(value)))
        for value in (float(np.logaddexp.reduce(x)) for x in (below, above))
    )
    scale = 1.0 / (order - 1.0)
    return Interval(
        scale * lower * (1.0 - _ROUNDING), scale * max(upper, lower) * (1.0 + _ROUNDING)
    )


def _edges(pair: AbstractLossPair, order: float) -> FloatArray:
    """Losses between the cells, rising."""
    losses = pair.cell_edges(order, _CELLS)
    steps = np.unique(np.round(losses / _NARROWEST))
    low, high = pair.support
    inner = [x for x in (0.0, low) if math.isfinite(x)]  # atoms
    last = [high] if math.isfinite(high) else []
    first = low - 10.0 * _NARROWEST  # nothing lies below it
    edges = np.unique(np.concatenate([[first], inner, steps * _NARROWEST, last]))
    return edges[(edges >= first) & (edges <= high)]


class _Cells:
    """ln masses under P and Q of the cells (low, high]."""

    def __init__(self, pair: AbstractLossPair, edges: FloatArray) -> None:
        self.low, self.high = edges[:-1], edges[1:]
        finite = np.clip(edges, edges[1], edges[-1])
        errors = pair.log_error(finite)
        self.error = np.zeros(len(edges) - 1)
        survival, cdf = pair.log_survival(edges), pair.log_cdf(edges)
        self.log_p, self.log_q = (
            self._differences(above, below, errors)
            for above, below in zip(survival, cdf, strict=True)
        )
        self.lost = self.error > 0.01
        log_q = np.minimum(survival[1][:-1], cdf[1][1:])
        self.most = np.where(self.lost, log_q + errors[1:] + errors[:-1], self.log_q + self.error)

    def _differences(self, above: FloatArray, below: FloatArray, errors: FloatArray) -> FloatArray:
        """From the side where the masses are smaller; their relative error is collected."""
        right = above[:-1] < below[1:]
        large = np.where(right, above[:-1], below[1:])
        small = np.where(right, above[1:], below[:-1])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            logs = large + np.log(-np.expm1(np.minimum(small - large, 0.0)))
            lost = (errors[:-1] + errors[1:] + 1e-15) * np.exp(np.minimum(large - logs, 700.0))
        self.error = np.maximum(self.error, np.where(np.isfinite(large), lost, 0.0))
        return np.where(np.isnan(logs), -np.inf, logs)

    def _mean(self) -> FloatArray:
        with np.errstate(invalid="ignore"):
            mean = np.nan_to_num(self.log_p - self.log_q, nan=0.0, posinf=np.inf, neginf=-np.inf)
        return np.clip(mean, self.low, self.high)

    def log_below(self, order: float) -> FloatArray:
        """Jensen, at a mean moved towards x = 1 by its error, where h is smaller."""
        mean = self._mean()
        moved = np.sign(mean) * np.maximum(np.abs(mean) - 2.0 * self.error, 0.0)
        found = self.log_q - self.error + log_excess(moved, order)
        return np.where(self.lost | np.isnan(found), -np.inf, found)

    def log_above(self, order: float) -> FloatArray:
        """The chord; where the mass is lost in rounding, the larger end."""
        left, right = log_excess(self.low, order), log_excess(self.high, order)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            top = np.exp(np.minimum(self.high - self.low, 700.0)) - 1.0
            move = 2.0 * self.error * np.exp(np.minimum(self._mean() - self.low, 700.0)) / top
            weight = np.expm1(np.minimum(self._mean() - self.low, 700.0)) / top
            weight += np.where(right > left, move, -move)
            weight = np.clip(np.where(np.isfinite(weight), weight, 1.0), 0.0, 1.0)
            chord = np.logaddexp(left + np.log1p(-weight), right + np.log(weight))
        whole = self.lost | ~np.isfinite(self.low) | np.isnan(chord)
        return np.where(whole, np.maximum(left, right), chord) + self.most


@lru_cache(maxsize=16)
def _cells(pair: AbstractLossPair, order: float) -> _Cells:
    return _Cells(pair, _edges(pair, order))


def _reach(pair: AbstractLossPair, order: float) -> float:
    """The order that cells are made for: of a pair whose masses take long, for several."""
    return 4.0 ** math.ceil(math.log(order, 4.0)) if pair.is_costly else order
