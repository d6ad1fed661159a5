"""The quadrature of sampled Gaussians: strips, trapezoidal grids, and panels, with proved errors.

G(w) = E_{N(0,1)} r^w;  K(z) = ln G(1+z) (remove),  ln G(-z) (add). G is the trapezoidal sum of an
integrand analytic for |Im s| < pi/mu; its modulus on a line of the strip is bounded cell by cell,
every factor being monotone or having a bounded second derivative in the cell. Arrays have one row
for each (rate, mu) of a family, and powers w one entry for each row: w >= 0 everywhere or w <= 0.
docs/certificate_argument.md, 3.3.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from tightrope.guarantee.loss.pairs.sampling import log_ratio, log_sampled_error
from tightrope.numerics.inversion_law import (
    LOG_MASS_SLACK,
    AbstractFamily,
    Layers,
    TiltedNodes,
    layers_of_steps,
    log_error,
    tilted_nodes,
)
from tightrope.numerics.quadrature import (
    LOG_ROOT_2PI,
    dyadic_floors,
    expm1_minus,
    log_strip_errors,
    log_sum_exp,
    widest_steps,
)
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

# ---- the bound on |phi(s + id) r(s + id)^w|, cell by cell
_DEPTHS = np.array([0.002, 0.007, 0.02, 0.06, 0.14, 0.25, 0.36, 0.49, 0.65, 0.8, 0.92])
_SIXTEENTHS = np.arange(17) / 16.0
_MAX_CELLS = 80_000
_BLOCK = 1 << 18
Reach = tuple[FloatArray, FloatArray]  # first and last s of each row


@final
@dataclass(frozen=True)
class Outline:
    """ln of bounds on the modulus in each cell, (rows, depths, cells), and on the argument of r."""

    depths: FloatArray  # (rows, depths)
    theta: FloatArray
    cells: FloatArray
    angle: FloatArray
    ends: tuple[FloatArray, FloatArray, FloatArray]  # s, ln r and t at the first and last edge

    def total(self, frequency: FloatArray, outside: FloatArray) -> FloatArray:
        """ln of the integral of the modulus times e^{frequency * argument}."""
        inside = log_sum_exp(self.cells + frequency[:, :, None] * self.angle)
        total = np.logaddexp(inside, outside) - LOG_ROOT_2PI + 1e-9
        return np.asarray(total + 0.5 * self.depths * self.depths)


class RowFamily(AbstractFamily):
    """Laws of sampled Gaussians, a row each, searched by points of G(w)."""

    strip: SampledStrip

    @abstractmethod
    def _points_for(self, power: float) -> tuple[FloatArray, FloatArray]:
        """ln r and ln weight (rows, points), good enough to search by up to this power."""

    def power(self, tilt: float) -> float:
        """The w with M(tilt) = G(w)."""
        return 1.0 + tilt

    def row_values(self, tilts: FloatArray) -> FloatArray:
        """K of each law at several tilts, (tilts, laws); estimates."""
        powers = np.array([self.power(tilt) for tilt in tilts.tolist()])
        lr, lw = self._points_for(float(powers[np.argmax(np.abs(powers))]))
        block = max(1, _BLOCK // lr.size)
        out = np.empty((len(tilts), len(self.counts)))
        for first in range(0, len(tilts), block):
            w = powers[first : first + block, None, None]
            out[first : first + block] = log_sum_exp(w * lr + lw)
        return out

    def values(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(self.row_values(tilts) @ self.counts)

    def row_moments(self, tilt: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """K, K' and K'' of each law; estimates."""
        w = self.power(tilt)
        lr, lw = self._points_for(w)
        exponent = w * lr + lw
        value = log_sum_exp(exponent)
        p = np.exp(exponent - value[:, None])
        mean = (p * lr).sum(axis=1)
        variance = (p * (lr - mean[:, None]) ** 2).sum(axis=1)
        return value, mean if self.power(1.0) > 0.0 else -mean, variance

    def moments(self, tilt: float) -> tuple[float, float, float]:
        value, mean, variance = self.row_moments(tilt)
        n = self.counts
        return float(n @ value), float(n @ mean), float(n @ variance)


