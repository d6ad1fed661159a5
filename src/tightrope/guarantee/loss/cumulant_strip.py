"""The strip bound of the sampled Gaussian: |phi(s + id) r(s + id)^w|, cell by cell (Part D(i).2).

G(w) = E_{N(0,1)} r^w;  K(z) = ln G(1+z) (remove),  ln G(-z) (add). G is the trapezoidal sum of an
integrand analytic for |Im s| < pi/mu; its modulus on a line of the strip is bounded cell by cell,
every factor being monotone or having a bounded second derivative in the cell. Arrays have one row
for each (rate, mu) of a family, and powers w one entry for each row: w >= 0 everywhere or w <= 0.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_window import Window
from tightrope.guarantee.loss.gaussian import log_ratio
from tightrope.numerics.quadrature import FloatArray, log_sum_exp

__all__ = ["SampledStrip", "LOG_ROOT_2PI", "Reach"]

LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)
_DEPTHS = np.array([0.02, 0.06, 0.14, 0.25, 0.36, 0.49, 0.65, 0.8, 0.92])

_MAX_CELLS = 80_000

Reach = tuple[FloatArray, FloatArray]  # first and last s of each row


@final
class SampledStrip:
    """Sampled Gaussians r = 1 + rate (e^{mu s - mu^2/2} - 1), rates below 1, times a window.

    Windows are for w >= 0 only.
    """

    def __init__(self, rate: FloatArray, mu: FloatArray, window: Window | None = None) -> None:
        self.rate, self.mu = rate[:, None], mu[:, None]
        self.window = window
        self.log_rate, self.log_rest = np.log(self.rate), np.log1p(-self.rate)
        self.half = 0.5 * self.mu * self.mu

    def repeated(self, times: int) -> SampledStrip:
        """The rows, `times` times one after the other."""
        window = None if self.window is None else self.window.repeated(times)
        return SampledStrip(np.tile(self.rate[:, 0], times), np.tile(self.mu[:, 0], times), window)

    def log_ratio(self, s: FloatArray) -> FloatArray:
        """ln r(s), with a small relative error wherever r is near 1."""
        return log_ratio(s, self.rate, self.mu)

    def share(self, s: FloatArray, lr: FloatArray) -> FloatArray:
        """t(s) = q e^u / r, the posterior probability of a hit; rises from 0 to 1."""
        return np.exp(np.minimum(self.log_rate + self.mu * s - self.half - lr, 0.0))

    def reach(self, w: FloatArray, nats: FloatArray | float) -> Reach:
        """Where the integrand, phi(s) and phi(s - mu) exceed about e^-nats of their integrals.

        Beyond both ends the integrand falls at least like e^{-x^2/2}.
        """
        mu = self.mu[:, 0]
        pad = np.sqrt(2.0 * np.asarray(nats)) + 0.5 + 0.0 * mu
        if bool(np.any(w < 0.0)):
            return np.minimum(self._lowest_peak(w), 0.0) - pad, mu + pad
        low, top = -pad, w[:, 0] * mu
        high, window = np.maximum(top, mu) + pad, self.window
        if window is None:
            return low, high
        if window.end is not None:  # (ln Phi(-x))' <= -x for x > 0: the integrand falls from here
            end, k2 = window.end[:, 0], window.fall**2
            held = np.maximum(end, np.minimum(top, (top + k2 * end) / (1.0 + k2)))
            high = np.minimum(high, held + pad / math.sqrt(1.0 + k2))
        if window.start is None:  # the Gaussian parts of G - 1 are summed to their ends
            return low, np.maximum(high, mu + pad)
        k2 = window.rise**2
        low = np.maximum(low, (k2 * window.start[:, 0]) / (1.0 + k2) - pad / math.sqrt(1.0 + k2))
        return low, np.maximum(high, low + 1.0)

    def _lowest_peak(self, w: FloatArray) -> FloatArray:
        """For w < 0: a point left of the only maximum of -s^2/2 + w ln r, where s = w mu t(s)."""
        low, high = w * self.mu, 0.0 * self.mu
        for _ in range(40):
            mid = 0.5 * (low + high)
            left = mid < w * self.mu * self.share(mid, self.log_ratio(mid))
            low, high = np.where(left, mid, low), np.where(left, high, mid)
            if bool(np.all(high - low < 0.02 * (1.0 - high))):
                break
        return np.asarray(low[:, 0])

    def bound(
        self, w: FloatArray, frequency: FloatArray, reach: Reach
    ) -> tuple[FloatArray, FloatArray]:
        """ln of a bound on int |phi(s+id) r(s+id)^w| ds for several depths d, |Im w| <= frequency.

        r(s+id)/r(s) = 1 - t + t e^{i theta}, theta = mu d: squared modulus
        1 - 2t(1-t)(1-cos theta), argument rising with t. -s^2/2 + w ln r is at most its larger end
        plus width^2/8 times -f'' = 1 - w mu^2 t(1-t). A negative frequency bounds the side on which
        e^{iyL} decays. Both results have shape (rows, depths).
        """
        negative, window = bool(np.any(w < 0.0)), self.window
        sharpness = 0.0 if window is None else window.sharpness
        deepest = 14.0 if window is None else min(14.0, 25.0 / sharpness)
        depths = _DEPTHS * np.minimum((0.5 if negative else 1.0) * math.pi / self.mu, deepest)
        edges = self._edges(reach, sharpness)
        lr = self.log_ratio(edges)
        t = self.share(edges, lr)
        f = -0.5 * edges * edges + w * lr
        width = (edges[:, 1:2] - edges[:, :1])[:, :, None]
        if negative:
            middle = np.clip(0.5, t[:, :-1], t[:, 1:])
            crossed = middle * (1.0 - middle)
            bend = 1.0 - w * self.mu**2 * crossed
        else:
            cross = t * (1.0 - t)
            crossed = np.minimum(cross[:, :-1], cross[:, 1:])
            bend = np.float64(1.0)
        if window is None:
            square = 0.125 * width[:, :, 0] ** 2
            inside = (np.maximum(f[:, :-1], f[:, 1:]) + square * bend)[:, None, :]
        else:
            inside = window.log_cells(edges, f, depths)
        theta = (self.mu * depths)[:, :, None]
        end = (t[:, :-1] if bool(np.any(frequency < 0.0)) else t[:, 1:])[:, None, :]
        inside = inside + np.log(width) + frequency[:, :, None] * _angle(end, theta)
        inside += 0.5 * w[:, :, None] * np.log1p(-2.0 * crossed[:, None, :] * (1.0 - np.cos(theta)))
        ends = edges[:, [0, -1]], lr[:, [0, -1]], t
        outside = self._tails(w, frequency, ends, theta[:, :, 0])
        if window is not None:
            outside = outside + 0.5 * window.bend * depths * depths
        total = np.logaddexp(log_sum_exp(inside), outside) - LOG_ROOT_2PI + 1e-9
        return depths, total + 0.5 * depths * depths

    def _edges(self, reach: Reach, sharpness: float) -> FloatArray:
        low, high = reach[0][:, None], reach[1][:, None]
        cell = 0.25 if float(np.max(high - low)) < 1000.0 else 0.5
        cell = min(cell, 1.0 / sharpness) if sharpness > 0.0 else cell
        cells = max(8, math.ceil(float(np.max((high - low) / np.minimum(cell, 0.6 / self.mu)))))
        if cells > _MAX_CELLS:
            raise OverflowError(f"{cells} cells")
        return np.asarray(low + (high - low) / cells * np.arange(cells + 1))

    def _tails(
        self,
        w: FloatArray,
        frequency: FloatArray,
        ends: tuple[FloatArray, FloatArray, FloatArray],
        theta: FloatArray,
    ) -> FloatArray:
        """The same integral beyond the first and the last edge; f falls at least like a Gaussian.

        int_0^inf e^{-x^2/2} dx < 1.2534; beyond the right end the argument is at most theta.
        """
        push = np.maximum(frequency, 0.0)
        edges, lr, t = ends[0], ends[1], ends[2][:, :1]
        left = w * lr[:, :1] - 0.5 * edges[:, :1] ** 2 + push * _angle(t, theta)
        if bool(np.any(w < 0.0)):  # theta <= pi/2: |r(s+id)| rises with s and is >= 1 - q
            most = np.minimum(t, 0.5)
            left = left + 0.5 * w * np.log1p(-2.0 * most * (1.0 - most) * (1.0 - np.cos(theta)))
            b = self.log_rate + self.mu * edges[:, 1:] - self.half
            floor = 0.5 * np.logaddexp(2.0 * self.log_rest, 2.0 * b)
            right = w * floor - 0.5 * edges[:, 1:] ** 2 + push * theta
        else:
            right = w * lr[:, 1:] - 0.5 * edges[:, 1:] ** 2 + push * theta
        if self.window is not None:
            left = left + self.window.log_rising(edges[:, :1])
            right = right + self.window.log_falling(edges[:, 1:])
        return np.asarray(np.logaddexp(left, right) + math.log(1.2534))


def _angle(t: FloatArray, theta: FloatArray) -> FloatArray:
    """arg(1 - t + t e^{i theta})."""
    return np.arctan2(t * np.sin(theta), 1.0 - t + t * np.cos(theta))
