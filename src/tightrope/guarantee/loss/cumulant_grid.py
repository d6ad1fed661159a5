"""The trapezoidal grid of the sampled Gaussian: points, weights, ln G(w), rounding errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr

from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, Reach, SampledStrip
from tightrope.numerics.inversion_nodes import TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import UNIT, FloatArray, expm1_minus, log_sum_exp
from tightrope.numerics.quadrature_rows import dyadic_floors, log_strip_errors, widest_steps

__all__ = ["SampledGrid", "make_grid"]

_MAX_POINTS = 60_000


@final
@dataclass(frozen=True)
class SampledGrid:
    """Points s (rows, points) with everything needed at one tilt z, w = 1 + z or -z."""

    of: SampledStrip
    removes: bool
    tilt: float
    s: FloatArray
    lr: FloatArray
    log_weight: FloatArray  # -inf where a row has fewer points than the longest
    step: FloatArray
    reach: Reach
    log_strip: FloatArray

    @property
    def w(self) -> float:
        return 1.0 + self.tilt if self.removes else -self.tilt

    def nodes(self) -> TiltedNodes:
        """The points with their tilted weights, normalised by G(w)."""
        error, lr_error = self._errors()
        value, rounding = self._log_mass(error, lr_error)
        return tilted_nodes(
            points=self.lr if self.removes else -self.lr,
            exponents=self._exponents(),
            mass=(value, rounding),
            exponent_error=error,
            point_error=lr_error,
            quadrature=self._quadrature(value),
        )

    def _exponents(self) -> FloatArray:
        """ln of the unnormalised tilted weights."""
        exponents = self.log_weight + self.w * self.lr
        return exponents if self.of.cut is None else exponents + self.of.log_kept(self.s)

    def mass(self) -> tuple[FloatArray, FloatArray]:
        """ln G(w) and a proved bound on its error."""
        value, rounding = self._log_mass(*self._errors())
        return value, 1.01 * self._quadrature(value) + rounding

    def _errors(self) -> tuple[FloatArray, FloatArray]:
        """Rounding of the exponents of the weights, and of ln r.

        u = mu s - mu^2/2 is rounded, and d ln r = t du.
        """
        size = self.of.mu * np.abs(self.s) + self.of.mu**2
        lr_size = np.abs(self.lr)
        lr_error = UNIT * (2.0 * self.of.share(self.s, self.lr) * size + 4.0 * lr_size)
        exponent = self._weight_error() + abs(self.w) * (4.0 * UNIT * lr_size + lr_error)
        if self.of.cut is not None:  # log_ndtr and its argument
            exponent = exponent + UNIT * (16.0 + 16.0 * np.abs(self.of.log_kept(self.s)))
        return np.asarray(exponent), np.asarray(lr_error)

    def _weight_error(self) -> FloatArray:
        # exponents are sums of three terms, rounded three times
        return UNIT * (8.0 + 1.5 * self.s * self.s + 3.0 * np.abs(np.log(self.step))[:, None])

    def _quadrature(self, value: FloatArray) -> FloatArray:
        """Strip, truncation and (near G = 1, where the excess is summed) its Gaussian part."""
        strip = np.exp(np.minimum(self.log_strip - value, 0.0))
        # f falls at least like a Gaussian beyond both ends
        ends = np.stack(self.reach, axis=1)
        f = -0.5 * ends * ends + self.w * self.of.log_ratio(ends) - value[:, None]
        f = f + self.of.log_kept(ends)
        beyond = np.sum(np.exp(np.minimum(f, 700.0)), axis=1) * (self.step + 1.2534)
        base = np.where(np.abs(value) <= 0.6, self._base_error(), 0.0)
        return np.asarray(strip + beyond + base)

    def _base_error(self) -> FloatArray:
        """Trapezoidal and truncation error of the Gaussian part 1 + w (r - 1) of the excess."""
        strip = 2.1 * np.exp(-2.0 * (math.pi / self.step) ** 2)
        low, high = self.reach[0], self.reach[1] - self.of.mu[:, 0]
        tail = (self.step + 1.2534) * (np.exp(-0.5 * low * low) + np.exp(-0.5 * high * high))
        return np.asarray((1.0 + 2.0 * abs(self.w)) * (strip + tail))

    def _log_mass(self, error: FloatArray, lr_error: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln G(w) and its rounding error. Near 1, G - 1 is a sum of positive terms (z > 0)."""
        exponents = self._exponents()
        value = log_sum_exp(exponents)
        p = np.exp(exponents - value[:, None])
        rounding = np.sum(p * error, axis=1) + 24.0 * UNIT * (1.0 + np.abs(value))
        near = np.abs(value) <= 0.5
        if not bool(np.any(near)):
            return value, rounding
        terms, sizes = self._excess() if self.of.cut is None else self._cut_excess()
        total = np.where(near, np.sum(terms, axis=1), 0.0)
        plain = np.exp(self.log_weight + np.minimum(self.lr, 700.0))
        slope = abs(self.w) * np.abs(np.exp(np.minimum(exponents, 700.0)) - plain)
        small = np.sum(sizes * (error + 64.0 * UNIT) + slope * lr_error, axis=1)
        small = 1.2 * small / (1.0 + total) + 2.0 * UNIT * np.abs(total)
        return np.where(near, np.log1p(total), value), np.where(near, small, rounding)

    def _cut_excess(self) -> tuple[FloatArray, FloatArray]:
        """G_cut - 1 = E[kept (r^w - 1 - w(r-1)) - dropped (1 + w(r-1))]."""
        assert self.of.cut is not None
        terms, sizes = self._excess()
        dropped = ndtr(self.of.sharpness * (self.s - self.of.cut))
        # 1 + w(r-1) = (1 - w) + w r
        base = np.exp(self.log_weight) * (1.0 - self.w) * dropped
        hit = self.w * np.exp(self.log_weight + np.minimum(self.lr, 700.0)) * dropped
        return terms - base - hit, sizes + 4.0 * (np.abs(base) + np.abs(hit))

    def _excess(self) -> tuple[FloatArray, FloatArray]:
        """Weighted r^w - 1 - w(r - 1), whose integral is G - 1, and the sum of |parts|."""
        w, z, lr = self.w, self.tilt, self.lr
        log_weight = self.log_weight + self.of.log_kept(self.s)
        weight = np.exp(log_weight)
        safe = np.minimum(lr, 50.0)
        x = np.minimum(z * safe, 200.0)
        if self.removes:  # r^{1+z} - 1 - (1+z)(r-1) = r h(z l) + z (l (r-1) - h(l)), h = e^x-1-x
            first = np.exp(safe) * expm1_minus(x)
            second = safe * np.expm1(safe) - expm1_minus(safe)
        else:  # r^{-z} - 1 + z(r-1) = h(-z l) + z h(l)
            first, second = expm1_minus(-x), expm1_minus(safe)
        near = (lr <= 50.0) & (np.abs(z * safe) <= 200.0)
        terms = np.where(near, weight * (first + z * second), 0.0)
        sizes = np.where(near, weight * (first + 3.0 * abs(z) * np.abs(second)), 0.0)
        if bool(near.all()):
            return terms, sizes
        parts = (
            np.exp(np.minimum(log_weight + w * lr, 600.0)),
            np.exp(np.minimum(log_weight + lr, 600.0)),
        )
        far = parts[0] - w * parts[1] - (1.0 - w) * weight
        size = parts[0] + abs(w) * parts[1] + abs(1.0 - w) * weight
        return np.where(near, terms, far), np.where(near, sizes, size * (2.0 + np.abs(w * lr)))


