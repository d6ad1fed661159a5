"""What every trade-off function answers.

Statement: f = T(P, Q) gives the smallest type II error of testing P against Q at a type I error.
    With the convex conjugate f*(y) = sup_x (x y - f(x)):  E_{e^eps}(Q||P) = 1 + f*(-e^eps) for
    every real eps (`delta_one_way`). A mechanism that is only known to satisfy T(M(D), M(D')) >= f
    for one order of the neighbours has delta(eps) = max{1 + f*(-e^eps), 1 + (f^-1)*(-e^eps)}
    (`delta`).
Conditions: f convex, continuous, non-increasing, f(x) <= 1 - x.
Validity: exact.
Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Section 2.
Error: `bounds` and `delta_bounds` enclose the truth; the other answers carry rounding only.
Vectors: tests/golden/tradeoff.json.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.numerics.interval import Interval
from tightrope.validate import FloatArray, check_probability, check_real

__all__ = ["AbstractTradeoff", "outward"]

_EPSILON_LARGEST = 700.0  # e^eps stays a double
_TINY = 5e-324


class AbstractTradeoff(ABC):
    """A trade-off function; immutable. Answers broadcast over arrays."""

    # --- what a concrete curve defines, on checked arrays ---------------------------------------
    @abstractmethod
    def _type_ii(self, type_i: FloatArray) -> FloatArray:
        """f."""

    @abstractmethod
    def _bounds(self, type_i: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(lower, upper) around f."""

    @abstractmethod
    def _delta_bounds(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(lower, upper) around 1 + f*(-e^eps)."""

    @abstractmethod
    def _delta(self, epsilon: FloatArray) -> FloatArray:
        """1 + f*(-e^eps)."""

    @abstractmethod
    def tangent(self, epsilon: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(type I error, power) of a test where f has slope -e^eps, eps >= 0."""

    @abstractmethod
    def inverse(self) -> AbstractTradeoff:
        """f^-1 = T(Q, P); the curve itself where it is symmetric."""

    @abstractmethod
    def integral(self) -> float:
        """The area under f: the probability that a random member scores below a non-member."""

    @abstractmethod
    def gaussian_mu(self) -> Interval:
        """The smallest mu with G_mu <= f everywhere; inf where there is none."""

    # --- what all share -------------------------------------------------------------------------
    def type_ii(self, type_i: ArrayLike) -> Any:
        """The smallest type II error at `type_i`."""
        return self._type_ii(np.asarray(check_probability(type_i, "type_i")))[()]

    __call__ = type_ii

    def bounds(self, type_i: ArrayLike) -> tuple[Any, Any]:
        """(lower, upper) around the smallest type II error; `lower` is the safe side."""
        lower, upper = self._bounds(np.asarray(check_probability(type_i, "type_i")))
        return lower[()], upper[()]

    def interval(self, type_i: float) -> Interval:
        return Interval(*self.bounds(float(type_i)))

    def delta_one_way(self, epsilon: ArrayLike) -> Any:
        """E_{e^eps}(Q||P) = 1 + f*(-e^eps) for any real eps in [-700, 700]."""
        return self._delta(_checked_epsilon(epsilon))[()]

    def delta(self, epsilon: ArrayLike) -> Any:
        """The profile of a mechanism with this f for one order of the neighbours (both orders)."""
        eps = _checked_epsilon(epsilon)
        return np.maximum(self._delta(eps), self.inverse()._delta(eps))[()]

    def delta_bounds(self, epsilon: ArrayLike) -> tuple[Any, Any]:
        """(lower, upper) around `delta`; `upper` is the safe side."""
        eps = _checked_epsilon(epsilon)
        first, second = self._delta_bounds(eps), self.inverse()._delta_bounds(eps)
        return np.maximum(first[0], second[0])[()], np.maximum(first[1], second[1])[()]

    def conjugate(self, slope: ArrayLike) -> Any:
        """f*(slope) = sup_x (x slope - f(x)) for a slope < 0."""
        eps = np.log(-np.asarray(check_real(slope, "slope", low=-1e304, high=-1e-304)))
        return (self._delta(eps) - 1.0)[()]

    def area(self) -> float:
        """The area between f and the line of guessing, 1/2 - integral: 0 is perfect privacy."""
        return max(0.5 - self.integral(), 0.0)

    @property
    def symmetric(self) -> bool:
        """Whether f^-1 is this very curve by construction."""
        return self.inverse() is self


def _checked_epsilon(epsilon: ArrayLike) -> FloatArray:
    limit = _EPSILON_LARGEST
    return np.asarray(check_real(epsilon, "epsilon", low=-limit, high=limit), dtype=np.float64)


def outward(value: FloatArray, slack: FloatArray | float) -> tuple[FloatArray, FloatArray]:
    """`value` -+ `slack` (and the smallest double), inside [0, 1]; a plain 0 stays one."""
    most = np.asarray(slack + _TINY * (value > 0.0))
    return np.clip(value - most, 0.0, 1.0), np.clip(value + most, 0.0, 1.0)
