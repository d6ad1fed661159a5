"""Laws of one pair as points on equal Gauss-Legendre panels: what pairs with atoms share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.guarantee.loss.cumulant_strip import LOG_ROOT_2PI, SampledStrip
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.numerics.inversion_decay import Decay, no_decay
from tightrope.numerics.inversion_law import AbstractFamily, TiltedNodes, tilted_nodes
from tightrope.numerics.quadrature import FloatArray, expm1_minus, gauss_legendre, log_sum_exp
from tightrope.numerics.rounding import UNIT

__all__ = [
    "EqualPanels",
    "COUNTS",
    "point_nodes",
    "log_mass",
    "point_moments",
    "DiscreteCumulant",
    "Panels",
    "POINTS",
    "panel_points",
]

COUNTS = (8, 12, 16, 24, 32)  # points of a panel that are tried
_FAR = 40.0  # (1 + x) e^-x is below 2 units from here on


@final
@dataclass(frozen=True)
class EqualPanels:
    """Equal panels on [low, high] with `count` Gauss points each."""

    low: float
    high: float
    panels: int
    count: int

    @property
    def half(self) -> float:
        return 0.5 * (self.high - self.low) / self.panels

    @property
    def centres(self) -> FloatArray:
        return self.low + self.half * (2.0 * np.arange(self.panels, dtype=np.float64) + 1.0)

    def points(self) -> tuple[FloatArray, FloatArray]:
        x, w = gauss_legendre(self.count)
        s = (self.centres[:, None] + self.half * x).reshape(-1)
        return s, np.log(np.tile(self.half * w, self.panels))


def point_nodes(
    losses: FloatArray,
    exponents: FloatArray,
    mass: tuple[float, float],
    errors: tuple[FloatArray, FloatArray],
    quadrature: float,
) -> TiltedNodes:
    """One law as a family of one row; errors: of the exponents and of the losses."""
    value, rounding = np.array([mass[0]]), np.array([mass[1]])
    return tilted_nodes(
        losses[None, :],
        exponents[None, :],
        (value, rounding),
        errors[0][None, :],
        errors[1][None, :],
        np.array([quadrature]),
    )


def log_mass(
    losses: FloatArray,
    log_masses: FloatArray,
    tilt: float,
    errors: tuple[FloatArray, FloatArray],
    beyond: tuple[float, float] = (0.0, 0.0),
) -> tuple[float, float]:
    """ln M(z) and its rounding, from points of the law; errors: of the exponents and the losses.

    beyond: P(L = inf) = i and Q(L = -inf) = j. With these P and Q have mass 1, so near M = 1
    M - 1 = sum p (h(zl) + z h(-l)) - i + z (j - i), h(x) = e^x - 1 - x >= 0.
    """
    error, point_error = errors
    exponents = tilt * losses + log_masses
    value = float(log_sum_exp(exponents))
    if abs(value) > 0.5:
        return value, float(np.exp(exponents - value) @ error) + 24.0 * UNIT * (1.0 + abs(value))
    first = np.exp(log_masses) * expm1_minus(tilt * losses)
    near = np.maximum(losses, -_FAR)
    second = np.exp(log_masses - losses + near) * expm1_minus(-near)
    infinite, only_under_q = beyond
    total = float(np.sum(first + tilt * second)) - infinite + tilt * (only_under_q - infinite)
    size = float((first + abs(tilt) * second) @ (2.0 * error + 64.0 * UNIT))
    size += 64.0 * UNIT * (infinite + abs(tilt) * (only_under_q + infinite))
    slope = np.exp(log_masses) * np.abs(np.expm1(tilt * losses)) * (1.0 + abs(tilt))
    return math.log1p(total), 1.2 * (size + float(slope @ point_error)) / (1.0 + total)


def point_moments(
    points: FloatArray, exponents: FloatArray, counts: FloatArray
) -> tuple[float, float, float]:
    times = float(counts[0])
    top = float(np.max(exponents))
    p = np.exp(exponents - top)
    total = float(np.sum(p))
    mean = float(p @ points) / total
    variance = float(p @ (points - mean) ** 2) / total
    return times * (top + math.log(total)), times * mean, times * variance


# ---- The cumulant of a discrete loss -------------------------------------------------------------


@final
class DiscreteCumulant(AbstractFamily):
    """Finitely many losses."""

    def __init__(self, pair: DiscretePair, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        held = np.isfinite(pair.log_masses)
        self.losses, self.log_masses = np.array(pair.losses)[held], pair.log_masses[held]
        self.log_errors = pair.log_errors[held]
        self.point_error = np.full(len(self.losses), pair.loss_error)
        self.beyond = (pair.infinite_mass, pair.only_under_q)

    def values(self, tilts: FloatArray) -> FloatArray:
        return np.asarray(
            self.counts[0] * log_sum_exp(np.multiply.outer(tilts, self.losses) + self.log_masses)
        )

    def moments(self, tilt: float) -> tuple[float, float, float]:
        return point_moments(self.losses, tilt * self.losses + self.log_masses, self.counts)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        exponents = tilt * self.losses + self.log_masses
        error = UNIT * (2.0 + 2.0 * np.abs(tilt * self.losses)) + self.log_errors
        errors = (error + abs(tilt) * self.point_error, self.point_error)
        mass = log_mass(self.losses, self.log_masses, tilt, errors, self.beyond)
        return point_nodes(self.losses, exponents, mass, errors, 0.0)

    def decay(self, tilt: float) -> Decay:
        return no_decay()  # the transform of a discrete law comes back to 1 again and again


# ---- Gauss-Legendre panels for phi(s) r(s)^w on part of the line, with proved errors -------------
# The frequency y turns e^{iyL} ever faster as L rises, so panels get shorter to the right, each
# for a
# turn of a few dozen radians.
#
# Error: each panel on a Bernstein ellipse around it (quadrature.log_ellipse_error), on which every
# factor is bounded by a monotone function of Re s; left of the first panel by a Gaussian tail.


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