@final
class SampledStrip:
    """Sampled Gaussians r = 1 + rate (e^{mu s - mu^2/2} - 1), rates below 1."""

    def __init__(self, rate: FloatArray, mu: FloatArray) -> None:
        self.rate, self.mu = rate[:, None], mu[:, None]
        self.log_rate, self.log_rest = np.log(self.rate), np.log1p(-self.rate)
        self.half = 0.5 * self.mu * self.mu

    def repeated(self, times: int) -> SampledStrip:
        """The rows, `times` times one after the other."""
        return SampledStrip(np.tile(self.rate[:, 0], times), np.tile(self.mu[:, 0], times))

    def log_ratio(self, s: FloatArray) -> FloatArray:
        """ln r(s), with a small relative error wherever r is near 1."""
        return log_ratio(s, self.rate, self.mu)

    def share(self, s: FloatArray, lr: FloatArray) -> FloatArray:
        """t(s) = q e^u / r, the posterior probability of a hit; rises from 0 to 1."""
        return np.exp(np.minimum(self.log_rate + self.mu * s - self.half - lr, 0.0))

    def log_size(self, s: FloatArray) -> FloatArray:
        """ln b, b = q e^u, so that r = 1 - q + b."""
        return np.asarray(self.log_rate + self.mu * s - self.half)

    def reach(self, w: FloatArray, nats: FloatArray | float) -> Reach:
        """The stretch on which phi(s) r^w, phi(s) or phi(s - mu) exceed e^-nats of their integrals.

        Beyond both ends the integrand falls at least like e^{-x^2/2}.
        """
        mu = self.mu[:, 0]
        pad = np.sqrt(2.0 * np.asarray(nats)) + 0.5 + 0.0 * mu
        if bool(np.any(w < 0.0)):
            return np.minimum(self._lowest_peak(w), 0.0) - pad, mu + pad
        return -pad, np.maximum(w[:, 0] * mu, mu) + pad

    def last_edge(
        self, w: FloatArray, high: FloatArray, nats: FloatArray, frequency: FloatArray
    ) -> FloatArray:
        """The last edge of the cells of the strip when the sum ends at `high`.

        e^{frequency * angle} on the right needs a longer Gaussian tail; for w < 0 it is outweighed
        by r^w.
        """
        further = np.sqrt(2.0 * nats + 3.0 * frequency[:, 0]) - np.sqrt(2.0 * nats)
        return np.asarray(high + np.where(w[:, 0] < 0.0, 0.0, further))

    def _lowest_peak(self, w: FloatArray) -> FloatArray:
        """For w < 0: a point left of the only maximum of -s^2/2 + w ln r, where s = w mu t(s)."""
        low, high = w * self.mu, 0.0 * self.mu
        for _ in range(20):  # s - w mu t(s) rises: count the points left of its zero
            s = low + (high - low) * _SIXTEENTHS
            left = s < w * self.mu * self.share(s, self.log_ratio(s))
            step, below = (high - low) / 16.0, left.sum(axis=1, keepdims=True)
            low, high = low + step * np.maximum(below - 1, 0), low + step * np.minimum(below, 16)
            if bool((high - low < 0.1 * (1.0 - high)).all()):
                break
        return np.asarray(low[:, 0])

    def bound(
        self, w: FloatArray, frequency: FloatArray, reach: Reach
    ) -> tuple[FloatArray, FloatArray]:
        """ln of a bound on int |phi(s+id) r(s+id)^w| ds for several depths d, |Im w| <= frequency.

        Both results have shape (rows, depths).
        """
        outline = self.outline(w, reach, right_ends=True)
        left, right = self.tails(w, frequency, outline)
        return outline.depths, outline.total(frequency, np.logaddexp(left, right))

    def outline(self, w: FloatArray, reach: Reach, right_ends: bool) -> Outline:
        """Bounds on the integrand cell by cell, for any frequency.

        r(s+id)/r(s) = 1 - t + t e^{i theta}, theta = mu d: squared modulus
        1 - 2t(1-t)(1-cos theta), argument rising with t. -s^2/2 + w ln r is at most its larger end
        plus width^2/8 times -f'' = 1 - w mu^2 t(1-t). right_ends: the argument is at most that at
        the right end of a cell; otherwise at least that at its left end.
        """
        negative = bool(np.any(w < 0.0))
        widest = 0.5 if negative else 1.0
        depths = _DEPTHS * np.minimum(widest * math.pi / self.mu, 14.0)
        edges = self._edges(reach)
        lr = self.log_ratio(edges)
        t = self.share(edges, lr)
        f = -0.5 * edges * edges + w * lr
        width = edges[:, 1:2] - edges[:, :1]
        if negative:
            middle = np.clip(0.5, t[:, :-1], t[:, 1:])
            crossed = middle * (1.0 - middle)
            bend = 1.0 - w * self.mu**2 * crossed
        else:
            cross = t * (1.0 - t)
            crossed = np.minimum(cross[:, :-1], cross[:, 1:])
            bend = np.float64(1.0)
        f = np.maximum(f[:, :-1], f[:, 1:]) + 0.125 * width * width * bend + np.log(width)
        theta = (self.mu * depths)[:, :, None]
        cells = 0.5 * w[:, :, None] * np.log1p(-2.0 * crossed[:, None, :] * (1.0 - np.cos(theta)))
        cells += f[:, None, :]
        angle = _angle((t[:, 1:] if right_ends else t[:, :-1])[:, None, :], theta)
        ends = edges[:, [0, -1]], lr[:, [0, -1]], t[:, [0, -1]]
        return Outline(depths, theta[:, :, 0], cells, angle, ends)

    def _edges(self, reach: Reach) -> FloatArray:
        low, high = reach[0][:, None], reach[1][:, None]
        cell = 0.25 if float(np.max(high - low)) < 1000.0 else 0.5
        cells = max(8, math.ceil(float(np.max((high - low) / np.minimum(cell, 0.6 / self.mu)))))
        if cells > _MAX_CELLS:
            raise OverflowError(f"{cells} cells")
        return np.asarray(low + (high - low) / cells * np.arange(cells + 1))

    def tails(
        self, w: FloatArray, frequency: FloatArray, outline: Outline
    ) -> tuple[FloatArray, FloatArray]:
        """The integral beyond the first and the last edge; f falls at least like a Gaussian.

        int_0^inf e^{-x^2/2} dx < 1.2534; beyond the right end the argument is at most theta.
        """
        push, theta, (edges, lr, t) = frequency, outline.theta, outline.ends
        left = w * lr[:, :1] - 0.5 * edges[:, :1] ** 2 + push * _angle(t[:, :1], theta)
        if bool(np.any(w < 0.0)):  # theta <= pi/2: |r(s+id)| rises with s and is >= 1 - q
            nearest = np.minimum(t[:, :1], 0.5)  # 2 ln |1 - t + t e^{i theta}|
            left += 0.5 * w * np.log1p(-2.0 * nearest * (1.0 - nearest) * (1.0 - np.cos(theta)))
            right = self._log_falling(w, push, edges[:, 1:], theta) - 0.5 * edges[:, 1:] ** 2
        else:
            right = w * lr[:, 1:] - 0.5 * edges[:, 1:] ** 2 + push * theta
        return left + math.log(1.2534), right + math.log(1.2534)

    def _log_falling(
        self, w: FloatArray, push: FloatArray, edge: FloatArray, theta: FloatArray
    ) -> FloatArray:
        """For w < 0: ln of a bound on |r^w| e^{push arg r} right of `edge`.

        With b = (1-q) x, (w ln|r| + push arg r)' = (w (cos + x) + push sin)/|1 + x e^{i theta}|^2,
        which is <= 0 from the edge on where it is there; elsewhere arg r <= theta.
        """
        x = np.exp(np.minimum(self.log_size(edge) - self.log_rest, 300.0))
        cos, sin = np.cos(theta), np.sin(theta)
        floor = self.log_rest + 0.5 * np.log1p(x * (2.0 * cos + x))
        angle = np.where(-w * (cos + x) >= push * sin, np.arctan2(x * sin, 1.0 + x * cos), theta)
        return np.asarray(w * floor + push * angle)


