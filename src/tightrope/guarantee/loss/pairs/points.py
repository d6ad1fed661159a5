"""Laws given by points: Gauss-Legendre panels and atoms for the integral, atoms on a lattice.

Error: Gauss-Legendre panels, by the bound of the law in question; rounding term by term.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import Side
from tightrope.numerics.inversion_law import (
    AbstractFamily,
    Decay,
    TiltedNodes,
    layers_of_steps,
    tilted_nodes,
)
from tightrope.numerics.lattice import LatticeMeasure, check_size, normalised
from tightrope.numerics.quadrature import (
    expm1_minus,
    gauss_legendre,
    log_ellipse_error,
    log_sum_exp,
)
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray

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


class OneLaw(AbstractFamily):
    """A family of one law, taken a number of times, that is searched by points of it."""

    def __init__(self, count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)

    @abstractmethod
    def _rough(self, top: float) -> tuple[FloatArray, FloatArray]:
        """Losses and ln masses under P that are good enough to search by, for tilts up to `top`."""

    def values(self, tilts: FloatArray) -> FloatArray:
        losses, log_masses = self._rough(float(np.max(np.abs(tilts))))
        exponents = np.multiply.outer(tilts, losses) + log_masses
        return np.asarray(self.counts[0] * log_sum_exp(exponents))

    def _log_size(self, tilt: float) -> float:
        losses, log_masses = self._rough(tilt)
        return float(log_sum_exp(tilt * losses + log_masses))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        points, log_masses = self._rough(tilt)
        exponents, times = tilt * points + log_masses, float(self.counts[0])
        top = float(np.max(exponents))
        p = np.exp(exponents - top)
        total = float(np.sum(p))
        mean = float(p @ points) / total
        variance = float(p @ (points - mean) ** 2) / total
        return times * (top + math.log(total)), times * mean, times * variance

    def _layered(self, edges: FloatArray, heights: FloatArray, tilt: float) -> Decay:
        """Decay by layers of the density of L, known to be at least `heights` between the edges."""
        layers = layers_of_steps(edges, heights, int(np.argmax(heights)))
        return Decay.of([layers], np.array([math.inf]), np.array([self._log_size(tilt)]))


POINTS = 32  # of a panel
TURN = 51.0  # radians of a panel, about, where the error permits


def panel_points(edges: FloatArray, count: int) -> tuple[FloatArray, FloatArray]:
    """Points and ln weights of the rule with `count` points on each panel, one after the other."""
    centre, half = 0.5 * (edges[..., 1:] + edges[..., :-1]), 0.5 * np.diff(edges)
    nodes, weights = gauss_legendre(count)
    shape = (*edges.shape[:-1], -1)
    s = centre[..., None] + half[..., None] * nodes
    return s.reshape(shape), (np.log(half)[..., None] + np.log(weights)).reshape(shape)


_RADII = np.array([1.6, 2.3, 3.2, 4.5, 7.0])[:, None]
_TAILS = 2.0 * POINTS * np.log(_RADII) + np.log1p(-(_RADII**-2.0))


def log_panels_error(
    edges: FloatArray, mu: float, log_on_box: Callable[[FloatArray, FloatArray, FloatArray], Any]
) -> float:
    """ln of the sum of the Gauss-Legendre errors (quadrature.log_ellipse_error), best radii.

    log_on_box: ln of a bound on the integrand for Re s in [left, right], |Im s| <= deep < 1/mu.
    """
    centre, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
    wide, deep = (0.5 * (_RADII + sign / _RADII) * half for sign in (1.0, -1.0))
    ok = mu * deep < 1.0
    bound = log_on_box(centre - wide, centre + wide, np.where(ok, deep, 0.1 * half))
    bound = np.where(ok, bound - _TAILS, np.inf).min(axis=0)
    return float(log_sum_exp(bound + np.log(64.0 / 15.0 * half)))


def to_ends(within: FloatArray, step: float) -> tuple[FloatArray, FloatArray]:
    """Shares of a mass, `within` from the left end of its cell, to both ends; P and Q are kept."""
    whole = -math.expm1(-step)
    return np.exp(-within) * -np.expm1(within - step) / whole, -np.expm1(-within) / whole


# ---- losses of a bounded range
_PANELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


class BoundedCumulant(OneLaw):
    """One law with a largest loss; P and Q have mass 1 each."""

    largest: float  # |loss|

    @property
    def max_tilt(self) -> float:
        return 2e3 / self.largest

    @abstractmethod
    def _points(self, panels: int, count: int) -> tuple[FloatArray, FloatArray]:
        """Losses and ln masses under P: `panels` panels of `count` points each, and the atoms."""

    @abstractmethod
    def _slope(self, tilt: float, frequency: float) -> float:
        """A bound on the derivative of the integrand's logarithm, as a function on the panels."""

    @abstractmethod
    def _log_bound(self, tilt: float) -> float:
        """ln of a bound on the integrand at real points."""

    @abstractmethod
    def _point_error(self, losses: FloatArray) -> FloatArray:
        """Bounds on the rounding of the losses."""

    length = 1.0  # of all panels together
    height = math.inf  # from the panels' line to where the bound on the slope ends

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        panels, count, log_error = self._choose(tilt, frequency, nats)
        losses, log_masses = self._points(panels, count)
        exponents = tilt * losses + log_masses
        point_error = self._point_error(losses)
        error = UNIT * (64.0 + 4.0 * np.abs(log_masses) + 4.0 * np.abs(tilt * losses))
        error += (abs(tilt) + 1.0) * point_error
        value, rounding = log_mass(losses, log_masses, tilt, (error, point_error))
        quadrature = 3.0 * math.exp(log_error - value)
        return point_nodes(losses, exponents, (value, rounding), (error, point_error), quadrature)

    def _choose(self, tilt: float, frequency: float, nats: float) -> tuple[int, int, float]:
        """Panels, points of each, and ln of the error: |f| <= e^(bound + slope * distance)."""
        slope = self._slope(tilt, frequency)
        for panels in _PANELS:
            half = 0.5 / panels
            tallest = self.height / half
            for count in COUNTS:
                radius = max(1.5, 2.0 * count / max(half * slope, 1e-3))
                radius = min(radius, tallest + math.sqrt(1.0 + tallest * tallest))
                reach = 0.5 * half * (radius + 1.0 / radius)
                bound = self._log_bound(tilt) + slope * reach
                # all panels together: their half widths add up to half of the length
                log_error = log_ellipse_error(count, radius, bound, 0.5 * self.length)
                if log_error < -nats:
                    return panels, count, log_error
        raise NotCertified("The cumulant needs too many panels; use the lattice method.")


