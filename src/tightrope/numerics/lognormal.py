"""One lognormal X = e^(mu g - mu^2/2) of mean 1: its transform for complex v, and power means.

F(v) = E e^(-vX), g normal. With the path of g moved by -i theta/mu, the exponent turns by -theta:
    F(v) - 1 = int phi(g - i theta/mu) (e^(-v e^(-i theta) X) - 1) dg.
As |phi(g - id)| = e^(d^2/2) phi(g), F is analytic far beyond Re v > 0. If Re(v e^(-i theta)) >= 0,
    |F(v)| <= e^(theta^2/(2 mu^2)) F(Re(v e^(-i theta))),   |F'(v)| <= e^(theta^2/(2 mu^2)).
On real v > 0, F falls and ln F(e^w) is concave in w (a convolution of log-concave functions).

Error: trapezoidal sums in a strip of half-width spin/mu, in which |e^(-vX) - 1| <= |v| X (Trefethen
and Weideman 2014, Theorem 5.1): kept, with the cut ends, below 6 |v| e^-nats. Rounding of the sum:
40 units of the sum of |terms| (NumPy adds in pairs).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import gammaln

from tightrope.numerics.inversion_nodes import ComplexArray
from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

__all__ = ["Transform", "unit_of", "log_real_transform", "log_power_mean"]

_BLOCK = 128  # values of v at a time
_SPIN = 0.55
_REAL_NATS, _REAL_REACH = 90.0, 14.0
_ZOOMS, _TRIED = 4, 12  # places tried in the search for the smallest bound


def unit_of(number: type[np.floating[Any]]) -> float:
    """The largest relative error of one operation in this kind of number."""
    return 0.5 * float(np.finfo(number).eps)


class Transform:
    """F(v) - 1 for arguments of v from 0 to `beyond` (below a right angle) more than a right angle.

    Every turn from `beyond` to `beyond` + 2 spin <= a right angle keeps Re v >= 0 for all of them.
    """

    def __init__(self, mu: float, beyond: float, nats: float, number: Any = np.float64) -> None:
        spin = min(_SPIN, 1.2 * mu, 0.25 * math.pi - 0.5 * beyond)
        turn, half_width = beyond + spin, spin / mu
        self.log_bend = 0.5 * (turn / mu) ** 2  # ln of the bound on |F'|
        log_edge = 0.5 * (turn / mu + half_width) ** 2
        step = 2.0 * math.pi * half_width / (nats + log_edge)
        reach = math.sqrt(2.0 * (nats + log_edge)) + 1.0
        g = number(step) * np.arange(-math.ceil(reach / step), math.ceil((reach + mu) / step) + 1)
        mu, turn = number(mu), number(turn)
        self.ratios = np.exp(-1j * turn) * np.exp(mu * g - 0.5 * mu * mu)
        bend = turn / mu
        self.weights = np.exp(-0.5 * g * g + 0.5 * bend * bend + 1j * g * bend)
        self.weights *= number(step) / np.sqrt(4.0 * np.arctan2(number(1.0), number(0.0)))
        self.share, self.units = 6.0 * math.exp(-nats), 40.0 * unit_of(number)

    def __call__(self, v: ComplexArray) -> tuple[ComplexArray, FloatArray]:
        """F(v) - 1, and the bound on its error."""
        value, size = np.empty(len(v), v.dtype), np.empty(len(v))
        for first in range(0, len(v), _BLOCK):
            part = slice(first, first + _BLOCK)
            terms = np.expm1(-v[part, None] * self.ratios) * self.weights
            value[part], size[part] = terms.sum(axis=1), np.abs(terms).sum(axis=1)
        return value, self.units * size + self.share * np.abs(v)

    def drift(self, v: ComplexArray) -> FloatArray:
        """A bound on |F(v) + F'(v)|, small where X is nearly 1."""
        value = np.empty(len(v), complex)
        for first in range(0, len(v), _BLOCK):
            turned = np.exp(-v[first : first + _BLOCK, None] * self.ratios)
            value[first : first + _BLOCK] = turned @ (self.weights * (1.0 - self.ratios))
        return np.asarray(np.abs(value) + 2.0 * self.share + 1e-9)


def log_real_transform(mu: float, v: FloatArray) -> FloatArray:
    """ln F(v) for v > 0, from above."""
    half_width = min(0.5 * math.pi / mu, 6.0)
    step = 2.0 * math.pi * half_width / (_REAL_NATS + 0.5 * half_width**2)
    g = np.arange(-_REAL_REACH, _REAL_REACH, step)
    weights = step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * g * g)
    values = np.exp(-np.multiply.outer(v, np.exp(mu * g - 0.5 * mu * mu))) @ weights
    return np.asarray(np.log(values * (1.0 + 1e-12) + 4.0 * math.exp(-_REAL_NATS)))


def log_power_mean(count: int, mu: float, power: int) -> float:
    """A bound on ln E S^power, S the mean of `count` lognormals, whole powers >= 1.

    E (count S)^a = a! [x^a] s(x)^count with s = sum_k x^k E X^k/k!, and for positive coefficients
    [x^a] s^count <= s_a(x)^count x^-a at every x > 0, s_a being s up to x^a.
    """
    k = np.arange(power + 1.0)
    coefficients = 0.5 * mu * mu * k * (k - 1.0) - gammaln(k + 1.0)
    fixed = float(gammaln(power + 1.0)) - power * math.log(count)
    high = math.log(power / count) + 0.5
    low = min(high - 1.0, -(float(coefficients[-1]) + math.log(count)) / power - 1.0)
    best = size = math.inf
    for _ in range(_ZOOMS):  # the bound is convex in ln x
        log_x = np.linspace(low, high, _TRIED)
        sums = log_sum_exp(coefficients + np.multiply.outer(log_x, k))
        bounds = fixed + count * sums - power * log_x
        at = int(bounds.argmin())
        best = float(bounds[at])
        size = abs(fixed) + count * abs(float(sums[at])) + power * abs(float(log_x[at]))
        low, high = float(log_x[max(at - 1, 0)]), float(log_x[min(at + 1, _TRIED - 1)])
    return best + 64.0 * UNIT * (size + count * float(np.abs(coefficients).max() + power))
