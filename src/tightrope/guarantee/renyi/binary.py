"""Renyi divergence of a binary pair, as the logarithm of its chi divergence.

Statement: for P = (p, 1-p), Q = (q, 1-q), u = ln(p/q), v = ln((1-p)/(1-q)), z = order - 1:
    chi = q k(e^u) + (1-q) k(e^v) = p (k(e^u)/e^u) + (1-q) k(e^v),
    d_order(P||Q) = ln(1 + z chi)/z.
Conditions: order > 1, 0 < q <= p <= 1 (u >= 0 >= v; v = -inf allowed).
Validity: exact.
Source: arXiv:2008.06529, (10)-(11) and Lemma 4 (definition of d_alpha).
    Between chi and gamma z is divided out before a logarithm is taken: ln z of a small z would
    cancel, and take all of the accuracy with it.
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
