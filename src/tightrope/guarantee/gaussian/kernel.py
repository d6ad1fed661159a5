"""The Gaussian profile on checked one-dimensional arrays; `profile` is the public face.

Statement: delta(eps; mu) = phi(a) (R(a) - R(a + mu)), a = eps/mu - mu/2, R = Mills ratio, and
    delta(-e) = 1 - e^-e + e^-e delta(e).
Conditions: eps any real number of size <= EPSILON_LARGEST, 0 <= mu <= inf.
Validity: exact.
Source: Balle and Wang 2018 (arXiv:1805.06530), Theorem 8.
Error: relative error of delta below 4e-15 in 20,000 random points against 60 digits (mu 1e-6..1e3,
    delta down to 1e-300); the bounds widen by MARGIN, more than ten times that. a and a^2 are
    formed in twice the working precision, so neither large mu nor tiny delta costs accuracy.
Vectors: gdp_delta in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr

from tightrope.numerics.quadrature import gauss_legendre
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

MARGIN = 5e-14
EPSILON_LARGEST = 1e150
MU_LARGEST = 1e100  # above, delta is 1 to every digit for |eps| <= EPSILON_LARGEST

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class KernelTerms(NamedTuple):
    """delta = exp(exponent + correction) * difference, or 1 - complement where `plain`."""

    exponent: FloatArray
    correction: FloatArray
    difference: FloatArray
    complement: FloatArray
    plain: NDArray[np.bool_]

    @property
    def log_density(self) -> FloatArray:
        """ln phi(a)."""
        return self.exponent + self.correction

    @property
    def log_delta(self) -> FloatArray:
        """ln delta."""
        near_one = np.log1p(-np.where(self.plain, self.complement, 0.0))
        with np.errstate(divide="ignore"):
            tail = self.log_density + np.log(self.difference)
        return np.where(self.plain, near_one, tail)


def terms(eps: FloatArray, mu: FloatArray) -> KernelTerms:
    """The parts of delta for eps >= 0, mu > 0 (one-dimensional arrays)."""
    a, a_low = _standardised(eps, mu)
    with np.errstate(over="ignore", invalid="ignore"):
        square, square_low = _product(a, a)
        # beyond 1e8 the density is zero and its logarithm has all its digits without correction
        lost = np.where(np.abs(a) < 1e8, 0.5 * square_low + a * a_low, 0.0)
        correction = -lost - _LOG_SQRT_2PI
        right = mills(a + mu)
        complement = ndtr(a) + np.exp(-0.5 * square + correction) * right
    plain = (a < 0.0) & (complement <= 0.75)
    difference = np.ones_like(a)
    difference[~plain] = mills_difference(a[~plain], mu[~plain])
    return KernelTerms(-0.5 * square, correction, difference, complement, plain)


def delta_of(eps: FloatArray, mu: FloatArray) -> FloatArray:
    result = np.zeros_like(eps)
    result[mu > MU_LARGEST] = 1.0
    live = (mu > 0.0) & (mu <= MU_LARGEST)
    t = terms(np.abs(eps[live]), mu[live])
    # Two factors keep the relative accuracy: the exponent itself is exact in two doubles.
    split = np.exp(t.exponent) * (np.exp(t.correction) * t.difference)
    result[live] = np.where(t.plain, 1.0 - t.complement, split)
    rest = 1.0 - result
    rest[live] = np.where(t.plain, t.complement, rest[live])
    return np.where(eps < 0.0, _mirrored(np.minimum(eps, 0.0), result, rest), result)


def _mirrored(below: FloatArray, delta: FloatArray, rest: FloatArray) -> FloatArray:
    """delta(-e) = 1 - e^-e + e^-e delta(e): the pair is symmetric. Close to 1, one rounding."""
    far = np.exp(below) * rest
    return np.where(far < 0.5, 1.0 - far, -np.expm1(below) + np.exp(below) * delta)


def log_delta_of(eps: FloatArray, mu: FloatArray) -> FloatArray:
    result = np.full_like(eps, -np.inf)
    result[mu > MU_LARGEST] = 0.0
    live = (mu > 0.0) & (mu <= MU_LARGEST) & (eps >= 0.0)
    result[live] = terms(eps[live], mu[live]).log_delta
    negative = eps < 0.0
    result[negative] = np.log(delta_of(eps[negative], mu[negative]))
    return result


def delta_bounds_of(eps: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = delta_of(eps, mu)
    exact = (mu == 0.0) & (eps >= 0.0)
    # near 1 the error is relative to 1 - delta, apart from the last rounding
    slack = MARGIN * np.minimum(value, 2.0 * (1.0 - value))
    lower = np.maximum(np.nextafter(value - slack, -1.0), 0.0)
    upper = np.where(exact, 0.0, np.minimum(np.nextafter(value + slack, 2.0), 1.0))
    return lower, upper


def log_delta_bounds_of(eps: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = log_delta_of(eps, mu)
    slack = np.where(np.isfinite(value), MARGIN + 8.0 * ULP * np.abs(value), 0.0)
    exact = (mu == 0.0) & (eps >= 0.0)
    most_negative = np.where(exact, -np.inf, -np.finfo(np.float64).max)
    return value - slack, np.maximum(np.minimum(value + slack, 0.0), most_negative)


def _standardised(eps: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """a = (eps - mu^2/2)/mu as an unevaluated sum of two doubles."""
    square, square_low = _product(mu, mu)
    half = 0.5 * square
    total = eps - half
    back = total - eps
    rest = (eps - (total - back)) + (-half - back) - 0.5 * square_low
    with np.errstate(over="ignore", invalid="ignore"):
        a = (total + rest) / mu
        again, again_low = _product(a, mu)
        a_low = (((total - again) + rest) - again_low) / mu
    return a, np.where(np.isfinite(a_low), a_low, 0.0)


def _product(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """x*y and its rounding error (Dekker)."""
    value = x * y
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    error = ((x_high * y_high - value) + x_high * y_low + x_low * y_high) + x_low * y_low
    return value, error


def _split(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    scaled = 134217729.0 * x  # 2^27 + 1 (Veltkamp)
    high = scaled - (scaled - x)
    return high, x - high


# ---- Mills ratio of the normal law and its differences, without cancellation ---------------------
# Statement: R(x) = Phi(-x)/phi(x); `mills_difference(a, width)` = R(a) - R(a + width).
#     a >= 3:  R(a) - R(b) = E|Z| atan(width |Z| / (Z^2 + a b)), Z standard normal, b = a + width.
#     a < 3:   R(a) - R(b) = integral over [a, b] of 1 - x R(x), or the plain difference.
# Conditions: width > 0 and a >= -width/2 (so that b >= |a|).
# Validity: exact identities; every sum has positive terms only.
# Source: R(x) = E[x/(x^2 + Z^2)] for x > 0 (Stieltjes form); integrate R' = x R - 1 over [a, b].
# Error: 64-point Gauss-Hermite (a >= 3) and 16-point Gauss-Legendre (a < 3, where R(b) > R(a)/2)
#     leave less than 1e-15 (measured against 50 digits); with the rounding of erfcx, about 5e-15.
# Vectors: tests/golden/tradeoff.json (gdp_delta).


_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_SWITCH = 3.0  # Gauss-Hermite is exact to rounding from here on


def _half_hermite(count: int) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    positive = nodes > 0
    return nodes[positive], 2.0 * weights[positive] / weights.sum()


_T, _WT = _half_hermite(64)
_X, _WX = (0.5 * v for v in gauss_legendre(16))
_X = _X + 0.5


def mills(x: FloatArray) -> FloatArray:
    """R(x); overflows to inf below about -37."""
    return np.asarray(_SQRT_HALF_PI * erfcx(_SQRT_HALF * x))


def log_mills(x: FloatArray) -> FloatArray:
    """ln R(x) for x >= 0."""
    return np.log(mills(x))


def mills_difference(a: FloatArray, width: FloatArray) -> FloatArray:
    """R(a) - R(a + width) for one-dimensional arrays of one length (inf where R(a) overflows)."""
    with np.errstate(over="ignore"):
        left, right = mills(a), mills(a + width)
    result = np.asarray(left - right)
    far_right = a >= _SWITCH
    close = ~far_right & (2.0 * right > left)
    result[far_right] = _by_hermite(a[far_right], width[far_right])
    result[close] = _by_legendre(a[close], width[close])
    return result


def _by_hermite(a: FloatArray, width: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        product = (a * (a + width))[:, None]
        # a sum along each row, so that arrays and scalars agree to the last bit
        angles = np.arctan(width[:, None] * _T / (_T * _T + product))
        return np.asarray(np.sum(angles * (_WT * _T), axis=1))


def _by_legendre(a: FloatArray, width: FloatArray) -> FloatArray:
    x = a[:, None] + width[:, None] * _X
    return np.asarray(width * np.sum((1.0 - x * mills(x)) * _WX, axis=1))
