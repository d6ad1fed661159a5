"""Piecewise linear trade-off functions: those of two discrete laws.

Statement: for atoms with masses (p_i, q_i) sorted by falling q_i/p_i, T(P, Q) joins the points
    (p_1 + ... + p_i, q_{i+1} + ... + q_n) (Neyman-Pearson); every piecewise linear trade-off
    function is of this form. 1 + f*(-e^eps) = sum (q_i - e^eps p_i)_+. The smallest mu with G_mu
    <= f is the largest Phi^-1(1 - x) - Phi^-1(y) over the corners (x, y), since the points above
    G_mu form a convex set.
Conditions: masses >= 0, each law of total mass 1 (to 1e-9; normalised).
Validity: exact.
Source: Neyman and Pearson 1933; Dong, Roth and Su 2019 (arXiv:1905.02383), Section 2.
Error: `rounding` bounds the relative error of every mass; sums are taken from the end where they
    are small, so corners keep it at both ends, but for n units of rounding of n summands.
Vectors: tests/laws/test_tradeoff_laws.py, tests/unit/reproduce/test_tradeoff_divergence.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from tightrope.errors import InvalidInput
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray, check_probability, check_real
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff, outward

__all__ = ["DiscreteTradeoff", "from_losses", "from_corners"]

_ROUNDING = 4e-15
_TOTAL_TOLERANCE = 1e-9


@final
@dataclass(frozen=True, eq=False)
class DiscreteTradeoff(AbstractTradeoff):
    """T(P, Q) of two laws on finitely many points; atoms are stored by falling q/p."""

    p: FloatArray
    q: FloatArray
    rounding: float = _ROUNDING
    x: FloatArray = field(init=False, repr=False)
    co_x: FloatArray = field(init=False, repr=False)
    power: FloatArray = field(init=False, repr=False)
    y: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        (p, p_error), (q, q_error) = _masses(self.p, "p"), _masses(self.q, "q")
        object.__setattr__(self, "rounding", self.rounding + max(p_error, q_error))
        if p.shape != q.shape:
            raise InvalidInput(f"p and q list the same points; got {p.size} and {q.size} masses.")
        keep = (p > 0.0) | (q > 0.0)
        p, q = p[keep], q[keep]
        with np.errstate(divide="ignore"):
            order = np.argsort(np.log(p) - np.log(q), kind="stable")
        for name, masses in (("p", p[order]), ("q", q[order])):
            masses.flags.writeable = False
            object.__setattr__(self, name, masses)
        # corners from both ends: x and 1 - x, y and 1 - y, each accurate where it is small
        for name, values in self._corner_sums().items():
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    def _corner_sums(self) -> dict[str, FloatArray]:
        zero = np.zeros(1)
        return {
            "x": np.concatenate([zero, np.cumsum(self.p)]),
            "co_x": np.concatenate([np.cumsum(self.p[::-1])[::-1], zero]),
            "power": np.concatenate([zero, np.cumsum(self.q)]),
            "y": np.concatenate([np.cumsum(self.q[::-1])[::-1], zero]),
        }

    @property
    def _of_sums(self) -> float:
        """The relative error of running sums of the masses."""
        return self.p.size * UNIT

    @property
    def log_ratios(self) -> FloatArray:
        """ln(q/p) of the atoms, falling; the slopes of f are -e^{log_ratios}."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.q) - np.log(self.p))

    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        a = np.atleast_1d(type_i).ravel()
        # at a vertical piece (p = 0) the curve continues from its lower end
        i = np.clip(np.searchsorted(self.x, a, side="right") - 1, 0, self.p.size - 1)
        width = np.where(self.p[i] > 0.0, self.p[i], 1.0)
        # distances to the corners, from the end where they are accurate
        from_left = np.where(self.x[i] < 0.5, a - self.x[i], self.co_x[i] - (1.0 - a))
        share = np.clip(from_left / width, 0.0, 1.0)
        value = self.y[i] * (1.0 - share) + self.y[i + 1] * share
        value = np.where(a >= 1.0, 0.0, np.where(self.p[i] > 0.0, value, self.y[i + 1]))
        value = np.minimum(value, 1.0 - a)
        return value.reshape(np.shape(type_i))

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        r = 4.0 * self.rounding + self._of_sums
        lower = self._type_ii(np.minimum(type_i * (1.0 + r), 1.0)) * (1.0 - r)
        upper = self._type_ii(type_i * (1.0 - r)) * (1.0 + r)
        return lower, np.minimum(upper, np.nextafter(1.0 - type_i, 1.0))

    def _parts(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        """sum (q - e^eps p)_+, and q + e^eps p summed over all atoms that may contribute."""
        eps = np.atleast_1d(epsilon).ravel()
        value, size = np.zeros_like(eps), np.zeros_like(eps)
        for i, e in enumerate(eps):
            moved = math.exp(e) * self.p
            gain = self.q - moved
            value[i] = gain[gain > 0.0].sum()
            size[i] = (self.q + moved)[gain > -1e-9 * self.q].sum()
        return value.reshape(np.shape(epsilon)), size.reshape(np.shape(epsilon))

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        return self._parts(epsilon)[0]

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        value, size = self._parts(epsilon)
        return outward(value, 4.0 * self.rounding * size)

    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        # atoms with ln(q/p) > eps are rejected
        i = np.searchsorted(-self.log_ratios, -epsilon, side="left")
        return self.x[i], self.power[i]

    def inverse(self) -> DiscreteTradeoff:
        return DiscreteTradeoff(self.q[::-1], self.p[::-1], self.rounding)

    def integral(self) -> float:
        return float(np.sum(self.p * 0.5 * (self.y[:-1] + self.y[1:])))

    def gaussian_mu(self) -> Interval:
        with np.errstate(invalid="ignore"):
            value = _quantile(self.co_x, self.x) - _quantile(self.y, self.power)
        inner = ~(((self.x <= 0.0) & (self.power <= 0.0)) | ((self.co_x <= 0.0) & (self.y <= 0.0)))
        mu = max(float(np.max(value[inner], initial=0.0)), 0.0)
        if mu == math.inf:
            return Interval.exact(mu)
        slack = (16.0 * self.rounding + 4.0 * self._of_sums) * (1.0 + mu) + 1e-13 * mu
        return Interval(max(mu - slack, 0.0), mu + slack)


def _quantile(mass: FloatArray, complement: FloatArray) -> FloatArray:
    """Phi^-1(mass), from whichever of mass and complement is the smaller."""
    small, large = ndtri(np.minimum(mass, 0.5)), -ndtri(np.minimum(complement, 0.5))
    return np.asarray(np.where(mass < 0.5, small, large))


def _masses(values: ArrayLike, name: str) -> tuple[FloatArray, float]:
    """The masses divided by their sum, and how far that moves them beyond rounding."""
    masses = np.atleast_1d(np.asarray(check_real(values, name, low=0.0), dtype=np.float64))
    total = float(masses.sum())
    if masses.ndim != 1 or abs(total - 1.0) > _TOTAL_TOLERANCE:
        raise InvalidInput(
            f"{name} must be a list of probabilities that sum to 1; its sum is {total!r}. "
            "Divide by the sum, or add the missing outcome."
        )
    error = abs(total - 1.0)
    return masses / total, error if error > 1e-14 else 0.0


def from_losses(
    losses: Sequence[float], masses: Sequence[float], infinite_mass: float = 0.0
) -> DiscreteTradeoff:
    """T(Q, P) of a privacy-loss distribution: L = ln dP/dQ has these masses under P, + L = inf.

    Its `delta_one_way` is therefore E_{e^eps}(P||Q) = E (1 - e^{eps - L})_+ + infinite_mass.
    """
    p = np.append(
        np.asarray(check_probability(masses, "masses")),
        check_probability(infinite_mass, "infinite_mass"),
    )
    q = p[:-1] * np.exp(-np.asarray(losses, dtype=np.float64))
    rest = 1.0 - float(q.sum())
    if rest < -_TOTAL_TOLERANCE:
        raise InvalidInput(f"masses * e^-losses must sum to at most 1; got {1.0 - rest!r}.")
    return DiscreteTradeoff(np.append(q, [0.0, max(rest, 0.0)]), np.append(p, 0.0))


def from_corners(type_i: Sequence[float], type_ii: Sequence[float]) -> DiscreteTradeoff:
    """The curve through the given corners, from (0, f(0)) to (1, 0)."""
    x = np.asarray(check_probability(type_i, "type_i"))
    y = np.asarray(check_probability(type_ii, "type_ii"))
    if (
        x.shape != y.shape
        or x.ndim != 1
        or x.size < 2
        or x[0] != 0.0
        or x[-1] != 1.0
        or y[-1] != 0.0
    ):
        raise InvalidInput(
            "Corners run from (0, f(0)) to (1, 0), with as many type I as type II errors."
        )
    p, q = np.diff(x), -np.diff(y)
    slopes = q / np.where(p > 0.0, p, 1.0)
    if (p <= 0.0).any() or (q < 0.0).any() or (np.diff(slopes) > 1e-9 * slopes[:-1]).any():
        raise InvalidInput(
            "A trade-off function is convex and non-increasing; these corners are not."
        )
    return DiscreteTradeoff(np.append(0.0, p), np.append(1.0 - y[0], q))
