"""The trapezoidal grid of the sampled Gaussian: points, weights, ln G(w), rounding errors.

Near G = 1 the sum is that of G - 1, without cancellation. docs/certificate_argument.md, 3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, Reach, SampledStrip
from tightrope.guarantee.loss.gaussian import log_sampled_error
from tightrope.numerics.inversion_law import TiltedNodes, log_error, tilted_nodes
from tightrope.numerics.quadrature import (
    FloatArray,
    dyadic_floors,
    expm1_minus,
    log_strip_errors,
    log_sum_exp,
    widest_steps,
)
from tightrope.numerics.rounding import UNIT

__all__ = ["SampledGrid", "make_grid", "Excess", "log_mass"]

_MAX_POINTS = 90_000  # of all rows together: about 20 MB of work space
_Parts = tuple[FloatArray, FloatArray]


@final
@dataclass(frozen=True)
class SampledGrid:
    """Points s (rows, points) with everything needed at one tilt z a row, w = 1 + z or -z."""

    of: SampledStrip
    removes: bool
    tilt: FloatArray  # (rows, 1)
    s: FloatArray
    lr: FloatArray
    log_weight: FloatArray  # -inf where a row has fewer points than the longest
    step: FloatArray
    reach: Reach
    log_strip: FloatArray

    @cached_property
    def w(self) -> FloatArray:
        return power(self.removes, self.tilt)

    def nodes(self, rows: int) -> TiltedNodes:
        """The points of the first rows with their tilted weights, normalised by G(w)."""
        error, lr_error = self._errors
        value, rounding = self._log_mass
        points = self.lr if self.removes else -self.lr
        return tilted_nodes(
            points=points[:rows],
            exponents=self._exponents[:rows],
            mass=(value[:rows], rounding[:rows]),
            exponent_error=error[:rows],
            point_error=lr_error[:rows],
            quadrature=self._quadrature[:rows],
        )

    def mass(self) -> tuple[FloatArray, FloatArray]:
        """ln G(w) and a proved bound on its error."""
        value, rounding = self._log_mass
        return value, log_error(self._quadrature) + rounding

    @cached_property
    def _exponents(self) -> FloatArray:
        """ln of the unnormalised tilted weights."""
        return np.asarray(self.log_weight + self.w * self.lr)

    @cached_property
    def _weight_error(self) -> FloatArray:
        """Relative rounding of the weights without r^w: sums of three terms, rounded thrice."""
        steps = 3.0 * np.abs(np.log(self.step))[:, None]
        return np.asarray(UNIT * (8.0 + 1.5 * self.s * self.s + steps))

    @cached_property
    def _errors(self) -> tuple[FloatArray, FloatArray]:
        """Rounding of the exponents of the weights, and of ln r.

        u = mu s - mu^2/2 is rounded, and d ln r = t du.
        """
        size = self.of.mu * np.abs(self.s) + self.of.mu**2
        lr_size = np.abs(self.lr)
        moved = 2.0 * UNIT * self.of.share(self.s, self.lr) * size
        lr_error = moved + log_sampled_error(self.lr, self.of.rate)
        exponent = self._weight_error + np.abs(self.w) * (4.0 * UNIT * lr_size + lr_error)
        return np.asarray(exponent), np.asarray(lr_error)

    @cached_property
    def _quadrature(self) -> FloatArray:
        """Strip, truncation and (near G = 1, where the excess is summed) its Gaussian part."""
        value = self._log_mass[0]
        strip = np.exp(np.minimum(self.log_strip - value, 0.0))
        # f falls at least like a Gaussian beyond both ends
        ends = np.stack(self.reach, axis=1)
        f = -0.5 * ends * ends + self.w * self.of.log_ratio(ends) - value[:, None]
        beyond = np.sum(np.exp(np.minimum(f, 700.0)), axis=1) * (self.step + 1.2534)
        return np.asarray(strip + beyond + np.where(np.abs(value) <= 0.6, self._base_error(), 0.0))

    def _base_error(self) -> FloatArray:
        """Trapezoidal and truncation error of the Gaussian part 1 + w (r - 1) of the excess."""
        strip = 2.1 * np.exp(-2.0 * (math.pi / self.step) ** 2)
        low, high = self.reach[0], self.reach[1] - self.of.mu[:, 0]
        tail = (self.step + 1.2534) * (np.exp(-0.5 * low * low) + np.exp(-0.5 * high * high))
        return np.asarray((1.0 + 2.0 * np.abs(self.w[:, 0])) * (strip + tail))

    @cached_property
    def _log_mass(self) -> tuple[FloatArray, FloatArray]:
        """ln G(w) and its rounding error. Near 1, G - 1 is a sum of positive terms (z > 0)."""
        error, lr_error = self._errors
        value, rounding = log_mass(self._exponents, error)
        if not bool(np.any(np.abs(value) <= 0.5)):
            return value, rounding
        excess = Excess(self.w, self.tilt, self.removes, self.lr, self.log_weight)
        total = excess.total(self._exponents, self._weight_error, lr_error)
        return excess.near(value, rounding, *total)


def power(removes: bool, tilt: FloatArray) -> FloatArray:
    """The w with M(tilt) = G(w)."""
    return 1.0 + tilt if removes else -tilt


def make_grid(
    of: SampledStrip,
    removes: bool,
    tilt: FloatArray,
    frequency: FloatArray,
    nats: FloatArray,
    log_size: FloatArray,
) -> SampledGrid:
    """The coarsest grids whose proved error is e^-nats of G, estimated as e^log_size.

    tilt and frequency have shape (rows, 1), nats and log_size (rows,).
    """
    w = power(removes, tilt)
    nats = nats + np.log1p(2.0 * np.abs(w[:, 0]))  # the weight of the Gaussian part of the excess
    reach = of.reach(w, nats + 3.0)
    depths, logs = of.bound(w, frequency, (reach[0], of.last_edge(w, reach[1], nats, frequency)))
    step, depth, log_integral = widest_steps(depths, logs, nats - log_size)
    step = np.minimum(step, dyadic_floors(math.pi * np.sqrt(2.0 / (nats + 3.0))))
    first, last = np.ceil(reach[0] / step), np.floor(reach[1] / step)
    points = int(np.max(last - first)) + 1
    if points * len(step) > _MAX_POINTS:
        raise OverflowError(f"{points} quadrature points")
    index = first[:, None] + np.arange(points)
    s = step[:, None] * index
    log_weight = np.log(step)[:, None] - LOG_ROOT_2PI - 0.5 * s * s
    if len(step) > 1:
        log_weight = np.where(index <= last[:, None], log_weight, -np.inf)
    log_strip = log_strip_errors(depth, log_integral, step)
    return SampledGrid(of, removes, tilt, s, of.log_ratio(s), log_weight, step, reach, log_strip)


# ---- G - 1 without cancellation
def log_mass(exponents: FloatArray, error: FloatArray) -> _Parts:
    """ln of the sum of e^exponents, and its rounding where each exponent is off by `error`."""
    value = log_sum_exp(exponents)
    p = np.exp(exponents - value[:, None])
    return value, (p * error).sum(axis=1) + 24.0 * UNIT * (1.0 + np.abs(value))


@final
@dataclass(frozen=True)
class Excess:
    """Weighted terms whose sum is G - 1, and the sum of the |parts| of each, for its rounding."""

    w: FloatArray  # (rows, 1)
    tilt: FloatArray
    removes: bool
    lr: FloatArray
    log_weight: FloatArray

    def _terms(self) -> _Parts:
        """Weighted r^w - 1 - w(r - 1), whose integral is G - 1 because E r = 1."""
        w, z, lr, log_weight = self.w, self.tilt, self.lr, self.log_weight
        weight = np.exp(log_weight)
        safe = np.minimum(lr, 50.0)
        x = np.clip(z * safe, -200.0, 200.0)
        if self.removes:  # r^{1+z} - 1 - (1+z)(r-1) = r h(z l) + z (l (r-1) - h(l)), h = e^x-1-x
            first = np.exp(safe) * expm1_minus(x)
            second = safe * np.expm1(safe) - expm1_minus(safe)
        else:  # r^{-z} - 1 + z(r-1) = h(-z l) + z h(l)
            first, second = expm1_minus(-x), expm1_minus(safe)
        near = (lr <= 50.0) & (np.abs(z * safe) <= 200.0)
        terms = np.where(near, weight * (first + z * second), 0.0)
        sizes = np.where(near, weight * (first + 3.0 * np.abs(z) * np.abs(second)), 0.0)
        if bool(near.all()):
            return terms, sizes
        parts = (
            np.exp(np.minimum(log_weight + w * lr, 600.0)),
            np.exp(np.minimum(log_weight + lr, 600.0)),
        )
        far = parts[0] - w * parts[1] - (1.0 - w) * weight
        size = parts[0] + np.abs(w) * parts[1] + np.abs(1.0 - w) * weight
        return np.where(near, terms, far), np.where(near, sizes, size * (2.0 + np.abs(w * lr)))

    def total(
        self, exponents: FloatArray, weight_error: FloatArray, lr_error: FloatArray
    ) -> _Parts:
        """The sum, and the bound on its rounding; weight_error: relative, of the weights.

        h(x) = e^x - 1 - x is right to 16 units and moves by at most 2 + max(x, 0) units with one of
        x; what the rounding of l does is in `slope`.
        """
        terms, sizes = self._terms()
        plain = np.exp(self.log_weight + np.minimum(self.lr, 700.0))
        slope = np.abs(self.w) * np.abs(np.exp(np.minimum(exponents, 700.0)) - plain)
        x = self.tilt * self.lr if self.removes else -self.tilt * self.lr
        own = weight_error + UNIT * (64.0 + 4.0 * np.clip(x, 0.0, 200.0))
        return np.sum(terms, axis=1), np.sum(sizes * own + slope * lr_error, axis=1)

    def near(
        self, value: FloatArray, rounding: FloatArray, total: FloatArray, small: FloatArray
    ) -> _Parts:
        """ln(1 + total) and its error where ln G is near 0, `value` and `rounding` elsewhere."""
        near = np.abs(value) <= 0.5
        total = np.where(near, total, 0.0)
        small = 1.2 * small / (1.0 + total) + 2.0 * UNIT * np.abs(total)
        return np.where(near, np.log1p(total), value), np.where(near, small, rounding)
