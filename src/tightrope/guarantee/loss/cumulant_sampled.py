"""The cumulant of the Poisson-sampled Gaussian, both directions (theory A57, Part D).

G(w) = E_{N(0,1)} r^w;  K(z) = ln G(1+z) (remove),  ln G(-z) (add). G is the trapezoidal sum of an
integrand analytic for |Im s| < pi/mu; the sum of |integrand| on a line of the strip is bounded
cell by cell, every factor being monotone or having a bounded second derivative in the cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import final

import numpy as np

from tightrope.numerics.inversion_law import AbstractLaw
from tightrope.guarantee.loss.gaussian import SampledGaussianPair, log_ratio
from tightrope.numerics.inversion_decay import LOG_MASS_SLACK, Decay, layers_of_steps
from tightrope.numerics.inversion_nodes import TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import (
    UNIT,
    FloatArray,
    dyadic_floor,
    expm1_minus,
    log_strip_error,
    log_sum_exp,
    widest_step,
)

__all__ = ["SampledCumulant"]

_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_DEPTHS = np.array([0.02, 0.06, 0.14, 0.25, 0.36, 0.49, 0.65, 0.8, 0.92])
_MAX_NODES = 200_000
_MAX_SHIFT = 5e3  # of the tilted normal, in standard deviations


@final
class SampledCumulant(AbstractLaw):
    """K of a SampledGaussianPair with rate < 1."""

    def __init__(self, pair: SampledGaussianPair) -> None:
        self.rate, self.mu = pair.rate, pair.mu
        self.removes = pair.direction == "remove"
        self.sign = 1.0 if self.removes else -1.0
        self._grid = lru_cache(maxsize=4)(self._make_grid)

    def power(self, tilt: float) -> float:
        """The w with M(tilt) = G(w)."""
        return 1.0 + tilt if self.removes else -tilt

    @property
    def max_tilt(self) -> float:
        return _MAX_SHIFT / self.mu if self.removes else 1e9

    # ------------------------------------------------------------------ quick values for searching
    def _make_grid(self, top: float) -> tuple[FloatArray, FloatArray]:
        """ln r and ln weight on a grid wide enough for every power between 0 and `top`."""
        low, high = self.reach(top, 32.0)
        depth = min(0.75 * math.pi / self.mu, 8.0)
        step = 2.0 * math.pi * depth / (30.0 + 0.5 * depth * depth)
        s = np.arange(low, high + step, step)
        return log_ratio(s, self.rate, self.mu), math.log(step) - _LOG_ROOT_2PI - 0.5 * s * s

    def _grid_for(self, power: float) -> tuple[FloatArray, FloatArray]:
        size = 2.0 ** math.ceil(math.log2(max(abs(power), 1.0)))
        return self._grid(math.copysign(size, power))

    def values(self, tilts: FloatArray) -> FloatArray:
        powers = 1.0 + tilts if self.removes else -tilts
        extreme = float(powers[np.argmax(np.abs(powers))])
        lr, lw = self._grid_for(extreme)
        return log_sum_exp(np.multiply.outer(powers, lr) + lw)

    def moments(self, tilt: float) -> tuple[float, float, float]:
        w = self.power(tilt)
        lr, lw = self._grid_for(w)
        exponent = w * lr + lw
        top = float(np.max(exponent))
        p = np.exp(exponent - top)
        total = float(np.sum(p))
        mean = float(p @ lr) / total
        return top + math.log(total), self.sign * mean, float(p @ (lr - mean) ** 2) / total

    # ----------------------------------------------------------------------------- proved values
    def reach(self, w: float, nats: float) -> tuple[float, float]:
        """Where phi(s) r^w, phi(s) and phi(s - mu) exceed about e^-nats of their integrals."""
        pad = math.sqrt(2.0 * nats) + 0.5
        if w >= 0.0:
            return -pad, max(w, 1.0) * self.mu + pad
        return min(self._lowest_peak(w), 0.0) - pad, self.mu + pad

    def _lowest_peak(self, w: float) -> float:
        """For w < 0: a point left of the only maximum of -s^2/2 + w ln r, where s = w mu t(s)."""
        low, high = w * self.mu, 0.0
        for _ in range(40):
            mid = 0.5 * (low + high)
            if mid < w * self.mu * self.share(np.float64(mid)):
                low = mid
            else:
                high = mid
            if high - low < 0.01 * (1.0 - high):
                break
        return low

    def share(self, s: FloatArray) -> FloatArray:
        """t(s) = q e^u / r, the posterior probability of a hit; rises from 0 to 1."""
        u = self.mu * s - 0.5 * self.mu * self.mu
        return np.exp(np.minimum(math.log(self.rate) + u - log_ratio(s, self.rate, self.mu), 0.0))

    def real(self, tilt: float, nats: float) -> tuple[float, float]:
        w = self.power(tilt)
        if w * self.mu > 2e4 and w * self.mu**2 > 200.0:
            return self._far(w)
        return super().real(tilt, nats)

    def _far(self, w: float) -> tuple[float, float]:
        """ln G(w) = w ln q + w(w-1) mu^2/2 + ln E_{N(w mu,1)} (1 + (1-q)/q e^-u)^w, u = mu s - ...

        The last term is >= 0. From s = w mu/4 on it is at most w (1-q)/q e^{-w mu^2/4 + mu^2}; what
        lies left of that is below e^{-w^2 mu^2/4}.
        """
        main = w * math.log(self.rate), 0.5 * w * (w - 1.0) * self.mu**2
        log_kappa = math.log(w / self.rate) - 0.25 * w * self.mu**2 + self.mu**2
        if log_kappa > -40.0:
            raise OverflowError(f"order {w:.1e} at rate {self.rate:.1e}")
        return sum(main), 1e-15 + 16.0 * UNIT * (main[1] - main[0])

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        w = self.power(tilt)
        nats += math.log1p(2.0 * abs(w))  # the weight of the Gaussian part of the excess
        reach = self.reach(w, nats + 3.0)
        # e^{frequency * angle} on the right needs a longer Gaussian tail for the strip than the sum
        longer = (
            reach[0],
            reach[1] + math.sqrt(2.0 * nats + 3.0 * frequency) - math.sqrt(2.0 * nats),
        )
        depths, log_integrals = self.strip(w, frequency, longer)
        log_size = self.moments(tilt)[0]
        step, best = widest_step(depths, log_integrals - log_size, nats)
        step = min(step, dyadic_floor(math.pi * math.sqrt(2.0 / (nats + 3.0))))
        first, last = math.ceil(reach[0] / step), math.floor(reach[1] / step)
        if last - first > _MAX_NODES:
            raise OverflowError(f"{last - first} quadrature points")
        s = step * np.arange(first, last + 1)
        log_error = float(log_strip_error(float(depths[best]), float(log_integrals[best]), step))
        return _Points(self, tilt, s, step, reach).collect(frequency, log_error)

    def strip(
        self, w: float, frequency: float, reach: tuple[float, float]
    ) -> tuple[FloatArray, FloatArray]:
        """ln of a bound on int |phi(s+id) r(s+id)^w| ds for several depths d, |Im w| <= frequency.

        r(s+id)/r(s) = 1 - t + t e^{i theta}, theta = mu d: squared modulus 1 - 2t(1-t)(1-cos theta),
        argument rising with t. -s^2/2 + w ln r is at most its larger end plus width^2/8 times
        -f'' = 1 - w mu^2 t(1-t). A negative frequency bounds the decaying side instead.
        """
        widest = min(math.pi / self.mu, 14.0) if w >= 0.0 else min(0.5 * math.pi / self.mu, 14.0)
        depths = _DEPTHS * widest
        cells = max(8, math.ceil((reach[1] - reach[0]) / min(0.25, 0.6 / self.mu)))
        edges = np.linspace(reach[0], reach[1], cells + 1)
        width = (reach[1] - reach[0]) / cells
        lr, t = log_ratio(edges, self.rate, self.mu), self.share(edges)
        f = -0.5 * edges * edges + w * lr
        cross = t * (1.0 - t)
        if w < 0.0:
            middle = np.clip(0.5, t[:-1], t[1:])
            crossed = middle * (1.0 - middle)
            bend = 1.0 - w * self.mu**2 * crossed
        else:
            crossed = np.minimum(cross[:-1], cross[1:])
            bend = np.ones(cells)
        f = np.maximum(f[:-1], f[1:]) + 0.125 * width * width * bend + math.log(width)
        theta = (self.mu * depths)[:, None]
        modulus = 0.5 * w * np.log1p(-2.0 * crossed * (1.0 - np.cos(theta)))
        end = t[1:] if frequency >= 0.0 else t[:-1]
        angle = np.arctan2(end * np.sin(theta), 1.0 - end + end * np.cos(theta))
        inside = log_sum_exp(f + modulus + frequency * angle)
        outside = self._strip_tails(w, frequency, edges, lr, theta[:, 0])
        total = np.logaddexp(inside, outside) + 0.5 * depths * depths - _LOG_ROOT_2PI + 1e-9
        return depths, total

    def _strip_tails(
        self, w: float, frequency: float, edges: FloatArray, lr: FloatArray, theta: FloatArray
    ) -> FloatArray:
        """The same integral beyond the first and the last edge; f falls at least like a Gaussian.

        int_0^inf e^{-x^2/2} dx < 1.2534; beyond the right end the argument is at most theta.
        """
        push = max(frequency, 0.0)
        low, high = edges[0], edges[-1]
        t = float(self.share(np.float64(low)))
        swing = np.arctan2(t * np.sin(theta), 1.0 - t + t * np.cos(theta))
        if w >= 0.0:
            left = w * lr[0] - 0.5 * low * low + push * swing
            right = w * lr[-1] - 0.5 * high * high + push * theta
        else:  # theta <= pi/2: |r(s+id)| rises with s and is >= 1 - q
            dent = np.log1p(-2.0 * min(t, 0.5) * (1.0 - min(t, 0.5)) * (1.0 - np.cos(theta)))
            left = w * lr[0] - 0.5 * low * low + 0.5 * w * dent + push * swing
            b = math.log(self.rate) + self.mu * high - 0.5 * self.mu**2
            floor = 0.5 * np.logaddexp(2.0 * math.log1p(-self.rate), 2.0 * b)
            right = w * floor - 0.5 * high * high + push * theta
        return np.logaddexp(left, right) + math.log(1.2534)

    def decay(self, tilt: float) -> Decay:
        """Layers of the density of L under the tilted law, which is w(s)/|L'(s)|, L' = mu t."""
        w = self.power(tilt)
        low, high = self.reach(w, 12.0)
        low -= self.mu  # the density of L leans left of that of s
        cell = min(0.1, 0.5 / (self.mu * math.sqrt(max(w + 1.0, 1.0))))
        edges = np.linspace(low, high, min(4000, math.ceil((high - low) / cell)) + 1)
        width = (high - low) / (len(edges) - 1)
        lr = log_ratio(edges, self.rate, self.mu)
        u = self.mu * edges - 0.5 * self.mu**2
        log_size = self.moments(tilt)[0]
        scale = log_size + LOG_MASS_SLACK + math.log(self.rate * self.mu) + _LOG_ROOT_2PI
        g = -0.5 * edges * edges + (w + 1.0) * lr - u - scale
        bend = 0.125 * width * width * max(0.0, 0.25 * (w + 1.0) * self.mu**2 - 1.0)
        heights = np.exp(np.minimum(g[:-1], g[1:]) - bend)
        # at most two maxima (a line meets a sigmoid three times): variation <= 4 sup
        above = 0.125 * width * width * (1.0 + max(0.0, -(w + 1.0)) * 0.25 * self.mu**2)
        variation = 4.0 * math.exp(min(float(np.max(g)) + above, 700.0))
        layers = layers_of_steps(lr, heights, int(np.argmax(heights)))
        return Decay(layers.lengths, layers.masses, variation, self._shifted(w, log_size), log_size)

    def _shifted(self, w: float, log_size: float) -> Callable[[float], float]:
        """|M(c+iy)| <= int |phi r^w| on the line where the factor e^{iyL} decays."""
        reach = self.reach(w, 36.0)

        def further(y: float) -> float:
            _, logs = self.strip(w, -y, reach)
            return math.exp(min(float(np.min(logs)) - log_size + LOG_MASS_SLACK, 0.0))

        return further


@final
class _Points:
    """The trapezoidal points with their weights and rounding errors."""

    def __init__(
        self,
        of: SampledCumulant,
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
        value, rounding = self._log_mass()
        error = math.exp(min(log_strip - value, 0.0)) + self._truncated(value)
        if abs(value) <= 0.6:
            error += self._base_error()  # part of the excess formula only
        return tilted_nodes(
            points=self.of.sign * self.lr,
            exponents=self.log_weight + self.w * self.lr,
            mass=(value, rounding),
            exponent_error=self._exponent_error(),
            point_error=self.lr_error,
            quadrature=error,
            frequency=frequency,
        )[0]

    def _exponent_error(self) -> FloatArray:
        w = self.w
        return self.weight_error + 2.0 * UNIT * np.abs(w * self.lr) + abs(w) * self.lr_error

    def _log_mass(self) -> tuple[float, float]:
        """ln G(w) and its rounding error. Near 1, G - 1 is a sum of positive terms (z > 0)."""
        w, lr = self.w, self.lr
        exponent = self.log_weight + w * lr
        direct = float(log_sum_exp(exponent))
        if abs(direct) > 0.5:
            p = np.exp(exponent - direct)
            return direct, float(p @ self._exponent_error()) + 24.0 * UNIT * (1.0 + abs(direct))
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

    def _truncated(self, log_mass: float) -> float:
        """Tilted mass of the grid points beyond both ends; f falls at least like a Gaussian there."""
        low, high = self.reach
        rate, mu = self.of.rate, self.of.mu
        ends = np.array([low, high])
        f = -0.5 * ends * ends + self.w * log_ratio(ends, rate, mu) - log_mass
        return float(np.sum(np.exp(np.minimum(f, 700.0)))) * (self.step + 1.2534)
