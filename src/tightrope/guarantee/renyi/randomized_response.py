"""Renyi divergence of randomised response, and its inverse.

Statement: for P = (p, 1-p), Q = (1-p, p) with log-odds U = ln(p/(1-p)) >= 0,
    r(order, U) = ln( (e^{order U} + e^{(1-order) U})/(1 + e^U) )/(order - 1).
    Both directions have this value, and r increases strictly in U.
Conditions: order > 1, U >= 0.
Validity: exact.
Source: Mironov 2017 (arXiv:1702.07476), Proposition 5; it is the extremal pair of pure DP and of
    the two-sided optimum (see two_sided.py).
Error: enclosures from the stated rounding of ln chi; the inverse is verified on both sides.
Vectors: pure_renyi in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi._arrays import (
    TINY,
    ULP,
    Enclosure,
    Indices,
    checked_epsilon,
    checked_order,
    flat,
    increasing_root,
    rounded_up,
    shaped,
    verified,
)
from tightrope.guarantee.renyi.kernel import log_expm1, log_kernel, softplus
from tightrope.validate import FloatArray

__all__ = [
    "log_chi_bounds",
    "divergence_bounds",
    "log_odds_bounds",
    "renyi_of_pure",
    "renyi_of_pure_bounds",
    "simple_renyi_of_pure",
    "log_chi",
    "log_chi_slack",
    "gamma_of_log_chi",
    "log_chi_of_gamma",
]

_LARGEST = 1e100  # beyond it a divergence is as good as infinite


def log_chi_bounds(log_odds: FloatArray, z: FloatArray) -> Enclosure:
    """Enclosure of ln chi of randomised response with these log-odds; -inf at 0."""
    value = _log_chi(log_odds, z)
    slack = log_chi_slack(softplus(-log_odds), log_odds, z, value)
    return Enclosure(value - slack, value + slack)


def _log_chi(log_odds: FloatArray, z: FloatArray) -> FloatArray:
    log_p = -softplus(-log_odds)
    return log_chi(log_p, log_odds, log_p, -log_odds, z)


def divergence_bounds(log_odds: FloatArray, z: FloatArray) -> Enclosure:
    """Enclosure of r(1 + z, log_odds)."""
    chi = log_chi_bounds(log_odds, z)
    lower = gamma_of_log_chi(chi.lower, z) * (1.0 - 8.0 * ULP)
    upper = gamma_of_log_chi(chi.upper, z) * (1.0 + 8.0 * ULP)
    upper = np.where(log_odds > 0.0, np.maximum(upper, TINY), 0.0)
    return Enclosure(lower, np.minimum(upper, log_odds))  # no divergence exceeds the largest loss


def log_odds_bounds(gamma: FloatArray, z: FloatArray) -> Enclosure:
    """Enclosure of the log-odds U with r(1 + z, U) = gamma; inf where gamma is inf."""
    capped = np.clip(gamma, TINY, _LARGEST)
    target = log_chi_of_gamma(capped, z)
    slack = 4.0 * ULP * (1.0 + z * capped + np.abs(target))
    found, slope = _solve(target, capped, z)
    step = 2.0 * ULP * found + 4.0 * slack / slope
    lower, low_holds = verified(
        found, -step, lambda U, i: log_chi_bounds(U, z[i]).upper <= target[i] - slack[i]
    )
    upper, high_holds = verified(
        found, step, lambda U, i: log_chi_bounds(U, z[i]).lower >= target[i] + slack[i]
    )
    lower = np.where(low_holds, np.maximum(lower, gamma), gamma)  # r(order, U) <= U
    upper = np.where(high_holds, upper, _largest_log_odds(capped, z) * (1.0 + 8.0 * ULP))
    known = (gamma == 0.0) | (gamma > _LARGEST)
    return Enclosure(np.where(known, gamma, lower), np.where(known, gamma, upper))


def _largest_log_odds(gamma: FloatArray, z: FloatArray) -> FloatArray:
    """U <= gamma + ln(2)/z, and r >= U tanh(U/2) >= 0.46 min(U, U^2)."""
    powers = np.maximum(np.sqrt(2.2 * gamma), 2.2 * gamma)
    return np.asarray(np.minimum(gamma + np.log(2.0) / z, powers))


def _solve(target: FloatArray, gamma: FloatArray, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """U with ln chi = target, and d ln chi / dU there; Newton in ln U, where it bends little."""
    low, high = np.log(gamma), np.log(_largest_log_odds(gamma, z)) + 1e-12

    def residual(log_U: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        U = np.exp(log_U)
        value = _log_chi(U, z[i])
        return value - target[i], U * _slope(U, z[i], value)

    found = np.exp(increasing_root(residual, high, low - 1e-12, high + 1e-12))
    return found, _slope(found, z, _log_chi(found, z))


def _slope(U: FloatArray, z: FloatArray, value: FloatArray) -> FloatArray:
    """d chi/dU = p q ((a/z)(x^z - x^-z) + x^a - x^-a), x = e^U, over chi."""
    a = 1.0 + z
    with np.errstate(under="ignore", divide="ignore"):
        bracket = -(a / z) * np.exp(-U) * np.expm1(-2.0 * z * U) - np.expm1(-2.0 * a * U)
        power = U - 2.0 * softplus(U) + a * U - value + np.log(bracket)
        most = np.where(U < 1.0, 700.0, 50.0)  # about 2/U; noise where U passes 1e16
        return np.asarray(np.exp(np.clip(power, -50.0, most)))


# ---- epsilon-DP to Renyi DP, exactly; and why delta > 0 gives nothing ----------------------------
# Statement: an epsilon-DP mechanism is (order, r(order, epsilon))-Renyi DP with r the divergence of
#     randomised response, and some epsilon-DP mechanism attains it.
#     Looser and simpler: r <= min(epsilon, order epsilon^2/2).
#     With delta > 0 the answer is infinity: P may put mass delta where Q has none, which satisfies
#     (epsilon, delta)-DP and has D_order(P||Q) = inf for every order > 1.
#     The gamma of Theorem 3 (one_sided.py), which the paper calls the conversion from DP to Renyi
#     DP,
#     answers another question: it is the largest Renyi level that FORCES (epsilon, delta)-DP. An
#     (epsilon, delta)-DP mechanism need not have it.
# Conditions: order > 1, epsilon >= 0, neighbours in both orders.
# Validity: exact (`renyi_of_pure`), bound (`simple_renyi_of_pure`).
# Source: Mironov 2017 (arXiv:1702.07476), Proposition 5 with an extremal argument; the
#     simple bound is Bun and Steinke 2016 (arXiv:1605.02065), Proposition 3.3.
# Error: upper end of an enclosure of relative width below 1e-12; rounded upwards.
# Vectors: pure_renyi in tests/golden/renyi.json.


def renyi_of_pure_bounds(order: ArrayLike, epsilon: ArrayLike) -> Enclosure:
    """Enclosure of the smallest gamma that every epsilon-DP mechanism satisfies at `order`."""
    (a, eps), shape = flat(checked_order(order), checked_epsilon(epsilon))
    lower, upper = divergence_bounds(eps, a - 1.0)
    return Enclosure(shaped(lower, shape), shaped(upper, shape))


def renyi_of_pure(order: ArrayLike, epsilon: ArrayLike) -> Any:
    """Upper end of the exact conversion."""
    return renyi_of_pure_bounds(order, epsilon).upper


def simple_renyi_of_pure(order: ArrayLike, epsilon: ArrayLike) -> Any:
    """min(epsilon, order epsilon^2/2), for comparison."""
    (a, eps), shape = flat(checked_order(order), checked_epsilon(epsilon))
    with np.errstate(over="ignore", under="ignore"):
        square = np.maximum(rounded_up(0.5 * a * eps * eps), TINY)
        return shaped(np.minimum(eps, square), shape)


# ---- Renyi divergence of a binary pair, as the logarithm of its chi divergence -------------------
# Statement: for P = (p, 1-p), Q = (q, 1-q), u = ln(p/q), v = ln((1-p)/(1-q)), z = order - 1:
#     chi = q k(e^u) + (1-q) k(e^v) = p (k(e^u)/e^u) + (1-q) k(e^v),
#     d_order(P||Q) = ln(1 + z chi)/z.
# Conditions: order > 1, 0 < q <= p <= 1 (u >= 0 >= v; v = -inf allowed).
# Validity: exact.
# Source: arXiv:2008.06529, (10)-(11) and Lemma 4 (definition of d_alpha).
#     Between chi and gamma z is divided out before a logarithm is taken: ln z of a small z would
#     cancel, and take all of the accuracy with it.
# Error: |error of ln chi| <= the returned slack: 3 ulp of (4 + |ln p| + z u + |ln chi|). It
#     covers relative errors of 4 ulp in u, v, p and 1-q.
# Vectors: tests/unit/guarantee/test_renyi_binary.py.


_NOTHING = 1e-17  # z chi and z gamma up to this make no difference between chi and gamma
_LARGE = 600.0  # a power of e, beyond which it might overflow


def log_chi(
    log_p: FloatArray, u: FloatArray, log_not_q: FloatArray, v: FloatArray, z: FloatArray
) -> FloatArray:
    """ln chi of the binary pair; -inf where P = Q."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.logaddexp(log_p + log_kernel(u, z), log_not_q + log_kernel(v, z)))


