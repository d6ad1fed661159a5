"""The strip bound of the sampled Gaussian: |phi(s + id) r(s + id)^w|, cell by cell (Part D(i).2).

G(w) = E_{N(0,1)} r^w;  K(z) = ln G(1+z) (remove),  ln G(-z) (add). G is the trapezoidal sum of an
integrand analytic for |Im s| < pi/mu; its modulus on a line of the strip is bounded cell by cell,
every factor being monotone or having a bounded second derivative in the cell.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tightrope.guarantee.loss.cumulant_grid import SampledPoints
from tightrope.guarantee.loss.gaussian import SampledGaussianPair, log_ratio
from tightrope.numerics.inversion_law import AbstractLaw
from tightrope.numerics.quadrature import (
    FloatArray,
    dyadic_floor,
    log_strip_error,
    log_sum_exp,
    widest_step,
)

__all__ = ["AbstractSampled"]

_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_DEPTHS = np.array([0.02, 0.06, 0.14, 0.25, 0.36, 0.49, 0.65, 0.8, 0.92])
_MAX_NODES = 60_000
_MAX_SHIFT = 5e3  # of the tilted normal, in standard deviations


class AbstractSampled(AbstractLaw):
    """Grid and strip of a SampledGaussianPair with rate < 1."""

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

    def _make_grid(self, top: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """ln r, ln weight and s on a grid wide enough for every power between 0 and `top`."""
        low, high = self.reach(top, 32.0)
        depth = min(0.75 * math.pi / self.mu, 8.0)
        step = 2.0 * math.pi * depth / (30.0 + 0.5 * depth * depth)
        s = np.arange(low, high + step, step)
        return log_ratio(s, self.rate, self.mu), math.log(step) - _LOG_ROOT_2PI - 0.5 * s * s, s

    def grid(self, power: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        size = 2.0 ** math.ceil(math.log2(max(abs(power), 1.0)))
        return self._grid(math.copysign(size, power))

    def reach(self, w: float, nats: float) -> tuple[float, float]:
        """Where phi(s) r^w, phi(s) and phi(s - mu) exceed about e^-nats of their integrals."""
        pad = math.sqrt(2.0 * nats) + 0.5
        if w < 0.0:
            return min(self._lowest_peak(w), 0.0) - pad, self.mu + pad
        return -pad, max(w, 1.0) * self.mu + pad

    def _lowest_peak(self, w: float) -> float:
        """For w < 0: a point left of the only maximum of -s^2/2 + w ln r, where s = w mu t(s)."""
        low, high = w * self.mu, 0.0
        for _ in range(40):
            mid = 0.5 * (low + high)
            if mid < w * self.mu * float(self.share(mid)):
                low = mid
            else:
                high = mid
            if high - low < 0.01 * (1.0 - high):
                break
        return low

    def share(self, s: FloatArray | float) -> FloatArray:
        """t(s) = q e^u / r, the posterior probability of a hit; rises from 0 to 1."""
        u = self.mu * np.asarray(s, dtype=np.float64) - 0.5 * self.mu * self.mu
        return np.exp(np.minimum(math.log(self.rate) + u - log_ratio(s, self.rate, self.mu), 0.0))

    def points(self, tilt: float, frequency: float, nats: float) -> tuple[SampledPoints, float]:
        """Grid points for frequencies up to the given one, and ln of their quadrature error."""
        w = self.power(tilt)
        nats += math.log1p(2.0 * abs(w))  # the weight of the Gaussian part of the excess
        reach = self.reach(w, nats + 3.0)
        # e^{frequency * angle} on the right needs a longer Gaussian tail for the strip than the sum
        further = math.sqrt(2.0 * nats + 3.0 * frequency) - math.sqrt(2.0 * nats)
        depths, logs = self.strip(w, frequency, (reach[0], reach[1] + further))
        log_size = self.log_size(tilt)
        step, best = widest_step(depths, logs - log_size, nats)
        step = min(step, dyadic_floor(math.pi * math.sqrt(2.0 / (nats + 3.0))))
        first, last = math.ceil(reach[0] / step), math.floor(reach[1] / step)
        if last - first > _MAX_NODES:
            raise OverflowError(f"{last - first} quadrature points")
        s = step * np.arange(first, last + 1, dtype=np.float64)
        log_error = log_strip_error(float(depths[best]), float(logs[best]), step)
        return SampledPoints(self, tilt, s, step, reach), log_error

    def log_size(self, tilt: float) -> float:
        """An estimate of ln G."""
        w = self.power(tilt)
        lr, lw, _ = self.grid(w)
        return float(log_sum_exp(w * lr + lw))

    def strip(
        self, w: float, frequency: float, reach: tuple[float, float]
    ) -> tuple[FloatArray, FloatArray]:
        """ln of a bound on int |phi(s+id) r(s+id)^w| ds for several depths d, |Im w| <= frequency.

        r(s+id)/r(s) = 1 - t + t e^{i theta}, theta = mu d: squared modulus
        1 - 2t(1-t)(1-cos theta), argument rising with t. -s^2/2 + w ln r is at most its larger end
        plus width^2/8 times -f'' = 1 - w mu^2 t(1-t). A negative frequency bounds the side on which
        e^{iyL} decays.
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
        total = np.logaddexp(inside, outside) - _LOG_ROOT_2PI + 1e-9
        return depths, total + 0.5 * depths * depths

    def _strip_tails(
        self,
        w: float,
        frequency: float,
        edges: FloatArray,
        lr: FloatArray,
        theta: FloatArray,
    ) -> FloatArray:
        """The same integral beyond the first and the last edge; f falls at least like a Gaussian.

        int_0^inf e^{-x^2/2} dx < 1.2534; beyond the right end the argument is at most theta.
        """
        push = max(frequency, 0.0)
        low, high = edges[0], edges[-1]
        t = float(self.share(float(low)))
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
        return np.asarray(np.logaddexp(left, right) + math.log(1.2534))
