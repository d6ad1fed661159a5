"""Trade-off functions of an (epsilon, delta) guarantee and of the Laplace mechanism.

Statement: f_{eps,delta}(a) = max{0, 1 - delta - e^eps a, e^-eps (1 - delta - a)}.
    Laplace noise, eps = sensitivity/scale: f(a) = 1 - e^eps a up to e^-eps/2, e^-eps/(4a) up to
    1/2, e^-eps (1 - a) beyond; 1 + f*(-e^x) = 1 - e^{(x - eps)/2} for |x| <= eps, 1 - e^x below, 0
    above. Smallest Gaussian parameter: -2 Phi^-1(1/(1 + e^eps)) for (eps, 0); -2
    Phi^-1(e^{-eps/2}/2) for Laplace (s -> -Phi^-1(e^-s/2) is concave, so the middle of the
    hyperbola is the worst point).
Conditions: eps >= 0, 0 <= delta <= 1.
Validity: exact.
Source: Wasserman and Zhou 2010; Dong, Roth and Su 2019 (arXiv:1905.02383), (4) and Proposition A.6.
Error: a few roundings; differences from 1 are absolute.
Vectors: tradeoff_eps_delta and tradeoff_laplace in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import expit, ndtri

from tightrope.guarantee.approx import tradeoff, tradeoff_bounds
from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray, check_delta, check_real
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff, outward

__all__ = ["ApproxTradeoff", "LaplaceTradeoff"]

_SLACK = 1e-14


def _symmetric_delta(curve: AbstractTradeoff, epsilon: FloatArray, above: FloatArray) -> FloatArray:
    """The rule for negative eps, delta(-e) = 1 - e^-e + e^-e delta(e), from delta(|eps|)."""
    below = np.minimum(epsilon, 0.0)
    return np.asarray(-np.expm1(below) + np.exp(below) * above)


@final
@dataclass(frozen=True)
class ApproxTradeoff(AbstractTradeoff):
    """f_{epsilon, delta}."""

    epsilon: float
    failure: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", check_real(self.epsilon, "epsilon", low=0.0, high=700.0)
        )
        object.__setattr__(self, "failure", check_delta(self.failure))

    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        return np.asarray(tradeoff(type_i, self.epsilon, self.failure))

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        return tradeoff_bounds(type_i, self.epsilon, self.failure)

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        share = -np.expm1(np.minimum(np.abs(epsilon) - self.epsilon, 0.0)) * expit(self.epsilon)
        return _symmetric_delta(self, epsilon, self.failure + (1.0 - self.failure) * share)

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = self._delta(epsilon)
        noise = _SLACK * self.epsilon * (np.abs(epsilon) < self.epsilon)  # of |eps| - epsilon
        return outward(value, np.where(epsilon >= self.epsilon, 0.0, _SLACK * value + noise))

    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        low, high = (
            (1.0 - self.failure) * expit(-self.epsilon),
            (1.0 - self.failure) * expit(self.epsilon),
        )
        beyond = epsilon >= self.epsilon
        return np.where(beyond, 0.0, low), np.where(beyond, self.failure, self.failure + high)

    def inverse(self) -> ApproxTradeoff:
        return self

    def integral(self) -> float:
        # two triangles that share the corner of the curve with slope -1 between their legs
        return (1.0 - self.failure) ** 2 * float(expit(-self.epsilon))

    def gaussian_mu(self) -> Interval:
        if self.failure > 0.0:
            return Interval.exact(math.inf)
        value = -2.0 * float(ndtri(expit(-self.epsilon)))
        return Interval(max(value * (1.0 - _SLACK) - 1e-15, 0.0), value * (1.0 + _SLACK) + 1e-15)


@final
@dataclass(frozen=True)
class LaplaceTradeoff(AbstractTradeoff):
    """T(Lap(0, 1), Lap(epsilon, 1)), epsilon = sensitivity/scale."""

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", check_real(self.epsilon, "epsilon", low=0.0, high=700.0)
        )

    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        steep = 1.0 - np.exp(self.epsilon) * type_i
        factor = np.exp(-self.epsilon)
        middle = 0.25 * factor / np.maximum(type_i, 0.5 * factor)
        value = np.where(type_i <= 0.5, middle, factor * (1.0 - type_i))
        return np.asarray(np.where(type_i < 0.5 * factor, steep, value))

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = self._type_ii(type_i)
        return outward(value, _SLACK * np.where(type_i < 0.5 * np.exp(-self.epsilon), 1.0, value))

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        above = -np.expm1(np.minimum(0.5 * (np.abs(epsilon) - self.epsilon), 0.0))
        return _symmetric_delta(self, epsilon, above)

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        value = self._delta(epsilon)
        noise = _SLACK * self.epsilon * (np.abs(epsilon) < self.epsilon)
        return outward(value, _SLACK * value + noise)

    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        beyond = epsilon >= self.epsilon
        inside = np.minimum(epsilon, self.epsilon)
        low = 0.5 * np.exp(-0.5 * (self.epsilon + inside))
        high = 1.0 - 0.5 * np.exp(-0.5 * (self.epsilon - inside))
        return np.where(beyond, 0.0, low), np.where(beyond, 0.0, high)

    def inverse(self) -> LaplaceTradeoff:
        return self

    def integral(self) -> float:
        return math.exp(-self.epsilon) * (0.5 + 0.25 * self.epsilon)

    def gaussian_mu(self) -> Interval:
        value = -2.0 * float(ndtri(0.5 * math.exp(-0.5 * self.epsilon)))
        return Interval(max(value * (1.0 - _SLACK) - 1e-15, 0.0), value * (1.0 + _SLACK) + 1e-15)
