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

import numpy as np

from tightrope.guarantee.renyi._arrays import (
    TINY,
    ULP,
    Enclosure,
    Indices,
    increasing_root,
    verified,
)
from tightrope.guarantee.renyi.binary import (
    gamma_of_log_chi,
    log_chi,
    log_chi_of_gamma,
    log_chi_slack,
)
from tightrope.guarantee.renyi.kernel import softplus
from tightrope.validate import FloatArray

__all__ = ["log_chi_bounds", "divergence_bounds", "log_odds_bounds"]

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
