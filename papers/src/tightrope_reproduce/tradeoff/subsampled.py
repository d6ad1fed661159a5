"""The symmetric trade-off function of the Poisson-sampled Gaussian mechanism.

Statement: C_p(G_mu) = min{f_p, f_p^-1}**, f_p = p G_mu + (1 - p) Id. With x = Phi(-mu/2) and
    y = p Phi(-mu/2) + (1 - p) Phi(mu/2): C_p = f_p on [0, x], x + y - a on [x, y], f_p^-1 on [y,
    1]. Area under it: 2 I - x y + (y^2 - x^2)/2 with I = p (Phi(-mu/sqrt 2) + x^2)/2 + (1 - p)(x -
    x^2/2).
Conditions: Poisson sampling with probability p, add-or-remove neighbours; or (as a bound) batches
    of a fixed size with replace-one neighbours. One step: to compose, compose f_p and symmetrise
    afterwards.
Validity: exact for one step of the Gaussian mechanism.
Source: Bu et al. 2019 (arXiv:1911.11607), (3), Proposition A.1, Lemma A.2.
Error: that of f_p and its inverse, see `gaussian`.
Vectors: subsample_tradeoff in tests/golden/tradeoff.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr

from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff
from tightrope_reproduce.tradeoff.gaussian import SampledGaussianTradeoff

__all__ = ["SubsampledGaussianTradeoff"]

_SLACK = 2e-15


@final
@dataclass(frozen=True)
class SubsampledGaussianTradeoff(AbstractTradeoff):
    """C_p(G_mu)."""

    rate: float
    mu: float

    def __post_init__(self) -> None:
        forward = self.forward  # checks the arguments
        object.__setattr__(self, "rate", forward.rate)
        object.__setattr__(self, "mu", forward.mu)

    @property
    def forward(self) -> SampledGaussianTradeoff:
        """f_p."""
        return SampledGaussianTradeoff(self.rate, self.mu)

    @property
    def kinks(self) -> tuple[float, float]:
        """(x, y): the ends of the piece of slope -1."""
        x = float(ndtr(-0.5 * self.mu))
        return x, self.rate * x + (1.0 - self.rate) * float(ndtr(0.5 * self.mu))

    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        value = self.forward._type_ii(type_i)
        return self._joined(type_i, value, lambda a: self.forward.inverse()._type_ii(a))

    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        forward, backward = self.forward, self.forward.inverse()
        first = forward._bounds(type_i)
        lower = self._joined(type_i, first[0], lambda a: backward._bounds(a)[0], -_SLACK)
        upper = self._joined(type_i, first[1], lambda a: backward._bounds(a)[1], _SLACK)
        return lower, upper

    def _joined(
        self, type_i: FloatArray, steep: FloatArray, backward: object, slack: float = 0.0
    ) -> FloatArray:
        x, y = self.kinks
        middle = np.maximum(x + y - type_i + slack, 0.0)  # a difference of numbers up to 1
        value = np.where(type_i <= x, steep, middle)
        flat = type_i > y
        if np.any(flat):
            value = np.atleast_1d(value)
            flat = np.atleast_1d(flat)
            value[flat] = backward(np.atleast_1d(type_i)[flat])  # type: ignore[operator]
        return value.reshape(np.shape(type_i))

    def _delta(self, epsilon: FloatArray) -> FloatArray:
        return np.maximum(self.forward._delta(epsilon), self.forward.inverse()._delta(epsilon))

    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        first = self.forward._delta_bounds(epsilon)
        second = self.forward.inverse()._delta_bounds(epsilon)
        return np.maximum(first[0], second[0]), np.maximum(first[1], second[1])

    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        return self.forward.tangent(epsilon)  # slopes below -1 are those of f_p

    def inverse(self) -> SubsampledGaussianTradeoff:
        return self

    def integral(self) -> float:
        x, y = self.kinks
        under_gaussian = 0.5 * (self.forward.gaussian.integral() + x * x)
        steep = self.rate * under_gaussian + (1.0 - self.rate) * (x - 0.5 * x * x)
        return 2.0 * steep - x * y + 0.5 * (y * y - x * x)

    def gaussian_mu(self) -> Interval:
        return self.forward.gaussian_mu()
