"""The one-variable problem behind Theorem 3: its binary pairs and the slope of the objective.

Statement: Theorem 3 minimises chi(P||Q) over binary pairs with p - e^eps q = delta. The minimum
    lies in order*delta < p < 1. With z = order - 1, room = 1 - order*delta > 0 and a logit w,
        p = order*delta + theta room,   theta = 1/(1 + e^-w),   x = p/q,   y = (1-p)/(1-q),
    the slope of chi in p has the sign of each of
        far:  ln(theta room/(p - delta)) + z ln(x/y) - ln(1 + z (1 - y e^-eps)),
        near: ln(J(y) + (order/z)(e^eps - 1)(x^z - y^z)) - ln J(x),  J(x) = x^order k(1/x);
    `far` is almost linear in w at both ends, `near` keeps its digits where x and y are close to 1.
Conditions: order > 1, eps >= 0, delta in [1e-300, 1/order).
Validity: exact.
Source: arXiv:2008.06529, Theorem 3 and (75)-(78); the two forms of the slope are derived here.
Error: every quantity is a sum of terms of one sign in linear or log scale; `slack` bounds the
    rounding of `sign`.
Vectors: thm3_gamma in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from tightrope.guarantee.renyi._arrays import ULP
from tightrope.guarantee.renyi.kernel import log_kernel
from tightrope.validate import FloatArray

__all__ = ["Stationarity", "Pair", "Slope", "pair_at", "slope_at"]

_LOGIT_FAR = 600.0  # beyond it theta or 1 - theta is used through its logarithm
_NEAR = 0.5


class Stationarity(NamedTuple):
    """The data of a batch of problems."""

    z: FloatArray
    eps: FloatArray
    delta: FloatArray
    room: FloatArray

    def at(self, i: NDArray[np.bool_] | NDArray[np.intp]) -> Stationarity:
        return Stationarity(*(part[i] for part in self))


class Pair(NamedTuple):
    """A binary pair on the constraint, in the coordinates that keep their digits."""

    theta: FloatArray
    not_theta: FloatArray
    tau: FloatArray  # theta * room / delta
    log_tau: FloatArray
    rho: FloatArray  # e^eps q / delta = z + tau
    u: FloatArray  # ln(p/q)
    v: FloatArray  # ln((1-p)/(1-q))
    log_p: FloatArray
    log_not_q: FloatArray


class Slope(NamedTuple):
    """The sign function, its derivative in w, a bound on its rounding, and ln of its unit.

    d chi/dp = exp(log_unit) * expm1(sign).
    """

    sign: FloatArray
    derivative: FloatArray
    slack: FloatArray
    log_unit: FloatArray


def pair_at(w: FloatArray, problem: Stationarity) -> Pair:
    """The pair with logit w."""
    z, eps, delta, room = problem
    theta, not_theta = expit(w), expit(-w)
    with np.errstate(under="ignore", divide="ignore"):
        log_tau = np.where(w < -_LOGIT_FAR, w, np.log(theta)) + np.log(room / delta)
        tau = np.where(w < -_LOGIT_FAR, np.exp(np.minimum(log_tau, 700.0)), theta * (room / delta))
        rho = z + tau
        difference = delta * (1.0 - rho * np.expm1(-eps))  # p - q
        rest = not_theta * room  # 1 - p
        log_odds = np.log(difference) - np.log(room) + w
        ratio = difference / np.where(w > _LOGIT_FAR, 1.0, rest)
        v = -np.where(w > _LOGIT_FAR, log_odds, np.log1p(ratio))
    return Pair(
        theta=theta,
        not_theta=not_theta,
        tau=tau,
        log_tau=log_tau,
        rho=rho,
        u=eps + np.log1p(1.0 / rho),
        v=v,
        log_p=np.log(delta * (1.0 + rho)),
        log_not_q=np.log(rest + difference),
    )


def slope_at(pair: Pair, problem: Stationarity) -> Slope:
    """The far form, or the near form where both likelihood ratios are close to 1."""
    du, dv = _derivatives(pair, problem)
    far = _far(pair, problem, du, dv)
    close = np.maximum(pair.u, -pair.v) * np.maximum(1.0, problem.z) < _NEAR
    if not close.any():
        return far
    near = _near(Pair(*(part[close] for part in pair)), problem.at(close), du[close], dv[close])
    for whole, part in zip(far, near, strict=True):
        whole[close] = part
    return far


def _derivatives(pair: Pair, problem: Stationarity) -> tuple[FloatArray, FloatArray]:
    """du/dw and dv/dw, both negative."""
    tau_w = pair.tau * pair.not_theta
    shrink = -np.expm1(-problem.eps)
    du = -(tau_w / pair.rho) / (pair.rho + 1.0)
    dv = np.expm1(pair.v) * (shrink * tau_w / (1.0 + pair.rho * shrink) + pair.theta)
    return du, dv


def _far(pair: Pair, problem: Stationarity, du: FloatArray, dv: FloatArray) -> Slope:
    z, eps = problem.z, problem.eps
    with np.errstate(under="ignore", divide="ignore", over="ignore"):
        tiny = pair.tau < 1e-290
        share = np.where(
            tiny, np.log(z) - pair.log_tau, np.log1p(z / np.where(tiny, 1.0, pair.tau))
        )
        spread = z * (pair.u - pair.v)
        tilt = -z * np.expm1(pair.v - eps)
        log_tilt = np.log1p(tilt)
        y_scaled = np.exp(pair.v - eps)
    return Slope(
        sign=spread - share - log_tilt,
        derivative=z * (pair.not_theta / pair.rho + du - dv + y_scaled * dv / (1.0 + tilt)),
        slack=8.0 * ULP * (share + spread + log_tilt),
        log_unit=z * pair.v + log_tilt - np.log(z),
    )


def _near(pair: Pair, problem: Stationarity, du: FloatArray, dv: FloatArray) -> Slope:
    z, eps, u, v = problem.z, problem.eps, pair.u, pair.v
    log_a = np.log1p(z)
    with np.errstate(under="ignore", divide="ignore"):
        log_e = np.log(np.expm1(eps))
        down = (1.0 + z) * u + log_kernel(-u, z)  # ln J(x)
        up = np.logaddexp(
            z * v + log_kernel(-v, z),  # ln J(y)
            log_a + log_e + z * u + np.log(-np.expm1(z * (v - u))) - np.log(z),
        )
        rise = np.exp(log_a + z * v + np.log(-np.expm1(v) + np.expm1(eps)) - up) * -dv
        rise = rise - np.exp(log_a + z * u + log_e - up) * -du
        fall = np.exp(log_a + z * u + np.log(np.expm1(u)) - down) * -du
    return Slope(
        sign=up - down,
        derivative=rise + fall,
        slack=4.0 * ULP * (8.0 + np.abs(up) + np.abs(down)),
        log_unit=down - eps,
    )
