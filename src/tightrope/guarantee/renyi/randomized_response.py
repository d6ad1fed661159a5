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

from tightrope.guarantee.renyi._arrays import TINY, ULP, Enclosure
from tightrope.guarantee.renyi.binary import (
    gamma_of_log_chi,
    log_chi,
    log_chi_of_gamma,
    log_chi_slack,
)
from tightrope.guarantee.renyi.kernel import softplus
from tightrope.validate import FloatArray

__all__ = ["log_chi_bounds", "divergence_bounds", "log_odds_bounds"]


def log_chi_bounds(log_odds: FloatArray, z: FloatArray) -> Enclosure:
    """Enclosure of ln chi of randomised response with these log-odds; -inf at 0."""
    log_q = -softplus(log_odds)
    value = log_chi(log_q, log_odds, log_q + log_odds, -log_odds, z)
    slack = log_chi_slack(log_q, log_odds, z, value)
    return Enclosure(value - slack, value + slack)


def divergence_bounds(log_odds: FloatArray, z: FloatArray) -> Enclosure:
    """Enclosure of r(1 + z, log_odds)."""
    chi = log_chi_bounds(log_odds, z)
    lower = gamma_of_log_chi(chi.lower, z) * (1.0 - 4.0 * ULP)
    upper = gamma_of_log_chi(chi.upper, z) * (1.0 + 4.0 * ULP)
    upper = np.where(log_odds > 0.0, np.maximum(upper, TINY), 0.0)
    return Enclosure(lower, np.minimum(upper, log_odds))  # no divergence exceeds the largest loss


def log_odds_bounds(gamma: FloatArray, z: FloatArray) -> Enclosure:
    """Enclosure of the log-odds U with r(1 + z, U) = gamma; inf where gamma is inf."""
    target = log_chi_of_gamma(np.minimum(gamma, 1e100), z)
    slack = 4.0 * ULP * (1.0 + z * np.minimum(gamma, 1e100) + np.abs(target))
    found = _solve(target, gamma, z)
    lower = _walk(found, -1.0, lambda U: log_chi_bounds(U, z).upper <= target - slack)
    upper = _walk(found, 1.0, lambda U: log_chi_bounds(U, z).lower >= target + slack)
    nothing, everything = gamma == 0.0, np.isinf(gamma)
    lower = np.where(nothing, 0.0, np.where(everything, np.inf, np.maximum(lower, gamma)))
    upper = np.where(nothing, 0.0, np.where(everything, np.inf, upper))
    return Enclosure(np.minimum(lower, upper), upper)