def _angle(t: FloatArray, theta: FloatArray) -> FloatArray:
    """arg(1 - t + t e^{i theta})."""
    return np.arctan2(t * np.sin(theta), 1.0 - t + t * np.cos(theta))


def layers_of_density(
    of: SampledStrip, w: float, reach: Reach, log_size: FloatArray
) -> tuple[list[Layers], FloatArray]:
    """Layers inside the density phi r^w/(G L') of L, L' = mu t, and a bound on its total variation.

    log_size: ln G within LOG_MASS_SLACK.
    """
    mu, (low, high) = of.mu, (end[:, None] for end in reach)
    cell = np.minimum(0.1, 0.5 / (mu * math.sqrt(max(w + 1.0, 1.0))))
    cells = min(4000, math.ceil(float(np.max((high - low) / cell))))
    width = (high - low) / cells
    edges = low + width * np.arange(cells + 1)
    lr = of.log_ratio(edges)
    scale = log_size[:, None] + LOG_MASS_SLACK + of.log_rate + np.log(mu) + LOG_ROOT_2PI
    g = -0.5 * edges * edges + (w + 1.0) * lr - (mu * edges - of.half) - scale
    square = 0.125 * width * width
    bend = square * np.maximum(0.0, 0.25 * (w + 1.0) * mu**2 - 1.0)
    least = np.minimum(g[:, :-1], g[:, 1:]) - bend
    # at most two maxima (a line meets a sigmoid three times): variation <= 4 sup
    t = of.share(edges, lr)
    middle = np.clip(0.5, t[:, :-1], t[:, 1:])
    bulge = square * (1.0 + max(0.0, -(w + 1.0)) * middle * (1.0 - middle) * mu**2)
    sup = np.max(np.maximum(g[:, :-1], g[:, 1:]) + bulge, axis=1)
    variation = 4.0 * np.exp(np.minimum(sup, 700.0))
    heights = np.exp(np.minimum(least, 700.0))
    peaks = np.argmax(heights, axis=1).tolist()
    return [layers_of_steps(*row) for row in zip(lr, heights, peaks, strict=True)], variation


# ---- the trapezoidal grid: points, weights, ln G(w), rounding errors
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
        value, rounding = log_sums(self._exponents, error)
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


def log_sums(exponents: FloatArray, error: FloatArray) -> _Parts:
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
