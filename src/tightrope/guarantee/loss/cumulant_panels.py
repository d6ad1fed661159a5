"""Gauss-Legendre panels for phi(s) r(s)^w on part of the line, with proved errors.

The frequency y turns e^{iyL} ever faster as L rises, so panels get shorter to the right, each for a
turn of a few dozen radians.

Error: each panel on a Bernstein ellipse around it (quadrature.log_ellipse_error), on which every
factor is bounded by a monotone function of Re s; left of the first panel by a Gaussian tail.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, SampledStrip
from tightrope.numerics.quadrature import FloatArray, gauss_legendre, log_sum_exp

__all__ = ["Panels", "POINTS", "panel_points"]

POINTS = 32  # of a panel
TURN = 51.0  # radians of a panel, about, where the error permits
_SHORTER = 24.0  # with fewer radians panels that hardly turn get shorter too
_RADII = np.array([1.6, 2.3, 3.2, 4.5, 7.0])
_TAILS = 2.0 * POINTS * np.log(_RADII) + np.log1p(-(_RADII**-2.0))
_MAX_PANELS = 4000


def panel_points(edges: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """Points and ln weights of the rule with `count` points on each panel, one after the other."""
    centre, half = 0.5 * (edges[..., 1:] + edges[..., :-1]), 0.5 * np.diff(edges)
    nodes, weights = gauss_legendre(count)
    shape = (*edges.shape[:-1], -1)
    s = centre[..., None] + half[..., None] * nodes
    return s.reshape(shape), (np.log(half)[..., None] + np.log(weights)).reshape(shape)


@final
class Panels:
    """Bounds for one law, one power and one largest frequency."""

    def __init__(self, strip: SampledStrip, row: int, w: float, frequency: float) -> None:
        self.one, self.mu = SampledStrip(strip.rate[row], strip.mu[row]), float(strip.mu[row, 0])
        self.w, self.frequency = w, frequency

    def edges(self, low: float, end: float, turn: float) -> FloatArray:
        """From the end leftwards, each panel for about `turn` radians of yL."""
        mu, log_rate = self.mu, float(self.one.log_rate[0, 0])
        widest = min(turn / _SHORTER, 1.0) * min(0.9 / mu, 1.2)
        turning = max(self.frequency, 0.5 * self.w)  # e^{wL} rises as e^{iyL} turns
        edges = [end]
        while edges[-1] > low:
            log_b = log_rate + mu * edges[-1] - 0.5 * mu * mu
            pace = turning * mu / (1.0 + math.exp(-min(log_b, 700.0)))
            edges.append(edges[-1] - min(widest, turn / max(pace, 1e-300)))
            if len(edges) > _MAX_PANELS:
                raise OverflowError(f"more than {_MAX_PANELS} panels")
        return np.array(edges[::-1])

    def log_error(self, edges: FloatArray) -> float:
        """ln of the sum of the Gauss-Legendre errors (quadrature.log_ellipse_error), best radii."""
        centre, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * (edges[1:] - edges[:-1])
        wide, deep = (0.5 * (_RADII + sign / _RADII)[:, None] * half for sign in (1.0, -1.0))
        ok = self.mu * deep < 1.0
        deep = np.where(ok, deep, 0.1 * half)
        ends = (centre - wide).reshape(-1), (centre + wide).reshape(-1)
        bound = self._log_on_box(*ends, deep.reshape(-1)).reshape(ok.shape)
        bound = np.where(ok, bound - _TAILS[:, None], np.inf).min(axis=0)
        return float(log_sum_exp(bound + np.log(64.0 / 15.0 * half)))

    def _log_on_box(self, left: FloatArray, right: FloatArray, deep: FloatArray) -> FloatArray:
        """ln of a bound on the integrand for Re s in [left, right], |Im s| <= deep, |Im w| <= y."""
        one, theta = self.one, self.mu * deep
        lr = one.log_ratio(right[None, :])
        t = one.share(right[None, :], lr)
        nearest = np.clip(0.0, left, right)
        angle = np.arctan2(t * np.sin(theta), 1.0 - t + t * np.cos(theta))
        base = 0.5 * deep**2 - 0.5 * nearest**2 - LOG_ROOT_2PI
        value = self.w * lr[0] + self.frequency * angle[0]
        return np.asarray(base + np.logaddexp(value, self._log_gaussian(lr[0])))

    def _log_gaussian(self, lr: FloatArray) -> FloatArray:
        """ln of a bound on |1 + w(r - 1)|, which is taken from r^w near G = 1."""
        return np.asarray(
            np.log(1.0 + abs(self.w - 1.0) + abs(self.w) * np.exp(np.minimum(lr, 700.0)))
        )

    def log_left(self, low: float) -> float:
        """ln of a bound on the integral left of the first edge, where it falls like a Gaussian."""
        at = np.array([[low]])
        lr = self.one.log_ratio(at)
        value = np.logaddexp(self.w * lr - LOG_ROOT_2PI, self._log_gaussian(lr)) - 0.5 * at * at
        return float(value[0, 0]) + math.log(1.2534)
