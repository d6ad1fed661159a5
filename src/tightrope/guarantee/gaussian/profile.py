"""Gaussian differential privacy: the profile, its inverses and its trade-off function.

Statement: delta(eps; mu) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2), its inverses in eps and
    in mu, and G_mu(type_i) = Phi(Phi^-1(1 - type_i) - mu).
Conditions: 0 <= mu <= inf; delta takes every real eps, the inverses eps >= 0 and 0 <= delta <= 1.
Validity: exact for N(0,1) against N(mu,1); mu-GDP means at least as private as this pair.
Source: Balle and Wang 2018 (arXiv:1805.06530), Theorems 8 and 9; Dong, Roth and Su 2019
    (arXiv:1905.02383).
Error: stated in `kernel` and `inverse`; `*_bounds` and `*_interval` enclose the truth. Of the
    trade-off function, a relative error below 3e-13 was measured for mu <= 1e3 and values down to
    1e-300 (rounding of Phi^-1, amplified in the tails); the bounds move type_i and the result by
    _CURVE_MARGIN each, in all ten times that.
Vectors: gdp_delta, gdp_eps, tradeoff_gaussian, gaussian_sigma in tests/golden/tradeoff.json.

Everything broadcasts over arrays and gives a float for floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.gaussian import inverse, kernel, profile
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP, root_up, times_up
from tightrope.validate import (
    FloatArray,
    check_count,
    check_delta,
    check_positive,
    check_probability,
    check_real,
)


def delta(epsilon: ArrayLike, mu: ArrayLike) -> Any:
    """delta(eps; mu) for any real eps."""
    eps, m, shape = _together(_any_epsilon(epsilon), _mu(mu))
    return _shaped(kernel.delta_of(eps, m), shape)


def log_delta(epsilon: ArrayLike, mu: ArrayLike) -> Any:
    """ln delta(eps; mu); -inf where delta is zero (mu = 0, eps >= 0) or below every float."""
    eps, m, shape = _together(_any_epsilon(epsilon), _mu(mu))
    return _shaped(kernel.log_delta_of(eps, m), shape)


def epsilon(delta: ArrayLike, mu: ArrayLike) -> Any:
    """The smallest eps >= 0 with delta(eps; mu) <= delta; inf where delta = 0 < mu."""
    d, m, shape = _together(check_delta(delta), _mu(mu))
    return _shaped(inverse.epsilon_of(d, m), shape)


def mu(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The largest mu within the budget (eps >= 0, delta): noise multiplier 1/mu is exact."""
    eps, d, shape = _together(_epsilon(epsilon), check_delta(delta))
    return _shaped(inverse.mu_of(eps, d), shape)


def tradeoff(type_i: ArrayLike, mu: ArrayLike) -> Any:
    """G_mu(type_i), the smallest type II error."""
    a, m, shape = _together(check_probability(type_i, "type_i"), _mu(mu))
    return _shaped(_tradeoff_of(a, m), shape)


def delta_bounds(epsilon: ArrayLike, mu: ArrayLike) -> tuple[Any, Any]:
    """(lower, upper) around delta(eps; mu)."""
    eps, m, shape = _together(_any_epsilon(epsilon), _mu(mu))
    return _both(kernel.delta_bounds_of(eps, m), shape)


def log_delta_bounds(epsilon: ArrayLike, mu: ArrayLike) -> tuple[Any, Any]:
    """(lower, upper) around ln delta(eps; mu)."""
    eps, m, shape = _together(_any_epsilon(epsilon), _mu(mu))
    return _both(kernel.log_delta_bounds_of(eps, m), shape)


def epsilon_bounds(delta: ArrayLike, mu: ArrayLike) -> tuple[Any, Any]:
    """(lower, upper) around epsilon(delta; mu); delta(upper; mu) <= delta is verified."""
    d, m, shape = _together(check_delta(delta), _mu(mu))
    return _both(inverse.epsilon_bounds_of(d, m), shape)


def mu_bounds(epsilon: ArrayLike, delta: ArrayLike) -> tuple[Any, Any]:
    """(lower, upper) around mu(epsilon, delta); the safe calibration is `lower`."""
    eps, d, shape = _together(_epsilon(epsilon), check_delta(delta))
    return _both(inverse.mu_bounds_of(eps, d), shape)


def tradeoff_bounds(type_i: ArrayLike, mu: ArrayLike) -> tuple[Any, Any]:
    """(lower, upper) around G_mu(type_i)."""
    a, m, shape = _together(check_probability(type_i, "type_i"), _mu(mu))
    return _both(_tradeoff_bounds_of(a, m), shape)


def delta_interval(epsilon: float, mu: float) -> Interval:
    return Interval(*delta_bounds(float(epsilon), float(mu)))


def log_gaussian_delta(epsilon: float, mu: float) -> Interval:
    """ln delta of N(mu,1) against N(0,1) for every real eps."""
    low, high = log_delta_bounds(epsilon, mu)
    return Interval(low, min(high, 0.0))


def epsilon_interval(delta: float, mu: float) -> Interval:
    return Interval(*epsilon_bounds(float(delta), float(mu)))


def mu_interval(epsilon: float, delta: float) -> Interval:
    return Interval(*mu_bounds(float(epsilon), float(delta)))


