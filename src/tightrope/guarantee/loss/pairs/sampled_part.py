"""The cumulant of sampled Gaussians ("remove") up to a largest loss, by Gauss-Legendre panels.

The part of G(w) = E_{N(0,1)} r^w with s <= end. Error: of the panels, and rounding term by term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.guarantee.loss.pairs.normals import AbstractRatedPair
from tightrope.guarantee.loss.pairs.points import POINTS, TURN, log_panels_error, panel_points
from tightrope.guarantee.loss.pairs.sampled_grid import (
    Excess,
    RowFamily,
    SampledStrip,
    layers_of_density,
    log_sums,
)
from tightrope.guarantee.loss.pairs.sampling import log_sampled_error
from tightrope.numerics.inversion_law import (
    LOG_MASS_SLACK,
    Decay,
    TiltedNodes,
    tilted_nodes,
)
from tightrope.numerics.quadrature import LOG_ROOT_2PI
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

_MAX_EXPONENT = 5000.0  # of the largest loss times a tilt
_LEFT_NATS = 60.0
_FEW_ON_A_PATH = 1000  # steps up to which the path is tried beside the layers
_STEEPEST = 1.04  # < pi/3, of mu times the depth of a path


@final
class PartCumulant(RowFamily):
    """The part of each of several SampledGaussianPairs, one row for each pair."""

    def __init__(
        self,
        pairs: Sequence[AbstractRatedPair],
        counts: Sequence[int],
        end: FloatArray,
    ) -> None:
        """end: the last s, (rows,)."""
        self.counts = np.array(counts, dtype=np.float64)
        rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
        self.strip = SampledStrip(rate, mu)
        self.end = end
        low = self.strip.reach(np.ones_like(self.strip.mu), _LEFT_NATS)[0]
        self.low = np.minimum(low, end - 0.5)

    @property
    def max_tilt(self) -> float:
        largest = float(np.max(self.strip.log_ratio(self.end[:, None])))
        return _MAX_EXPONENT / largest if largest > 0.0 else _MAX_EXPONENT  # only gains are left

    def log_dropped(self) -> float:
        """ln of a bound on the probability of any step beyond the end."""
        tails = log_tail(self.end, self.strip.log_rate[:, 0], self.strip.mu[:, 0])
        return float(np.logaddexp.reduce(tails + np.log(self.counts))) + 1e-9

    # ------------------------------------------------------------------ quick values for searching
    @cached_property
    def _search_grid(self) -> tuple[FloatArray, FloatArray]:
        """ln r, and ln of the weight with r^0."""
        widest = np.minimum(0.5 / self.strip.mu[:, 0], 0.7)
        panels = math.ceil(float(np.max((self.end - self.low) / widest)))
        # large tilts live next to the end: the last panel halves on the way there
        share = (
            1.0
            - np.append(np.arange(panels, 0, -1), [*(2.0 ** -np.arange(1.0, 12.0)), 0.0]) / panels
        )
        s, log_weight = panel_points(self.low[:, None] + (self.end - self.low)[:, None] * share, 16)
        return self.strip.log_ratio(s), log_weight - LOG_ROOT_2PI - 0.5 * s * s

    def _points_for(self, power: float) -> tuple[FloatArray, FloatArray]:
        return self._search_grid

    # ----------------------------------------------------------------------------- proved values
    def fewest_points(self, tilt: float, frequency: float) -> float:
        """Panels of TURN radians of e^{iyL}; a tenth for points of negligible weight."""
        turns = frequency * np.sum(self.strip.log_ratio(self.end[:, None]))
        return 0.9 * POINTS / TURN * float(turns)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        log_size = self.row_values(np.array([tilt]))[0]
        found = [
            self._row(row, tilt, frequency, nats, float(log_size[row]))
            for row in range(len(self.counts))
        ]
        longest = max(len(row[0]) for row in found)
        s = np.array([np.pad(row[0], (0, longest - len(row[0])), "edge") for row in found])
        log_weight = np.array(
            [np.pad(row[1], (0, longest - len(row[1])), constant_values=-np.inf) for row in found]
        )
        size = np.where(log_weight > -np.inf, np.abs(log_weight), 0.0)
        log_weight = log_weight - LOG_ROOT_2PI - 0.5 * s * s
        w, lr = 1.0 + tilt, self.strip.log_ratio(s)
        weight_error, lr_error = self._errors(s, lr)
        weight_error = weight_error + 3.0 * UNIT * size
        exponents = log_weight + w * lr
        error = weight_error + w * (4.0 * UNIT * np.abs(lr) + lr_error)
        value, rounding = log_sums(exponents, error)
        if bool(np.any(np.abs(value) <= 0.5)):
            powers = np.full((len(value), 1), w), np.full((len(value), 1), tilt)
            excess = Excess(*powers, True, lr, log_weight)
            total, small = excess.total(exponents, weight_error, lr_error)
            value, rounding = excess.near(value, rounding, total - self._beyond(w), small)
        lost = np.exp(np.array([row[2] for row in found]) - value)
        return tilted_nodes(lr, exponents, (value, rounding), error, lr_error, lost)

    def _beyond(self, w: float) -> FloatArray:
        """E[1 + w (r - 1); s > end], what the excess takes from 1 beyond the end."""
        mu, s = self.strip.mu[:, 0], self.end
        miss, hit = np.exp(log_ndtr(-s)), np.exp(log_ndtr(mu - s))
        return np.asarray(miss + w * self.strip.rate[:, 0] * (hit - miss))

    def _errors(self, s: FloatArray, lr: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The rounding of weights without r^w and of ln r.

        See SampledGrid; weights and nodes to 64 units.
        """
        of = self.strip
        size = of.mu * np.abs(s) + of.mu**2
        lr_error = 6.0 * UNIT * of.share(s, lr) * size + log_sampled_error(lr, of.rate)
        weight_error = UNIT * (72.0 + 6.0 * s * s)
        return np.asarray(weight_error), np.asarray(lr_error)

    def _row(
        self, row: int, tilt: float, frequency: float, nats: float, log_size: float
    ) -> tuple[FloatArray, FloatArray, float]:
        """Points and ln weights of one law, and ln of the bound on what they miss of G."""
        panels, turn = Panels(self.strip, row, 1.0 + tilt, frequency), TURN
        for _ in range(20):
            edges = panels.edges(float(self.low[row]), float(self.end[row]), turn)
            log_error = panels.log_error(edges)
            if log_error <= log_size - nats:
                break
            turn *= 0.85
        s, log_weight = panel_points(edges, POINTS)
        return s, log_weight, float(np.logaddexp(log_error, panels.log_left(float(edges[0]))))

    # ------------------------------------------------------------------------------------- decay
    def shifted(self, tilt: float) -> Callable[[float], FloatArray]:
        """|M(c+iy)|/M(c) on the path at depth d up to the end, then straight down to it.

        mu d stays below pi/3, so that arg r >= t sin(mu d') >= 0.82 t mu d' on that way. The bound
        holds when ln M is the quick estimate within LOG_MASS_SLACK, and falls with y.
        """
        log_size, ones = self.row_values(np.array([tilt]))[0], np.ones_like(self.strip.mu)
        w, end, of = (1.0 + tilt) * ones, self.end[:, None], self.strip
        lr = of.log_ratio(end)
        pace = 0.82 * of.mu * of.share(end, lr)
        peak = w * lr - 0.5 * end * end - LOG_ROOT_2PI
        outline = of.outline(w, (self.low, self.end), right_ends=False)
        left = of.tails(w, 0.0 * ones, outline)[0]
        with np.errstate(divide="ignore"):  # no bound where L hardly moves
            down = peak + 0.5 * outline.depths**2 - np.log(pace)
        down = np.where(outline.theta < _STEEPEST, down, np.inf)

        def further(y: float) -> FloatArray:
            logs = outline.total(-y * ones, left)
            total = (
                np.min(np.logaddexp(logs, down - math.log(y)), axis=1) - log_size + LOG_MASS_SLACK
            )
            return np.asarray(np.exp(np.minimum(total, 0.0)))

        return further

    def decay(self, tilt: float) -> Decay:
        log_size = self.row_values(np.array([tilt]))[0]
        reach = self.low - self.strip.mu[:, 0], self.end
        layers, _ = layers_of_density(self.strip, 1.0 + tilt, reach, log_size)
        further = self.shifted(tilt) if float(np.sum(self.counts)) <= _FEW_ON_A_PATH else None
        return Decay.of(layers, np.full(len(layers), math.inf), log_size, further)


