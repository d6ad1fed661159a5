"""Theorem 3: the largest Renyi level that forces (epsilon, delta)-DP, one direction at a time.

Statement: gamma(order, eps, delta) = eps + ln(M)/(order-1),
    M = inf over delta < p < 1 of
        p^order (p-delta)^(1-order) + (1-p)^order (e^eps-p+delta)^(1-order);
    eps - ln(1-delta) where order*delta >= 1 (there p -> 1, not attained); 0 at delta = 0.
    D_order(P||Q) <= gamma implies E_{e^eps}(P||Q) <= delta, and no larger gamma does.
Conditions: order > 1, eps >= 0, delta in {0} or [1e-300, 1].
Validity: exact for the one-sided constraint; a lower bound on two_sided.gamma.
Source: Asoodeh et al. (arXiv:2008.06529), Theorem 3 ("min" there must be "inf").
Error: the upper end is the objective at a point of the constraint, the lower end its tangent at a
    point whose slope is proved positive (the objective is convex), both widened by rounding.
    Safe side: lower (a smaller gamma still forces delta).
Vectors: thm3_gamma in tests/golden/renyi.json.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from tightrope.guarantee.renyi import closed_gamma
from tightrope.guarantee.renyi._arrays import (
    TINY,
    ULP,
    Enclosure,
    Indices,
    checked_delta,
    checked_epsilon,
    checked_order,
    flat,
    increasing_root,
    shaped,
    verified,
)
from tightrope.guarantee.renyi.kernel import log_kernel
from tightrope.guarantee.renyi.randomized_response import (
    gamma_of_log_chi,
    log_chi,
    log_chi_of_gamma,
    log_chi_slack,
)
from tightrope.validate import FloatArray

__all__ = ["gamma", "Optimum", "optimum", "Stationarity", "Pair", "Slope", "pair_at", "slope_at"]


class Optimum(NamedTuple):
    """Enclosure of ln chi at the optimum, its slopes, and the logit to start from next time."""

    lower: FloatArray
    upper: FloatArray
    by_eps: FloatArray  # d ln chi / d eps
    by_log_delta: FloatArray  # d ln chi / d ln delta
    logit: FloatArray


def gamma(order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Enclosure:
    """Enclosure of the optimal one-sided gamma; use the lower end to promise (epsilon, delta)."""
    (a, eps, d), shape = flat(checked_order(order), checked_epsilon(epsilon), checked_delta(delta))
    z = a - 1.0
    best = optimum(z, eps, d)
    lower = gamma_of_log_chi(best.lower, z) * (1.0 - 8.0 * ULP)
    upper = gamma_of_log_chi(best.upper, z) * (1.0 + 8.0 * ULP)
    lower = np.where(lower < TINY, 0.0, lower)  # subnormal numbers keep no relative accuracy
    upper = np.where(d > 0.0, np.maximum(upper, TINY), 0.0)
    return Enclosure(shaped(lower, shape), shaped(upper, shape))


def optimum(
    z: FloatArray, eps: FloatArray, delta: FloatArray, start: FloatArray | None = None
) -> Optimum:
    """ln chi of the optimal pair, with ln chi = -inf at delta = 0 and inf at delta = 1."""
    room = (1.0 - delta) - z * delta
    result = _at_the_end(z, eps, delta)
    inner = (room > 0.0) & (delta > 0.0)
    if inner.any():
        problem = Stationarity(z, eps, delta, room).at(inner)
        found = _inner_optimum(problem, None if start is None else start[inner])
        for whole, part in zip(result, found, strict=True):
            whole[inner] = part
    return result


def _at_the_end(z: FloatArray, eps: FloatArray, delta: FloatArray) -> Optimum:
    """order*delta >= 1: gamma = eps - ln(1-delta)."""
    with np.errstate(divide="ignore", under="ignore", over="ignore"):
        level = eps - np.log1p(-delta)
        value = np.where(delta > 0.0, log_chi_of_gamma(level, z), -np.inf)
        finite = np.isfinite(value)
        size = np.where(finite, 1.0 + z * level + np.abs(value), 0.0)
        slack = 8.0 * ULP * np.where(finite, size, 0.0)
        growth = -z / np.expm1(-np.maximum(z * level, TINY))  # d ln chi / d gamma
        by_log_delta = growth * delta / np.maximum(1.0 - delta, TINY)
    return Optimum(value - slack, value + slack, growth, by_log_delta, np.zeros_like(z))


def _inner_optimum(problem: Stationarity, start: FloatArray | None) -> Optimum:
    w = _stationary_logit(problem, start)
    pair = pair_at(w, problem)
    slope = slope_at(pair, problem)
    step = 3.0 * slope.slack / np.maximum(slope.derivative, TINY) + 4.0 * ULP * np.abs(w)
    w, rising = verified(w, np.minimum(step, 1.0), lambda x, i: _rises(x, problem.at(i)))
    pair = pair_at(w, problem)
    value = log_chi(pair.log_p, pair.u, pair.log_not_q, pair.v, problem.z)
    slack = log_chi_slack(pair.log_p, pair.u, problem.z, value)
    lost = np.where(rising, _tangent_loss(pair, slope_at(pair, problem), problem, value), np.inf)
    floor = log_chi_of_gamma(
        closed_gamma.gamma_lower(problem.z, problem.eps, problem.delta), problem.z
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        tangent = np.where(lost < 0.5, value + np.log1p(-np.minimum(lost, 0.5)) - slack, -np.inf)
    by_eps, by_log_delta = _envelope(pair, problem, value)
    return Optimum(np.maximum(tangent, floor), value + slack, by_eps, by_log_delta, w)


def _stationary_logit(problem: Stationarity, start: FloatArray | None) -> FloatArray:
    """Newton on the sign of the slope. First guess: theta = 1/2 at eps = 0, p ~ delta/eps above."""

    def sign(w: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        here = problem.at(i)
        slope = slope_at(pair_at(w, here), here)
        return slope.sign, slope.derivative

    if start is None:
        start = -np.log1p(-np.expm1(-problem.eps) * (problem.room / problem.delta))
    unbounded = np.full_like(start, np.inf)
    return increasing_root(sign, start, -unbounded, unbounded)


def _rises(w: FloatArray, problem: Stationarity) -> Any:
    slope = slope_at(pair_at(w, problem), problem)
    return slope.sign >= slope.slack


def _tangent_loss(pair: Pair, slope: Slope, problem: Stationarity, value: FloatArray) -> FloatArray:
    """How far the tangent falls between this p and order*delta, relative to chi."""
    with np.errstate(divide="ignore", under="ignore", over="ignore"):
        rise = np.log(np.expm1(np.minimum(slope.sign + slope.slack, 700.0)))
        width = pair.log_tau + np.log(problem.delta)  # ln(theta room)
        return np.asarray(np.exp(np.minimum(slope.log_unit + rise + width - value, 700.0)))


def _envelope(
    pair: Pair, problem: Stationarity, value: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """d chi/d eps = q (x^a - y^a), d chi/d delta = e^-eps (x^a - y^a): the pair may stay fixed."""
    a = 1.0 + problem.z
    with np.errstate(under="ignore", over="ignore"):
        spread = -np.expm1(a * (pair.v - pair.u))
        by_eps = np.exp(pair.log_p + problem.z * pair.u - value) * spread
    return by_eps, by_eps / pair.rho


# ---- The one-variable problem behind Theorem 3: its binary pairs and the slope of the objectiv----
# Statement: Theorem 3 minimises chi(P||Q) over binary pairs with p - e^eps q = delta. The minimum
#     lies in order*delta < p < 1. With z = order - 1, room = 1 - order*delta > 0 and a logit w,
#         p = order*delta + theta room,   theta = 1/(1 + e^-w),   x = p/q,   y = (1-p)/(1-q),
#     the slope of chi in p has the sign of each of
#         far:  ln(theta room/(p - delta)) + z ln(x/y) - ln(1 + z (1 - y e^-eps)),
#         near: ln(J(y) + (order/z)(e^eps - 1)(x^z - y^z)) - ln J(x),  J(x) = x^order k(1/x);
#     `far` is almost linear in w at both ends, `near` keeps its digits where x and y are close to
#     1.
# Conditions: order > 1, eps >= 0, delta in [1e-300, 1/order).
# Validity: exact.
# Source: arXiv:2008.06529, Theorem 3 and (75)-(78); the two forms of the slope are derived here.
# Error: every quantity is a sum of terms of one sign in linear or log scale; `slack` bounds the
#     rounding of `sign`.
# Vectors: thm3_gamma in tests/golden/renyi.json.


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