def tradeoff_interval(type_i: float, mu: float) -> Interval:
    return Interval(*tradeoff_bounds(float(type_i), float(mu)))


def _any_epsilon(value: ArrayLike) -> Any:
    largest = kernel.EPSILON_LARGEST
    return check_real(value, "epsilon", low=-largest, high=largest)


def _epsilon(value: ArrayLike) -> Any:
    return check_real(value, "epsilon", low=0.0, high=kernel.EPSILON_LARGEST)


def _mu(value: ArrayLike) -> Any:
    return check_real(value, "mu", low=0.0, finite=False)


def _together(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
    """One-dimensional arrays of a common length, and the shape to give back."""
    a, b = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
    return a.ravel(), b.ravel(), a.shape


def _shaped(values: FloatArray, shape: tuple[int, ...]) -> Any:
    return float(values[0]) if shape == () else values.reshape(shape)


def _both(pair: tuple[FloatArray, FloatArray], shape: tuple[int, ...]) -> tuple[Any, Any]:
    return _shaped(pair[0], shape), _shaped(pair[1], shape)


# ---- Composition, group privacy and noise calibration of Gaussian guarantees ---------------------
# Statement: mu_1-, ..., mu_k-GDP together are sqrt(mu_1^2 + ... + mu_k^2)-GDP; a group of `size`
#     records has size * mu; noise of standard deviation sigma on a query of L2 sensitivity S has
#     mu = S/sigma. Classical formula: sigma = S sqrt(2 ln(1.25/delta))/eps is
#     (eps, delta)-DP for 0 < eps < 1.
# Conditions: adaptive composition, the same neighbours in every part. The classical formula is
# proved
#     for eps < 1 only and is false from about 7.4 on, so it refuses eps >= 1.
# Validity: exact (composition, group and analytic noise of the Gaussian mechanism); the classical
#     formula is a bound.
# Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Corollary 3.3 and Theorem 2.14; Balle and Wang
#     2018 (arXiv:1805.06530); Dwork and Roth 2014, Theorem A.1.
# Error: mu is the next double above the truth; noise is rounded up by a few roundings.
# Vectors: gaussian_sigma in tests/golden/tradeoff.json.


_UP = 1.0 + 4.0 * ULP


def compose_mu(mus: Sequence[float], counts: Sequence[int] | None = None) -> float:
    """sqrt(sum of counts * mu^2), rounded up; 0 for no parts."""
    values = [check_real(m, "mu", low=0.0, finite=False) for m in mus]
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
    mu, size = check_real(mu, "mu", low=0.0, finite=False), check_count(size, "size", low=1)
    return times_up(mu, size)


def analytic_noise(epsilon: ArrayLike, delta: ArrayLike, sensitivity: float = 1.0) -> Any:
    """The smallest sigma for (epsilon, delta), verified and rounded up; inf for delta = 0."""
    sensitivity = check_positive(sensitivity, "sensitivity")
    mu = np.asarray(profile.mu_bounds(epsilon, delta)[0])
    with np.errstate(divide="ignore"):
        return (sensitivity / mu * _UP)[()]


def classical_noise(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """S sqrt(2 ln(1.25/delta))/eps for eps < 1; `analytic_noise` is never larger."""
    eps = check_positive(epsilon, "epsilon")
    d = check_real(delta, "delta", low=0.0, high=1.0, open_low=True)
    if eps >= 1.0:
        raise DoesNotApply(
            f"The classical Gaussian formula is proved for epsilon < 1 only (Dwork and Roth 2014, "
            f"Theorem A.1) and false for large epsilon; got {eps:g}. Use analytic_noise, which is "
            "exact for every epsilon and never larger."
        )
    return float(
        check_positive(sensitivity, "sensitivity") * math.sqrt(2.0 * math.log(1.25 / d)) / eps * _UP
    )


# ---- the trade-off function
_CURVE_MARGIN = 1.5e-12


def _tradeoff_of(type_i: FloatArray, mu: FloatArray) -> FloatArray:
    """G_mu; 0 at type_i = 1, and 1 at type_i = 0 unless mu is infinite."""
    value = ndtr(-ndtri(type_i) - np.minimum(mu, 1e300))
    value = np.where(type_i >= 1.0, 0.0, np.where(type_i <= 0.0, 1.0, value))
    return np.where(mu == np.inf, 0.0, np.where(mu == 0.0, 1.0 - type_i, value))


def _tradeoff_bounds_of(type_i: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(lower, upper) around G_mu."""
    # near 1 the margin is relative to 1 - type_i, which is exact there
    room = _CURVE_MARGIN * np.minimum(type_i, 1.0 - type_i)
    left, right = np.nextafter(type_i - room, 0.0), np.nextafter(type_i + room, 1.0)
    lower = _tradeoff_of(right, mu) * (1.0 - _CURVE_MARGIN)
    upper = _tradeoff_of(left, mu) * (1.0 + _CURVE_MARGIN)
    upper = np.maximum(upper, np.finfo(np.float64).tiny)  # ndtr gives 0 for subnormal numbers
    ends = (type_i <= 0.0) | (type_i >= 1.0) | (mu == np.inf)
    exact = _tradeoff_of(type_i, mu)
    upper = np.minimum(upper, np.nextafter(1.0 - type_i, 1.0))
    return np.where(ends, exact, np.minimum(lower, upper)), np.where(ends, exact, upper)
