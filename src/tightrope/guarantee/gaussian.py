"""Gaussian differential privacy: the profile, its inverses and its trade-off function.

Statement: delta(eps; mu) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), its inverses in eps and
    in mu (the analytic calibration), and G_mu(type_i) = Phi(Phi^-1(1 - type_i) - mu). With
    a = eps/mu - mu/2 and R the Mills ratio, delta = phi(a) (R(a) - R(a + mu)), and
    delta(-e) = 1 - e^-e + e^-e delta(e).
Conditions: 0 <= mu <= inf; delta takes every real eps, the inverses eps >= 0 and 0 <= delta <= 1.
Validity: exact for N(0,1) against N(mu,1); mu-GDP means at least as private as this pair.
Source: Balle and Wang 2018 (arXiv:1805.06530), Theorems 8 and 9, Algorithm 1; Dong, Roth and Su
    2019 (arXiv:1905.02383).
Error: relative error of delta below 4e-15 in 20,000 random points against 60 digits (mu 1e-6..1e3,
    delta down to 1e-300); the bounds widen by MARGIN, more than ten times that. a and a^2 are
    formed in twice the working precision, so neither large mu nor tiny delta costs accuracy.
    The inverses are as good as delta, 1e-14 relative wherever eps is not much smaller than mu;
    their bounds are verified, so they hold even if Newton's method had failed. Of the trade-off
    function, a relative error below 3e-13 was measured for mu <= 1e3 and values down to 1e-300
    (rounding of Phi^-1, amplified in the tails); the bounds move type_i and the result by
    _CURVE_MARGIN each, in all ten times that.
Vectors: gdp_delta, gdp_eps, tradeoff_gaussian, gaussian_sigma in tests/golden/tradeoff.json.

Everything broadcasts over arrays and gives a float for floats; `*_bounds` enclose the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, erfinv, ndtr, ndtri

from tightrope.errors import InvalidInput, NotCertified
from tightrope.numerics.arrays import (
    Check,
    Indices,
    elementwise,
    increasing_root,
    verified,
)
from tightrope.numerics.interval import Interval
from tightrope.numerics.quadrature import LOG_ROOT_2PI, gauss_legendre
from tightrope.numerics.rounding import ULP, root_up, times_up
from tightrope.validate import (
    FloatArray,
    check_count,
    check_delta,
    check_probability,
    check_real,
)

MARGIN = 5e-14
EPSILON_LARGEST = 1e150
MU_LARGEST = 1e100  # above, delta is 1 to every digit for |eps| <= EPSILON_LARGEST
_CURVE_MARGIN = 1.5e-12


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
        correction = -lost - LOG_ROOT_2PI
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
    below = np.minimum(eps, 0.0)  # the pair is symmetric; close to 1, one rounding
    far = np.exp(below) * rest
    mirrored = np.where(far < 0.5, 1.0 - far, -np.expm1(below) + np.exp(below) * result)
    return np.where(eps < 0.0, mirrored, result)


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
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_T, _WT = _NODES[_NODES > 0], 2.0 * _WEIGHTS[_NODES > 0] / _WEIGHTS.sum()
_X, _WX = (0.5 * v for v in gauss_legendre(16))
_X = _X + 0.5


def mills(x: FloatArray) -> FloatArray:
    """R(x); overflows to inf below about -37."""
    return np.asarray(_SQRT_HALF_PI * erfcx(_SQRT_HALF * x))


def mills_difference(a: FloatArray, width: FloatArray) -> FloatArray:
    """R(a) - R(a + width) for one-dimensional arrays of one length (inf where R(a) overflows)."""
    with np.errstate(over="ignore"):
        left, right = mills(a), mills(a + width)
        result = np.asarray(left - right)
        far = a >= _SWITCH
        product = (a[far] * (a[far] + width[far]))[:, None]
        # a sum along each row, so that arrays and scalars agree to the last bit
        angles = np.arctan(width[far][:, None] * _T / (_T * _T + product))
        result[far] = np.sum(angles * (_WT * _T), axis=1)
    close = ~far & (2.0 * right > left)
    x = a[close][:, None] + width[close][:, None] * _X
    result[close] = width[close] * np.sum((1.0 - x * mills(x)) * _WX, axis=1)
    return result


# ---- The inverses, by Newton's method on ln delta inside a bracket: d(ln delta)/d eps is
# -phi(a) R(a + mu)/delta, and d delta/d mu is phi(a).
def epsilon_of(delta: FloatArray, mu: FloatArray) -> FloatArray:
    """The smallest eps >= 0 with delta(eps; mu) <= delta; inf where there is none."""
    zero = np.zeros_like(delta)
    enough = (delta_of(zero, mu) <= delta) & ((delta > 0.0) | (mu == 0.0))
    result = np.where(enough, 0.0, np.inf)
    live = (result > 0.0) & (delta > 0.0) & (mu <= MU_LARGEST)
    d, m = delta[live], mu[live]
    # delta(eps) <= Phi(-a): so eps <= mu (mu/2 + Phi^-1(1 - delta))
    top = np.maximum(m * (0.5 * m - ndtri(d)), 0.0) * (1.0 + 1e-12) + 1e-300

    def falling(eps: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        here = terms(eps, m[i])
        value = here.log_delta
        slope = np.exp(here.log_density + np.log(mills(eps / m[i] + 0.5 * m[i])) - value)
        return np.log(d[i]) - value, slope

    result[live] = increasing_root(falling, top, np.zeros_like(d), top, smallest=1e-300)
    return result


def mu_of(epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """The largest mu with delta(epsilon; mu) <= delta; 0 for delta = 0, inf for delta = 1."""
    result = np.where(delta >= 1.0, np.inf, 0.0)
    live = (delta > 0.0) & (delta < 1.0)
    eps, d = epsilon[live], delta[live]
    # below the answer: the mu with Phi(-a) = delta, where eps/mu - mu/2 = z = Phi^-1(1 - delta)
    z = -ndtri(d)
    root = np.hypot(z, np.sqrt(2.0 * eps))
    first = np.where(z > 0.0, 2.0 * eps / np.where(z > 0.0, z + root, 1.0), root - z)
    low = np.maximum(first, 2.0**1.5 * erfinv(d)) * (1.0 - 1e-12)

    def rising(log_mu: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        here = terms(eps[i], np.exp(log_mu))
        value = here.log_delta
        return value - np.log(d[i]), np.exp(log_mu + here.log_density - value)

    start = np.log(np.maximum(low, 1e-300))
    top = np.full_like(start, np.log(MU_LARGEST))
    result[live] = np.exp(increasing_root(rising, start, start, top, smallest=1e-300))
    return result


def epsilon_bounds_of(delta: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = epsilon_of(delta, mu)
    finite = np.isfinite(value)
    lower, upper = value.copy(), value.copy()
    d, m, e = delta[finite], mu[finite], value[finite]
    # the pad is the margin of delta over its slope in eps, in units of mu and of eps
    pad = MARGIN * (e + m) + 1e-320
    lower[finite] = _moved(e, -pad, lambda x, i: (x <= 0) | (delta_bounds_of(x, m[i])[0] > d[i]))
    upper[finite] = _moved(e, pad, lambda x, i: delta_bounds_of(x, m[i])[1] <= d[i])
    lower[~finite & (mu < np.inf) & (mu > MU_LARGEST)] = 0.0
    return np.maximum(lower, 0.0), upper


def mu_bounds_of(epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = mu_of(epsilon, delta)
    live = (value > 0.0) & (value < MU_LARGEST)
    lower, upper = value.copy(), value.copy()
    eps, d, m = epsilon[live], delta[live], value[live]
    pad = MARGIN * m
    lower[live] = _moved(m, -pad, lambda x, i: (x <= 0) | (delta_bounds_of(eps[i], x)[1] <= d[i]))
    upper[live] = _moved(m, pad, lambda x, i: delta_bounds_of(eps[i], x)[0] >= d[i])
    return np.maximum(lower, 0.0), upper


def _moved(value: FloatArray, pad: FloatArray, holds: Check) -> FloatArray:
    """`value` moved by a growing multiple of `pad` until the bound is verified."""
    found, done = verified(value, pad, lambda x, i: holds(np.maximum(x, 0.0), i), tries=100)
    if not done.all():
        raise NotCertified(
            "The inverse of the Gaussian profile could not be verified; please report the "
            "arguments."
        )
    return found


# ---- The trade-off function
def tradeoff_of(type_i: FloatArray, mu: FloatArray) -> FloatArray:
    """G_mu; 0 at type_i = 1, and 1 at type_i = 0 unless mu is infinite."""
    value = ndtr(-ndtri(type_i) - np.minimum(mu, 1e300))
    value = np.where(type_i >= 1.0, 0.0, np.where(type_i <= 0.0, 1.0, value))
    return np.where(mu == np.inf, 0.0, np.where(mu == 0.0, 1.0 - type_i, value))


def tradeoff_bounds_of(type_i: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    # near 1 the margin is relative to 1 - type_i, which is exact there
    room = _CURVE_MARGIN * np.minimum(type_i, 1.0 - type_i)
    left, right = np.nextafter(type_i - room, 0.0), np.nextafter(type_i + room, 1.0)
    lower = tradeoff_of(right, mu) * (1.0 - _CURVE_MARGIN)
    upper = tradeoff_of(left, mu) * (1.0 + _CURVE_MARGIN)
    upper = np.maximum(upper, np.finfo(np.float64).tiny)  # ndtr gives 0 for subnormal numbers
    ends = (type_i <= 0.0) | (type_i >= 1.0) | (mu == np.inf)
    exact = tradeoff_of(type_i, mu)
    upper = np.minimum(upper, np.nextafter(1.0 - type_i, 1.0))
    return np.where(ends, exact, np.minimum(lower, upper)), np.where(ends, exact, upper)


# ---- The same for arrays of any shape, checked
_ANY = partial(check_real, name="epsilon", low=-EPSILON_LARGEST, high=EPSILON_LARGEST)
_EPSILON = partial(check_real, name="epsilon", low=0.0, high=EPSILON_LARGEST)
_MU = partial(check_real, name="mu", low=0.0, finite=False)
_TYPE_I = partial(check_probability, name="type_i")

delta = elementwise(_ANY, _MU)(delta_of)
log_delta = elementwise(_ANY, _MU)(log_delta_of)
epsilon = elementwise(check_delta, _MU)(epsilon_of)
mu = elementwise(_EPSILON, check_delta)(mu_of)
tradeoff = elementwise(_TYPE_I, _MU)(tradeoff_of)
delta_bounds = elementwise(_ANY, _MU)(delta_bounds_of)
log_delta_bounds = elementwise(_ANY, _MU)(log_delta_bounds_of)
epsilon_bounds = elementwise(check_delta, _MU)(epsilon_bounds_of)
mu_bounds = elementwise(_EPSILON, check_delta)(mu_bounds_of)
tradeoff_bounds = elementwise(_TYPE_I, _MU)(tradeoff_bounds_of)


def log_gaussian_delta(epsilon: float, mu: float) -> Interval:
    """ln delta of N(mu,1) against N(0,1) for every real eps."""
    low, high = log_delta_bounds(epsilon, mu)
    return Interval(low, min(high, 0.0))


# ---- Composition and group privacy
# Statement: mu_1-, ..., mu_k-GDP together are sqrt(mu_1^2 + ... + mu_k^2)-GDP; a group of `size`
#     records has size * mu.
# Conditions: adaptive composition, the same neighbours in every part.
# Validity: exact.
# Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Corollary 3.3 and Theorem 2.14.
# Error: mu is the next double above the truth.
def compose_mu(mus: Sequence[float], counts: Sequence[int] | None = None) -> float:
    """sqrt(sum of counts * mu^2), rounded up; 0 for no parts."""
    values = [_MU(m) for m in mus]
    times = [1] * len(values) if counts is None else [check_count(c, "count") for c in counts]
    if len(times) != len(values):
        raise InvalidInput(f"Give one count for each mu; got {len(times)} for {len(values)}.")
    parts = [(m, c) for m, c in zip(values, times, strict=True) if c > 0 and m > 0.0]
    if len(parts) == 1 and parts[0][1] == 1:
        return float(parts[0][0])
    largest = max((m for m, _ in parts), default=0.0)
    if largest in (0.0, math.inf):
        return largest
    guess = largest * math.sqrt(math.fsum(c * (m / largest) ** 2 for m, c in parts))
    return root_up(sum((c * Fraction(m) ** 2 for m, c in parts), Fraction(0)), guess)


def group_mu(mu: float, size: int) -> float:
    """mu of `size` records changed together, rounded up."""
    return times_up(_MU(mu), check_count(size, "size", low=1))
