"""The strip bound of the sampled Gaussian: |phi(s + id) r(s + id)^w|, cell by cell (Part D(i).2).

G(w) = E_{N(0,1)} r^w;  K(z) = ln G(1+z) (remove),  ln G(-z) (add). G is the trapezoidal sum of an
integrand analytic for |Im s| < pi/mu; its modulus on a line of the strip is bounded cell by cell,
every factor being monotone or having a bounded second derivative in the cell. Arrays have one row
for each (rate, mu) of a family.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.numerics.quadrature import FloatArray, log_sum_exp

__all__ = ["SampledStrip", "LOG_ROOT_2PI", "Cut", "Reach"]

LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_DEPTHS = np.array([0.02, 0.06, 0.14, 0.25, 0.36, 0.49, 0.65, 0.8, 0.92])

_MAX_CELLS = 80_000

Cut = tuple[FloatArray, float]  # where, and how sharp
Reach = tuple[FloatArray, FloatArray]  # first and last s of each row


@final
class SampledStrip:
    """Sampled Gaussians r = 1 + rate (e^{mu s - mu^2/2} - 1) with rates below 1.

    A cut keeps the weight Phi(-k (s - cut)), k = sharpness, of each s (w >= 0 only). On s + id its
    modulus is at most e^{(k d)^2/2} times its value at s (shift the path of the integral that
    defines Phi); its logarithm is concave, with a second derivative >= -k^2.
    """

    def __init__(self, rate: FloatArray, mu: FloatArray, cut: Cut | None = None) -> None:
        self.rate, self.mu = rate[:, None], mu[:, None]
        self.cut = None if cut is None else cut[0][:, None]
        self.sharpness = 0.0 if cut is None else cut[1]
        self.bend = self.sharpness**2
        self.log_rate, self.log_rest = np.log(self.rate), np.log1p(-self.rate)
        self.half = 0.5 * self.mu * self.mu

    def log_ratio(self, s: FloatArray) -> FloatArray:
        """ln r(s), with a small relative error wherever r is near 1."""
        u = self.mu * s - self.half
        low = np.log1p(self.rate * np.expm1(np.minimum(u, 30.0)))
        if float(np.max(u)) <= 30.0:
            return low
        high = u + np.log(self.rate + (1.0 - self.rate) * np.exp(-np.maximum(u, 30.0)))
        return np.where(u > 30.0, high, low)

    def share(self, s: FloatArray, lr: FloatArray) -> FloatArray:
        """t(s) = q e^u / r, the posterior probability of a hit; rises from 0 to 1."""
        return np.exp(np.minimum(self.log_rate + self.mu * s - self.half - lr, 0.0))

    def log_kept(self, s: FloatArray) -> FloatArray:
        """ln of the weight that the cut leaves; 0 without a cut."""
        return np.zeros_like(s) if self.cut is None else log_ndtr(self.sharpness * (self.cut - s))

    def log_dropped(self) -> FloatArray:
        """ln of E_mix[1 - kept], the mass that the cut takes from (1-q) N(0,1) + q N(mu,1)."""
        assert self.cut is not None
        scale = self.sharpness / math.sqrt(1.0 + self.bend)
        base, shifted = log_ndtr(-scale * self.cut), log_ndtr(-scale * (self.cut - self.mu))
        return np.asarray(np.logaddexp(base, self.log_rate + shifted)[:, 0] + 1e-9)

    def reach(self, w: float, nats: FloatArray | float) -> Reach:
        """Where phi(s) r^w, phi(s) and phi(s - mu) exceed about e^-nats of their integrals."""
        mu = self.mu[:, 0]
        pad = np.sqrt(2.0 * np.asarray(nats)) + 0.5 + 0.0 * mu
        if w < 0.0:
            return np.minimum(self._lowest_peak(w), 0.0) - pad, mu + pad
        top = w * mu
        if self.cut is not None:
            # (ln Phi(-x))' <= -x for x > 0: the integrand falls from here on
            cut = self.cut[:, 0]
            top = np.minimum(top, np.maximum(cut, (top + self.bend * cut) / (1 + self.bend)))
        return -pad, np.maximum(top, mu) + pad

    def _lowest_peak(self, w: float) -> FloatArray:
        """For w < 0: a point left of the only maximum of -s^2/2 + w ln r, where s = w mu t(s)."""
        low, high = w * self.mu, 0.0 * self.mu
        for _ in range(40):
            mid = 0.5 * (low + high)
            left = mid < w * self.mu * self.share(mid, self.log_ratio(mid))
            low, high = np.where(left, mid, low), np.where(left, high, mid)
            if bool(np.all(high - low < 0.02 * (1.0 - high))):
                break
        return np.asarray(low[:, 0])

    def bound(self, w: float, frequency: float, reach: Reach) -> tuple[FloatArray, FloatArray]:
        """ln of a bound on int |phi(s+id) r(s+id)^w| ds for several depths d, |Im w| <= frequency.

        r(s+id)/r(s) = 1 - t + t e^{i theta}, theta = mu d: squared modulus
        1 - 2t(1-t)(1-cos theta), argument rising with t. -s^2/2 + w ln r is at most its larger end
        plus width^2/8 times -f'' = 1 - w mu^2 t(1-t). A negative frequency bounds the side on which
        e^{iyL} decays. Both results have shape (rows, depths).
        """
        deepest = 14.0 if self.cut is None else min(14.0, 25.0 / self.sharpness)
        depths = _DEPTHS * np.minimum((1.0 if w >= 0.0 else 0.5) * math.pi / self.mu, deepest)
        low, high = reach[0][:, None], reach[1][:, None]
        cell = 0.25 if float(np.max(high - low)) < 1000.0 else 0.5
        cell = cell if self.cut is None else min(cell, 1.0 / self.sharpness)
        cells = max(8, math.ceil(float(np.max((high - low) / np.minimum(cell, 0.6 / self.mu)))))
        if cells > _MAX_CELLS:
            raise OverflowError(f"{cells} cells")
        width = (high - low) / cells
        edges = low + width * np.arange(cells + 1)
        lr = self.log_ratio(edges)
        t = self.share(edges, lr)
        f = -0.5 * edges * edges + w * lr + self.log_kept(edges)
        if w < 0.0:
            middle = np.clip(0.5, t[:, :-1], t[:, 1:])
            crossed = middle * (1.0 - middle)
            bend = 1.0 - w * self.mu**2 * crossed
        else:
            cross = t * (1.0 - t)
            crossed = np.minimum(cross[:, :-1], cross[:, 1:])
            bend = np.float64(1.0 + self.bend)
        f = np.maximum(f[:, :-1], f[:, 1:]) + 0.125 * width * width * bend + np.log(width)
        theta = (self.mu * depths)[:, :, None]
        end = (t[:, 1:] if frequency >= 0.0 else t[:, :-1])[:, None, :]
        inside = f[:, None, :] + frequency * _angle(end, theta)
        inside += 0.5 * w * np.log1p(-2.0 * crossed[:, None, :] * (1.0 - np.cos(theta)))
        outside = self._tails(w, frequency, (edges[:, [0, -1]], lr[:, [0, -1]], t), theta[:, :, 0])
        total = np.logaddexp(log_sum_exp(inside), outside) - LOG_ROOT_2PI + 1e-9
        return depths, total + 0.5 * (1.0 + self.bend) * depths * depths

    def _tails(
        self,
        w: float,
        frequency: float,
        ends: tuple[FloatArray, FloatArray, FloatArray],
        theta: FloatArray,
    ) -> FloatArray:
        """The same integral beyond the first and the last edge; f falls at least like a Gaussian.

        int_0^inf e^{-x^2/2} dx < 1.2534; beyond the right end the argument is at most theta.
        """
        push = max(frequency, 0.0)
        edges, lr, t = ends[0], ends[1], ends[2][:, :1]
        left = w * lr[:, :1] - 0.5 * edges[:, :1] ** 2 + push * _angle(t, theta)
        if w >= 0.0:
            right = w * lr[:, 1:] - 0.5 * edges[:, 1:] ** 2 + push * theta
            right = right + self.log_kept(edges[:, 1:])
        else:  # theta <= pi/2: |r(s+id)| rises with s and is >= 1 - q
            most = np.minimum(t, 0.5)
            left = left + 0.5 * w * np.log1p(-2.0 * most * (1.0 - most) * (1.0 - np.cos(theta)))
            b = self.log_rate + self.mu * edges[:, 1:] - self.half
            floor = 0.5 * np.logaddexp(2.0 * self.log_rest, 2.0 * b)
            right = w * floor - 0.5 * edges[:, 1:] ** 2 + push * theta
        return np.asarray(np.logaddexp(left, right) + math.log(1.2534))


def _angle(t: FloatArray, theta: FloatArray) -> FloatArray:
    """arg(1 - t + t e^{i theta})."""
    return np.arctan2(t * np.sin(theta), 1.0 - t + t * np.cos(theta))
