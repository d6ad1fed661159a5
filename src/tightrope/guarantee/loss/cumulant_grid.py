"""The trapezoidal grid of the sampled Gaussian: points, weights, ln G(w), rounding errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import numpy as np

from tightrope.guarantee.loss.gaussian import log_ratio
from tightrope.numerics.inversion_nodes import TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import UNIT, FloatArray, expm1_minus, log_sum_exp

if TYPE_CHECKING:
    from tightrope.guarantee.loss.cumulant_strip import AbstractSampled

__all__ = ["SampledPoints"]

_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


@final
class SampledPoints:
    """The trapezoidal points with their weights and rounding errors."""

    def __init__(
        self,
        of: AbstractSampled,
        tilt: float,
        s: FloatArray,
        step: float,
        reach: tuple[float, float],
    ) -> None:
        self.of, self.tilt, self.w, self.s, self.step, self.reach = (
            of,
            tilt,
            of.power(tilt),
            s,
            step,
            reach,
        )
        self.lr = log_ratio(s, of.rate, of.mu)
        self.log_weight = math.log(step) - _LOG_ROOT_2PI - 0.5 * s * s
        # u = mu s - mu^2/2 is rounded, and d ln r = t du
        self.lr_error = UNIT * (
            2.0 * of.share(s) * (of.mu * np.abs(s) + of.mu**2) + 4.0 * np.abs(self.lr)
        )
        self.weight_error = UNIT * (8.0 + s * s + abs(math.log(step)))

    def collect(self, frequency: float, log_strip: float) -> TiltedNodes:
        """The points with their tilted weights, normalised by G(w)."""
        value, rounding = self.log_mass()
        return tilted_nodes(
            points=self.of.sign * self.lr,
            exponents=self.log_weight + self.w * self.lr,
            mass=(value, rounding),
            exponent_error=self.exponent_error(),
            point_error=self.lr_error,
            quadrature=self.quadrature(log_strip, value),
            frequency=frequency,
        )

    def quadrature(self, log_strip: float, value: float) -> float:
        """Strip, truncation and (near G = 1, where the excess is summed) its Gaussian part."""
        error = math.exp(min(log_strip - value, 0.0)) + self.truncated(value)
        return error + self._base_error() if abs(value) <= 0.6 else error

    def exponent_error(self) -> FloatArray:
        w = self.w
        return self.weight_error + 2.0 * UNIT * np.abs(w * self.lr) + abs(w) * self.lr_error

    def log_mass(self) -> tuple[float, float]:
        """ln G(w) and its rounding error. Near 1, G - 1 is a sum of positive terms (z > 0)."""
        w, lr = self.w, self.lr
        exponent = self.log_weight + w * lr
        direct = float(log_sum_exp(exponent))
        if abs(direct) > 0.5:
            p = np.exp(exponent - direct)
            return direct, float(p @ self.exponent_error()) + 24.0 * UNIT * (1.0 + abs(direct))
        terms, sizes = self._excess()
        total = float(np.sum(terms))
        slope = np.abs(w) * np.abs(np.exp(exponent) - np.exp(self.log_weight + lr))
        plain = float(sizes @ (self.weight_error + 64.0 * UNIT))
        rounding = plain + float(slope @ self.lr_error)
        return math.log1p(total), 1.2 * rounding / (1.0 + total) + 2.0 * UNIT * abs(total)

    def _excess(self) -> tuple[FloatArray, FloatArray]:
        """Weighted r^w - 1 - w(r - 1), whose integral is G - 1, and the sum of |parts|."""
        z, lr, weight = self.tilt, self.lr, np.exp(self.log_weight)
        safe = np.minimum(lr, 50.0)
        x = np.minimum(z * safe, 200.0)
        if self.of.removes:  # r^{1+z} - 1 - (1+z)(r-1) = r h(z l) + z (l (r-1) - h(l))
            first = np.exp(safe) * expm1_minus(x)
            second = safe * np.expm1(safe) - expm1_minus(safe)
        else:  # r^{-z} - 1 + z(r-1) = h(-z l) + z h(l)
            first, second = expm1_minus(-x), expm1_minus(safe)
        near = (lr <= 50.0) & (np.abs(z * safe) <= 200.0)
        terms = np.where(near, weight * (first + z * second), 0.0)
        sizes = np.where(near, weight * (first + abs(z) * np.abs(second) * 3.0), 0.0)
        if near.all():
            return terms, sizes
        w = self.w
        with np.errstate(over="ignore"):
            parts = np.exp(self.log_weight + w * lr), np.exp(self.log_weight + lr)
        far = parts[0] - w * parts[1] - (1.0 - w) * weight
        size = parts[0] + abs(w) * parts[1] + abs(1.0 - w) * weight
        return np.where(near, terms, far), np.where(near, sizes, size * (2.0 + np.abs(w * lr)))

    def _base_error(self) -> float:
        """Trapezoidal and truncation error of the Gaussian part 1 + w (r - 1) of the excess."""
        strip = 2.1 * math.exp(-2.0 * (math.pi / self.step) ** 2)
        low, high = self.reach[0], self.reach[1] - self.of.mu
        tail = (self.step + 1.2534) * (math.exp(-0.5 * low * low) + math.exp(-0.5 * high * high))
        return (1.0 + 2.0 * abs(self.w)) * (strip + tail)

    def truncated(self, log_mass: float) -> float:
        """Tilted mass of the grid points beyond both ends, where f falls like a Gaussian."""
        ends = np.array(self.reach)
        f = -0.5 * ends * ends + self.w * log_ratio(ends, self.of.rate, self.of.mu) - log_mass
        return float(np.sum(np.exp(np.minimum(f, 700.0)))) * (self.step + 1.2534)