def log_chi_slack(log_p: FloatArray, u: FloatArray, z: FloatArray, value: FloatArray) -> FloatArray:
    """A bound on the rounding error of `log_chi`."""
    size = np.where(np.isfinite(value), np.abs(value), 0.0)
    return np.asarray(3.0 * ULP * (4.0 + np.abs(log_p) + z * u + size))


def gamma_of_log_chi(value: FloatArray, z: FloatArray) -> FloatArray:
    """gamma = ln(1 + z chi)/z; rounding below 8 ulp of it."""
    with np.errstate(under="ignore", divide="ignore", over="ignore"):
        chi = np.exp(np.minimum(value, _LARGE))
        near = np.where(z * chi > _NOTHING, np.log1p(z * chi) / z, chi)
        far = (value > _LARGE) | np.isinf(near)
        return np.asarray(np.where(far, softplus(value + np.log(z)) / z, near))


def log_chi_of_gamma(gamma: FloatArray, z: FloatArray) -> FloatArray:
    """ln chi = ln((e^(z gamma) - 1)/z); rounding below 4 ulp of (1 + z gamma + |value|)."""
    power = z * gamma
    with np.errstate(divide="ignore", over="ignore"):
        chi = np.where(power > _NOTHING, np.expm1(np.minimum(power, _LARGE)) / z, gamma)
        far = (power > _LARGE) | np.isinf(chi)
        return np.asarray(np.where(far, log_expm1(power) - np.log(z), np.log(chi)))