# ---- on a lattice
def atoms_measure(
    losses: FloatArray,
    masses: FloatArray,
    side: Side,
    step: float,
    rate: float,
    relative: float,
    loss_units: float = 8.0,
) -> LatticeMeasure:
    """Atoms anywhere: on the lattice they stay, others are split above or moved down below."""
    keep = masses > 0.0
    losses, masses = losses[keep], masses[keep]
    origin = float(losses[0])
    place = (losses - origin) / step
    check_size(float(place[-1]))
    index = np.floor(place + 1e-9).astype(np.int64)
    offset = np.maximum(losses - (origin + index * step), 0.0)
    off = np.abs(losses - (origin + np.round(place) * step))
    aligned = off <= 1e-9 * step
    offset[aligned] = 0.0
    index[aligned] = np.round(place[aligned]).astype(np.int64)
    tilted = np.log(masses) + rate * (origin + index * step)
    top = float(tilted.max())
    weights = np.exp(tilted - top)
    total = np.zeros(int(index.max()) + 2)
    if side == "lower":
        np.add.at(total, index, weights)
    else:
        to_right = -np.expm1(-offset) / -math.expm1(-step)
        np.add.at(total, index, weights * (1.0 - to_right))
        np.add.at(total, index + 1, weights * to_right * math.exp(rate * step))
    relative += 8.0 * ULP * (3.0 + float(np.abs(tilted).max()))
    slip = float(off[aligned].max(initial=0.0)) + loss_units * UNIT * float(np.abs(losses).max())
    return normalised(origin, step, np.trim_zeros(total, "b"), top, rate, 0.0, relative, slip)
