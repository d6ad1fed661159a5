"""Renyi divergence of a binary pair, as the logarithm of its chi divergence.

Statement: for P = (p, 1-p), Q = (q, 1-q), u = ln(p/q), v = ln((1-p)/(1-q)), z = order - 1:
    chi = q k(e^u) + (1-q) k(e^v) = p (k(e^u)/e^u) + (1-q) k(e^v),
    d_order(P||Q) = ln(1 + z chi)/z.
Conditions: order > 1, 0 < q <= p <= 1 (u >= 0 >= v; v = -inf allowed).
Validity: exact.
Source: arXiv:2008.06529, (10)-(11) and Lemma 4 (definition of d_alpha).
Error: |error of ln chi| <= the returned slack: 3 ulp of (4 + |ln p| + z u + |ln chi|). It
    covers relative errors of 4 ulp in u, v, p and 1-q.
Vectors: tests/unit/guarantee/test_renyi_binary.py.
"""

from __future__ import annotations

import numpy as np

from tightrope.guarantee.renyi._arrays import ULP
from tightrope.guarantee.renyi.kernel import log_expm1, log_kernel, softplus
from tightrope.validate import FloatArray

__all__ = ["log_chi", "log_chi_slack", "gamma_of_log_chi", "log_chi_of_gamma"]


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
    """gamma = ln(1 + z chi)/z."""
    with np.errstate(under="ignore", divide="ignore"):
        return np.asarray(softplus(value + np.log(z)) / z)


def log_chi_of_gamma(gamma: FloatArray, z: FloatArray) -> FloatArray:
    """ln chi = ln((e^(z gamma) - 1)/z); rounding below 4 ulp of (1 + z gamma + |value|)."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(log_expm1(z * gamma) - np.log(z))
