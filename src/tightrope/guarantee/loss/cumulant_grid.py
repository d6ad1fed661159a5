"""The trapezoidal grid of the sampled Gaussian: points, weights, ln G(w), rounding errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_excess import Excess
from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, Reach, SampledStrip
from tightrope.numerics.inversion_nodes import TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import UNIT, FloatArray, log_sum_exp
from tightrope.numerics.quadrature_rows import dyadic_floors, log_strip_errors, widest_steps

__all__ = ["SampledGrid", "make_grid"]

_MAX_POINTS = 60_000


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
        return value, 1.01 * self._quadrature + rounding

    @cached_property
    def _log_share(self) -> FloatArray | None:
        return None if self.of.window is None else self.of.window.log_share(self.s)

    @cached_property
    def _exponents(self) -> FloatArray:
        """ln of the unnormalised tilted weights."""
        exponents = self.log_weight + self.w * self.lr
        return exponents if self._log_share is None else exponents + self._log_share

    @cached_property
    def _errors(self) -> tuple[FloatArray, FloatArray]:
        """Rounding of the exponents of the weights, and of ln r.

        u = mu s - mu^2/2 is rounded, and d ln r = t du. Exponents are sums of three terms, rounded
        three times.
        """
        size = self.of.mu * np.abs(self.s) + self.of.mu**2
        lr_size = np.abs(self.lr)
        lr_error = UNIT * (2.0 * self.of.share(self.s, self.lr) * size + 4.0 * lr_size)
        exponent = UNIT * (8.0 + 1.5 * self.s * self.s + 3.0 * np.abs(np.log(self.step))[:, None])
        exponent = exponent + np.abs(self.w) * (4.0 * UNIT * lr_size + lr_error)
        if self._log_share is not None:  # log_ndtr and its argument, for both ends
            exponent = exponent + UNIT * (32.0 + 16.0 * np.abs(self._log_share))
        return np.asarray(exponent), np.asarray(lr_error)

    @cached_property
    def _quadrature(self) -> FloatArray:
        """Strip, truncation and (near G = 1, where the excess is summed) its Gaussian part."""
        value = self._log_mass[0]
        strip = np.exp(np.minimum(self.log_strip - value, 0.0))
        # f falls at least like a Gaussian beyond both ends
        ends = np.stack(self.reach, axis=1)
        f = -0.5 * ends * ends + self.w * self.of.log_ratio(ends) - value[:, None]
        if self.of.window is not None:
            f[:, :1] += self.of.window.log_rising(ends[:, :1])
            f[:, 1:] += self.of.window.log_falling(ends[:, 1:])
        beyond = np.sum(np.exp(np.minimum(f, 700.0)), axis=1) * (self.step + 1.2534)
        if not self._may_be_near:
            return np.asarray(strip + beyond)
        return np.asarray(strip + beyond + np.where(np.abs(value) <= 0.6, self._base_error(), 0.0))

    @property
    def _may_be_near(self) -> bool:
        """Whether G may be written as 1 + a small sum."""
        return self.of.window is None or self.of.window.start is None

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
        exponents = self._exponents
        value = log_sum_exp(exponents)
        p = np.exp(exponents - value[:, None])
        rounding = np.sum(p * error, axis=1) + 24.0 * UNIT * (1.0 + np.abs(value))
        near = np.abs(value) <= 0.5
        if not self._may_be_near or not bool(np.any(near)):
            return value, rounding
        excess = Excess(self.w, self.tilt, self.removes, self.lr, self.log_weight)
        terms, sizes = excess.within(self.of.window, self.s, self._log_share)
        total = np.where(near, np.sum(terms, axis=1), 0.0)
        plain = np.exp(self.log_weight + np.minimum(self.lr, 700.0))
        slope = np.abs(self.w) * np.abs(np.exp(np.minimum(exponents, 700.0)) - plain)
        small = np.sum(sizes * (error + 64.0 * UNIT) + slope * lr_error, axis=1)
        small = 1.2 * small / (1.0 + total) + 2.0 * UNIT * np.abs(total)
        return np.where(near, np.log1p(total), value), np.where(near, small, rounding)


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
    # e^{frequency * angle} on the right needs a longer Gaussian tail for the strip than the sum
    further = np.sqrt(2.0 * nats + 3.0 * frequency[:, 0]) - np.sqrt(2.0 * nats)
    depths, logs = of.bound(w, frequency, (reach[0], reach[1] + further))
    step, depth, log_integral = widest_steps(depths, logs, nats - log_size)
    step = np.minimum(step, dyadic_floors(math.pi * np.sqrt(2.0 / (nats + 3.0))))
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
