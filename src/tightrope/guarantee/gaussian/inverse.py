"""Inverses of the Gaussian profile: epsilon(delta; mu) and mu(epsilon, delta).

Statement: epsilon(delta; mu) = min{eps >= 0 : delta(eps; mu) <= delta};
    mu(epsilon, delta) = max{mu : delta(eps; mu) <= delta}, the analytic Gaussian calibration.
Conditions: 0 <= delta <= 1; mu >= 0; epsilon >= 0 for mu(epsilon, delta).
Validity: exact.
Source: Balle and Wang 2018 (arXiv:1805.06530), Algorithm 1 and Theorem 9.
Error: Newton's method on ln delta inside a shrinking bracket. With d(ln delta)/d eps =
    -phi(a) R(a + mu)/delta and d delta/d mu = phi(a), the answer is as good as delta: 1e-14
    relative wherever eps is not much smaller than mu. Bounds move the answer by a margin and
    are then verified with `delta_bounds_of`, so they hold even if Newton had failed.
Vectors: gdp_eps and gaussian_sigma in tests/golden/tradeoff.json.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv, ndtri

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian.kernel import (
    MARGIN,
    MU_LARGEST,
    delta_bounds_of,
    delta_of,
    log_mills,
    terms,
)
from tightrope.validate import FloatArray

# ln delta and its derivative at x, for the elements of the given index array
IntArray = NDArray[np.intp]
Log = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]]
_STEPS = 100


def epsilon_of(delta: FloatArray, mu: FloatArray) -> FloatArray:
    """The smallest eps >= 0 with delta(eps; mu) <= delta; inf where there is none."""
    zero = np.zeros_like(delta)
    enough = (delta_of(zero, mu) <= delta) & ((delta > 0.0) | (mu == 0.0))
    result = np.where(enough, 0.0, np.inf)
    live = (result > 0.0) & (delta > 0.0) & (mu <= MU_LARGEST)
    d, m = delta[live], mu[live]
    # delta(eps) <= Phi(-a): so eps <= mu (mu/2 + Phi^-1(1 - delta))
    top = np.maximum(m * (0.5 * m - ndtri(d)), 0.0) * (1.0 + 1e-12) + 1e-300

    def log_and_slope(eps: FloatArray, at: IntArray) -> tuple[FloatArray, FloatArray]:
        here = terms(eps, m[at])
        value = here.log_delta
        return value, -np.exp(here.log_density + log_mills(eps / m[at] + 0.5 * m[at]) - value)

    result[live] = _newton(log_and_slope, np.log(d), top, np.zeros_like(d), top)
    return result


def mu_of(epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """The largest mu with delta(epsilon; mu) <= delta; 0 for delta = 0, inf for delta = 1."""
    result = np.where(delta >= 1.0, np.inf, 0.0)
    live = (delta > 0.0) & (delta < 1.0)
    eps, d = epsilon[live], delta[live]
    low = np.maximum(_mu_ignoring_second_term(eps, d), 2.0**1.5 * erfinv(d)) * (1.0 - 1e-12)

    def log_and_slope(log_mu: FloatArray, at: IntArray) -> tuple[FloatArray, FloatArray]:
        m = np.exp(log_mu)
        here = terms(eps[at], m)
        value = here.log_delta
        return value, np.exp(log_mu + here.log_density - value)

    start = np.log(np.maximum(low, 1e-300))
    top = np.full_like(start, np.log(MU_LARGEST))
    result[live] = np.exp(_newton(log_and_slope, np.log(d), start, start, top))
    return result


def _mu_ignoring_second_term(eps: FloatArray, delta: FloatArray) -> FloatArray:
    """The mu with Phi(-a) = delta, below the answer: eps/mu - mu/2 = z, z = Phi^-1(1 - delta)."""
    z = -ndtri(delta)
    root = np.hypot(z, np.sqrt(2.0 * eps))
    positive = np.where(z > 0.0, z + root, 1.0)
    return np.where(z > 0.0, 2.0 * eps / positive, root - z)


def _newton(
    log_and_slope: Log, target: FloatArray, start: FloatArray, low: FloatArray, high: FloatArray
) -> FloatArray:
    """Roots of a monotone function within [low, high], elementwise, to the last digits."""
    x, low, high = start.copy(), low.copy(), high.copy()
    active = np.arange(x.size)
    for _ in range(_STEPS):
        here = x[active]
        value, slope = log_and_slope(here, active)
        beyond = (value < target[active]) == (slope < 0.0)  # the root lies at or below x
        high[active] = np.where(beyond, np.minimum(high[active], here), high[active])
        low[active] = np.where(beyond, low[active], np.maximum(low[active], here))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = here - (value - target[active]) / slope
        inside = (step >= low[active]) & (step <= high[active])
        x[active] = np.where(inside, step, 0.5 * (low[active] + high[active]))
        # the error after a step is about its square: 1e-10 leaves the last digits to rounding
        active = active[np.abs(x[active] - here) > 1e-10 * np.abs(x[active])]
        if active.size == 0:
            break
    return x


def epsilon_bounds_of(delta: FloatArray, mu: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = epsilon_of(delta, mu)
    finite = np.isfinite(value)
    lower, upper = value.copy(), value.copy()
    d, m, e = delta[finite], mu[finite], value[finite]
    # the pad is the margin of delta over its slope in eps, in units of mu and of eps
    pad = MARGIN * (e + m) + 1e-320
    lower[finite] = _moved(e, -pad, lambda x, at: (x <= 0) | (delta_bounds_of(x, m[at])[0] > d[at]))
    upper[finite] = _moved(e, pad, lambda x, at: delta_bounds_of(x, m[at])[1] <= d[at])
    lower[~finite & (mu < np.inf) & (mu > MU_LARGEST)] = 0.0
    return np.maximum(lower, 0.0), upper


def mu_bounds_of(epsilon: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
    value = mu_of(epsilon, delta)
    live = (value > 0.0) & (value < MU_LARGEST)
    lower, upper = value.copy(), value.copy()
    eps, d, m = epsilon[live], delta[live], value[live]
    pad = MARGIN * m
    lower[live] = _moved(
        m, -pad, lambda x, at: (x <= 0) | (delta_bounds_of(eps[at], x)[1] <= d[at])
    )
    upper[live] = _moved(m, pad, lambda x, at: delta_bounds_of(eps[at], x)[0] >= d[at])
    return np.maximum(lower, 0.0), upper


def _moved(
    value: FloatArray,
    pad: FloatArray,
    verified: Callable[[FloatArray, IntArray], NDArray[np.bool_]],
) -> FloatArray:
    """`value` moved by a growing multiple of `pad` until the bound is verified."""
    result, reach = value.copy(), pad.copy()
    active = np.arange(value.size)
    for _ in range(_STEPS):
        result[active] = np.maximum(value[active] + reach[active], 0.0)
        active = active[~verified(result[active], active)]
        if active.size == 0:
            return result
        reach[active] *= 4.0
    raise NotCertified(
        "The inverse of the Gaussian profile could not be verified; please report the arguments."
    )