def make_grid(
    of: SampledStrip,
    removes: bool,
    tilt: float,
    frequency: float,
    nats: float,
    log_size: FloatArray,
) -> SampledGrid:
    """The coarsest grids whose proved error is e^-nats of G, estimated as e^log_size."""
    w = 1.0 + tilt if removes else -tilt
    nats += math.log1p(2.0 * abs(w))  # the weight of the Gaussian part of the excess
    reach = of.reach(w, nats + 3.0)
    # e^{frequency * angle} on the right needs a longer Gaussian tail for the strip than the sum
    further = math.sqrt(2.0 * nats + 3.0 * frequency) - math.sqrt(2.0 * nats)
    depths, logs = of.bound(w, frequency, (reach[0], reach[1] + further))
    step, depth, log_integral = widest_steps(depths, logs, nats - log_size)
    step = np.minimum(step, dyadic_floors(np.array([math.pi * math.sqrt(2.0 / (nats + 3.0))])))
    first, last = np.ceil(reach[0] / step), np.floor(reach[1] / step)
    points = int(np.max(last - first)) + 1
    if points > _MAX_POINTS:
        raise OverflowError(f"{points} quadrature points")
    index = first[:, None] + np.arange(points)
    s = step[:, None] * index
    log_weight = np.log(step)[:, None] - LOG_ROOT_2PI - 0.5 * s * s
    if len(step) > 1:
        log_weight = np.where(index <= last[:, None], log_weight, -np.inf)
    log_strip = log_strip_errors(depth, log_integral, step)
    return SampledGrid(of, removes, tilt, s, of.log_ratio(s), log_weight, step, reach, log_strip)
