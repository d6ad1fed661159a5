"""The Renyi divergence of one pair by cells of the loss: a second method, without quadrature.

Statement: with x = dP/dQ and h(x) = x^order - 1 - order (x - 1), e^{(order-1) D} - 1 = E_Q[h(x)],
    since E_Q[x] = 1. h is convex and >= 0, so nothing cancels. On a cell that holds mass P of the
    one law and Q of the other, the mean of x is P/Q: Q h(P/Q) is a lower bound (Jensen), and Q
    times the chord of h between the cell's ends an upper bound. Both are of second order.
Conditions: P(L = +inf) = 0, otherwise the divergence is infinite (or, where that mass was cut
    off, known from below by the losses that are left).
Validity: bounds on both sides; relative width about (order * cell)^2/8.
Source: convexity.
Error: masses are widened by their stated rounding, and a cell whose mass is lost in it counts with
    the largest mass it can have; beyond the last cell, x <= e^{mu s - mu^2/2}.
Vectors: tests/unit/guarantee/test_renyi_cells.py, against closed forms and the cumulant.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from tightrope.guarantee.loss.abstract import AbstractLossPair, Components
from tightrope.guarantee.loss.cumulant_mixture import furthest_peak
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
    log_ratio,
)
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicMixturePair
from tightrope.guarantee.renyi.kernel import log_kernel
from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray, check_order

__all__ = ["renyi_by_cells", "composed_renyi_by_cells", "renyi_of_endless"]

_CELLS = 8_000
_NARROWEST = 1e-10  # cells are no narrower: their error is below 1e-18 order^2
_BEYOND = 40.0  # standard deviations on either side of everything that counts
_ROUNDING = 1e-12

_Gaussian = GaussianPair | SampledGaussianPair | FixedSizeGaussianPair


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
    if isinstance(pair, DiscretePair):
        below, above = (discrete_logs(pair, order, way) for way in (-1.0, 1.0))
        return _divergence(below, above, order)
    if isinstance(pair, PublicMixturePair):
        return _of_parts(pair, order)
    cells = _cells(pair, _reach(pair, order))
    above = np.append(cells.log_above(order), _log_tail(pair, order))
    return _divergence(cells.log_below(order), above, order)


def renyi_of_endless(pair: AbstractLossPair, order: float) -> Interval:
    """Infinite where a loss is; of a pair that was cut, by what is left and by a proved slope."""
    if pair.least_infinite_mass > 0.0:
        return Interval.exact(math.inf)
    if not isinstance(pair, DiscretePair):
        return Interval(0.0, math.inf)
    upper = pair.zero_concentrated * order * (1.0 + _ROUNDING)
    there = discrete_logs(pair, order, -1.0)[:-1]  # what was cut adds something positive
    lower = _divergence(there, there, order).lower
    return Interval(min(lower, upper), upper)


def _of_parts(pair: PublicMixturePair, order: float) -> Interval:
    """e^{(order-1) D} - 1 is the mean of the parts'."""
    found = [(math.log(w), renyi_by_cells(part, order)) for w, part in pair.parts]
    below = np.array([w + _log_expm1((order - 1.0) * part.lower) for w, part in found])
    above = np.array([w + _log_expm1((order - 1.0) * part.upper) for w, part in found])
    return _divergence(below, above, order)


def _log_expm1(value: float) -> float:
    if value == 0.0:
        return -math.inf
    return math.log(math.expm1(value)) if value < 30.0 else value + math.log1p(-math.exp(-value))


def discrete_logs(pair: DiscretePair, order: float, way: float) -> FloatArray:
    """ln of Q h(x) of every loss, each at its lower or upper end, and of L = -inf."""
    losses = np.array(pair.losses)
    ends = np.copysign(np.maximum(np.abs(losses) + way * pair.loss_error, 0.0), losses)
    logs = pair.log_masses - losses + way * pair.log_errors
    with np.errstate(divide="ignore"):
        nowhere = np.log((order - 1.0) * pair.only_under_q)
    return np.append(logs + _log_excess(ends, order), nowhere)