def log_tail(s: FloatArray, log_rate: FloatArray, mu: FloatArray) -> FloatArray:
    """ln of a bound on the mass of (1-q) N(0,1) + q N(mu,1) beyond s, at most 1 + q too large."""
    return np.asarray(np.logaddexp(log_ndtr(-s), log_rate + log_ndtr(mu - s)))


def rare_points(pairs: Sequence[AbstractRatedPair], nats: float) -> FloatArray:
    """The s that a step exceeds with probability about e^-nats."""
    rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
    low, high = 0.0 * mu, mu + math.sqrt(2.0 * nats) + 1.0
    for _ in range(20):
        s = 0.5 * (low + high)
        rare = log_tail(s, np.log(rate), mu) < -nats
        low, high = np.where(rare, low, s), np.where(rare, s, high)
    return np.asarray(high)


# ---- Gauss-Legendre panels for phi(s) r(s)^w on part of the line, with proved errors
# The frequency y turns e^{iyL} ever faster as L rises, so panels get shorter to the right, each
# for a turn of a few dozen radians.
#
# Error: each panel on a Bernstein ellipse around it (quadrature.log_ellipse_error), on which every
# factor is bounded by a monotone function of Re s; left of the first panel by a Gaussian tail.
_SHORTER = 24.0  # with fewer radians panels that hardly turn get shorter too
_MAX_PANELS = 4000


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
        return log_panels_error(edges, self.mu, self._log_on_box)

    def _log_on_box(self, left: FloatArray, right: FloatArray, deep: FloatArray) -> FloatArray:
        """ln of a bound on the integrand for Re s in [left, right], |Im s| <= deep, |Im w| <= y."""
        one, theta = self.one, self.mu * deep
        lr = one.log_ratio(right)
        t = one.share(right, lr)
        nearest = np.clip(0.0, left, right)
        angle = np.arctan2(t * np.sin(theta), 1.0 - t + t * np.cos(theta))
        base = 0.5 * deep**2 - 0.5 * nearest**2 - LOG_ROOT_2PI
        value = self.w * lr + self.frequency * angle
        return np.asarray(base + np.logaddexp(value, self._log_gaussian(lr)))

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