def _divergence(below: FloatArray, above: FloatArray, order: float) -> Interval:
    """ln(1 + sum)/(order - 1)."""
    lower, upper = (_log1p_exp(float(np.logaddexp.reduce(x))) for x in (below, above))
    scale = 1.0 / (order - 1.0)
    return Interval(
        scale * lower * (1.0 - _ROUNDING), scale * max(upper, lower) * (1.0 + _ROUNDING)
    )


def _log1p_exp(value: float) -> float:
    return math.log1p(math.exp(value)) if value < 0.0 else value + math.log1p(math.exp(-value))


def _log_excess(loss: FloatArray, order: float) -> FloatArray:
    """ln h(e^loss); a loss of -inf gives ln(order - 1)."""
    z = np.full_like(loss, order - 1.0)
    return np.asarray(np.log(z) + log_kernel(loss, z) + np.maximum(loss, 0.0))


def _edges(pair: AbstractLossPair, order: float) -> FloatArray:
    """Losses between the cells, rising."""
    if isinstance(pair, _Gaussian):
        losses = _gaussian_edges(pair, order)
    elif isinstance(pair, GaussianMixturePair):
        end = furthest_peak(pair, order - 1.0) + _BEYOND
        losses = pair.loss(np.linspace(-_BEYOND, end, _CELLS + 1))
    else:
        losses = np.linspace(*pair.support, _CELLS + 1)
    steps = np.unique(np.round(losses / _NARROWEST))
    low, high = pair.support
    inner = [x for x in (0.0, low) if math.isfinite(x)]  # atoms
    last = [high] if math.isfinite(high) else []
    first = low - 10.0 * _NARROWEST  # nothing lies below it
    edges = np.unique(np.concatenate([[first], inner, steps * _NARROWEST, last]))
    return edges[(edges >= first) & (edges <= high)]


def _gaussian_edges(pair: _Gaussian, order: float) -> FloatArray:
    """At points s that are equally far apart."""
    points = np.linspace(-_BEYOND, order * pair.mu + _BEYOND, _CELLS + 1)
    if isinstance(pair, GaussianPair) or pair.rate == 1.0:  # then no loss has an upper end
        return pair.mu * points - 0.5 * pair.mu**2
    losses = log_ratio(points, pair.rate, pair.mu)
    if isinstance(pair, FixedSizeGaussianPair):  # the mirror image holds L < 0
        return np.concatenate([-losses[losses > 0.0], losses[losses > 0.0]])
    return losses if pair.direction == "remove" else -losses


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
        found = self.log_q - self.error + _log_excess(moved, order)
        return np.where(self.lost | np.isnan(found), -np.inf, found)

    def log_above(self, order: float) -> FloatArray:
        """The chord; where the mass is lost in rounding, the larger end."""
        left, right = _log_excess(self.low, order), _log_excess(self.high, order)
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
    """The order that cells are made for: of a mixture, whose masses take long, for several."""
    mixed = isinstance(pair, GaussianMixturePair)
    return 4.0 ** math.ceil(math.log(order, 4.0)) if mixed else order


def _log_tail(pair: AbstractLossPair, order: float) -> float:
    """ln of a bound on E_Q[x^order] beyond the last edge."""
    bounded = math.isfinite(pair.support[1])
    if isinstance(pair, GaussianMixturePair) and not bounded:  # falls like a Gaussian from there on
        last = np.array(furthest_peak(pair, order - 1.0) + _BEYOND - 0.01)
        value = pair.arms[0].log(last) + (order - 1.0) * pair.loss(last) - 0.5 * last * last
        return float(value) + 1e-6
    if bounded or not isinstance(pair, _Gaussian):
        return -math.inf
    return 0.5 * order * (order - 1.0) * pair.mu**2 + float(log_ndtr(1e-6 - _BEYOND))
