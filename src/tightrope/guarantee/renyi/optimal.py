"""The best conversions of one Renyi level: the largest gamma for (epsilon, delta), its inverses.

Theorem 3 bounds one direction of the divergence, its two-sided form both, which is what Renyi DP
says: `one_sided_gamma` and `two_sided_gamma`. `optimal_epsilon` and `optimal_delta` solve for the
other unknowns. Each section states what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi.closed_forms import (
    gamma_lower,
    lemma1_delta_upper,
    lemma1_epsilon_upper,
)
from tightrope.guarantee.renyi.kernel import (
    SMALLEST_DELTA,
    TINY,
    checked_delta,
    checked_epsilon,
    checked_gamma,
    excess_order,
    gamma_of_log_chi,
    log_chi,
    log_chi_of_gamma,
    log_chi_slack,
    log_kernel,
    softplus,
)
from tightrope.numerics.arrays import Enclosure, Indices, elementwise, increasing_root, verified
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

_LARGEST = 1e100  # beyond it a divergence is as good as infinite


# ---- Randomised response: its Renyi divergence, and the inverse
# Statement: for P = (p, 1-p), Q = (1-p, p) with log-odds U = ln(p/(1-p)) >= 0,
#     r(order, U) = ln( (e^{order U} + e^{(1-order) U})/(1 + e^U) )/(order - 1).
#     Both directions have this value, and r increases strictly in U.
# Conditions: order > 1, U >= 0.
# Validity: exact.
# Source: Mironov 2017 (arXiv:1702.07476), Proposition 5; it is the extremal pair of pure DP and of
#     the two-sided optimum (below).
# Error: enclosures from the stated rounding of ln chi; the inverse is verified on both sides.
# Vectors: pure_renyi in tests/golden/renyi.json.


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


# An epsilon-DP mechanism is (order, r(order, epsilon))-Renyi DP, and some such mechanism attains it
# (Mironov 2017, Proposition 5, with an extremal argument). With delta > 0 the answer is infinity: P
# may put mass delta where Q has none. The gamma of Theorem 3 answers another question: it is the
# largest level that forces (epsilon, delta)-DP, and such a mechanism need not have it.
@elementwise(excess_order, checked_epsilon)
def renyi_of_pure(z: FloatArray, epsilon: FloatArray) -> FloatArray:
    """An upper bound on the smallest gamma of every epsilon-DP mechanism, right to 1e-12."""
    upper: FloatArray = divergence_bounds(epsilon, z).upper
    return upper


# ---- Theorem 3: one direction at a time
# Statement: gamma(order, eps, delta) = eps + ln(M)/(order-1),
#     M = inf over delta < p < 1 of
#         p^order (p-delta)^(1-order) + (1-p)^order (e^eps-p+delta)^(1-order);
#     eps - ln(1-delta) where order*delta >= 1 (there p -> 1, not attained); 0 at delta = 0.
#     D_order(P||Q) <= gamma implies E_{e^eps}(P||Q) <= delta, and no larger gamma does.
# Conditions: order > 1, eps >= 0, delta in {0} or [1e-300, 1].
# Validity: exact for the one-sided constraint; a lower bound on two_sided_gamma.
# Source: Asoodeh et al. (arXiv:2008.06529), Theorem 3 ("min" there must be "inf").
# Error: the upper end is the objective at a point of the constraint, the lower end its tangent at a
#     point whose slope is proved positive (the objective is convex), both widened by rounding.
#     Safe side: lower (a smaller gamma still forces delta).
# Vectors: thm3_gamma in tests/golden/renyi.json.


class Optimum(NamedTuple):
    """Enclosure of ln chi at the optimum, its slopes, and the logit to start from next time."""

    lower: FloatArray
    upper: FloatArray
    by_eps: FloatArray  # d ln chi / d eps
    by_log_delta: FloatArray  # d ln chi / d ln delta
    logit: FloatArray


def one_sided_bounds(z: FloatArray, eps: FloatArray, delta: FloatArray) -> Enclosure:
    """Enclosure of the optimal one-sided gamma; use the lower end to promise (epsilon, delta)."""
    best = optimum(z, eps, delta)
    lower = gamma_of_log_chi(best.lower, z) * (1.0 - 8.0 * ULP)
    upper = gamma_of_log_chi(best.upper, z) * (1.0 + 8.0 * ULP)
    lower = np.where(lower < TINY, 0.0, lower)  # subnormal numbers keep no relative accuracy
    return Enclosure(lower, np.where(delta > 0.0, np.maximum(upper, TINY), 0.0))


one_sided_gamma = elementwise(excess_order, checked_epsilon, checked_delta)(one_sided_bounds)


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

    def rises(x: FloatArray, i: Indices) -> NDArray[np.bool_]:
        there = slope_at(pair_at(x, problem.at(i)), problem.at(i))
        return np.asarray(there.sign >= there.slack)

    w, rising = verified(w, np.minimum(step, 1.0), rises)
    pair = pair_at(w, problem)
    value = log_chi(pair.log_p, pair.u, pair.log_not_q, pair.v, problem.z)
    slack = log_chi_slack(pair.log_p, pair.u, problem.z, value)
    lost = np.where(rising, _tangent_loss(pair, slope_at(pair, problem), problem, value), np.inf)
    floor = log_chi_of_gamma(gamma_lower(problem.z, problem.eps, problem.delta), problem.z)
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


# ---- Both directions: the sharper optimum that the papers miss
# Statement: the largest gamma such that D_order(P||Q) <= gamma and D_order(Q||P) <= gamma force
#     E_{e^eps}(P||Q) <= delta is, with E = e^eps, z = order - 1, U = ln((E+delta)/(1-delta)),
#         gamma_2 = r(order, U)              if order E sinh(z U) <= z sinh(order U),
#         gamma_2 = gamma of Theorem 3       otherwise,
#     where r is the divergence of randomised response with log-odds U.
#     Proof. As for Theorem 3, gamma_2 = min over p of max{d(p||q), d(q||p)}, q = (p-delta)/E, and
#     both are convex in p. With x = p/q, y = (1-p)/(1-q) and c = order - 1/2,
#         e^{z d(p||q)} - e^{z d(q||p)} = (p-q) ( h(ln x) - h(-ln y) ),  h(t) = sinh(c t)/sinh(t/2),
#     because sqrt(pq) 2 sinh(ln(x)/2) = p - q = sqrt((1-p)(1-q)) 2 sinh(-ln(y)/2). h increases, so
#     d(p||q) > d(q||p) iff x y > 1 iff p(1-p) > q(1-q) iff p + q < 1. The two curves cross once, at
#     p + q = 1, which is randomised response with log-odds U. If the slope of d(p||q) there is >=
#     0, its minimum lies to the left, where it is the larger of the two. Otherwise it falls up to
#     the crossing, and d(q||p) rises from there on: its slope is at least (1 - E^-2) z (x^order -
#     y^order) >= 0. The slope of d(p||q) at the crossing has the sign of
#     order E sinh(z U) - z sinh(order U).
# Conditions: order > 1, eps >= 0, delta in {0} or [1e-300, 1]; both directions bounded by gamma.
# Validity: exact.
# Source: derived here (docs/theorems/renyi_two_sided.md).
# Error: where the sign of the test is within rounding the enclosure spans both cases, whose values
#     then agree to second order. Safe side: lower.
# Vectors: thm3_gamma (two_sided) in tests/golden/renyi.json.
_UNSURE = 1e-8  # far above the rounding of the test, and the two cases then differ by its square


@elementwise(excess_order, checked_epsilon, checked_delta)
def two_sided_gamma(z: FloatArray, eps: FloatArray, delta: FloatArray) -> Enclosure:
    """Enclosure of the optimal two-sided gamma; use the lower end to promise (epsilon, delta)."""
    one = one_sided_bounds(z, eps, delta)
    ends = (delta == 0.0) | (delta == 1.0)
    inner = np.where(ends, 0.5, delta)
    with np.errstate(under="ignore"):  # gap = U - eps; relative rounding below 4 ulp
        gap = np.log1p(inner * (1.0 + np.exp(-eps)) / (1.0 - inner))
    U = eps + gap
    crossing = Enclosure(
        divergence_bounds(U * (1.0 - 4.0 * ULP), z).lower,
        divergence_bounds(U * (1.0 + 4.0 * ULP), z).upper,
    )
    surely_crossing, surely_not = crossing_test(z, U, gap, 4.0 * ULP * gap)
    # gamma_2 is a minimum of maxima: never below Theorem 3, never above the value at the crossing
    lower = np.where(surely_crossing, np.maximum(crossing.lower, one.lower), one.lower)
    upper = np.where(surely_not, np.minimum(one.upper, crossing.upper), crossing.upper)
    known = np.where(delta == 1.0, np.inf, 0.0)
    lower, upper = np.where(ends, known, lower), np.where(ends, known, upper)
    return Enclosure(lower, np.maximum(upper, lower))


def crossing_test(
    z: FloatArray, U: FloatArray, gap: FloatArray, slack: FloatArray
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The U where order E sinh(z U) <= z sinh(order U) surely holds, and where it surely fails.

    gap = U - eps, known up to `slack`.
    """
    small = (U < 1.0) & (z * U < 0.5)
    near, near_unsure = _small_test(z, np.minimum(U, 1.0), np.minimum(gap, 1.0), slack)
    far, far_unsure = _large_test(z, np.maximum(U, TINY), gap, slack)
    test = np.where(small, near, far)
    unsure = np.where(small, near_unsure, far_unsure) + _UNSURE
    return test <= -unsure, test >= unsure


def _large_test(
    z: FloatArray, U: FloatArray, gap: FloatArray, slack: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """In logarithms: ln(1+1/z) <= U - eps + ln((1 - e^{-2(1+z)U})/(1 - e^{-2zU}))."""
    with np.errstate(under="ignore"):
        share = np.exp(-2.0 * z * U) * np.expm1(-2.0 * U) / np.expm1(-2.0 * (1.0 + z) * U)
        ratio = np.expm1(-2.0 * (1.0 + z) * U) / np.expm1(-2.0 * np.maximum(z * U, TINY))
        rest = np.where(share < 0.5, -np.log1p(-np.minimum(share, 0.5)), np.log(ratio))
        left, right = np.log1p(1.0 / z), gap + rest
    return (left - right) / (left + right), slack / (left + right)


def _small_test(
    z: FloatArray, U: FloatArray, gap: FloatArray, slack: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """As sinh(order U)/sinh(z U) = cosh U + coth(z U) sinh U, the test is equivalent to
    order (E-1) <= z (cosh U - 1) + (sinh(U)/U - 1) + (sinh(U)/U)(z U coth(z U) - 1),
    where no term is negative; relative difference of the two sides.
    """
    with np.errstate(under="ignore", invalid="ignore", divide="ignore", over="ignore"):
        s = U * U
        excess = s / 6.0 * (1.0 + s / 20.0 * (1.0 + s / 42.0 * (1.0 + s / 72.0)))
        t = np.minimum(z * U, 0.5) ** 2  # t coth(t) - 1 of z U, to nine digits
        series = t * (1 / 3 - t * (1 / 45 - t * (2 / 945 - t * (1 / 4725 - t * (2 / 93555)))))
        far = np.maximum(z * U, 0.5)
        coth = np.where(z * U < 0.5, series, far / np.tanh(far) - 1.0)
        right = 2.0 * z * np.sinh(0.5 * U) ** 2 + excess + (1.0 + excess) * coth
        left = (1.0 + z) * np.expm1(np.maximum(U - gap, 0.0))
        total = np.maximum(left + right, TINY)
        return (left - right) / total, 3.0 * (1.0 + z) * slack / total


# ---- The inverses: epsilon and delta
# Statement: eps(order, gamma, delta) is the smallest eps >= 0, delta(order, gamma, eps) the
#     smallest delta, with gamma <= gamma*(order, eps, delta), where gamma* is
#     Theorem 3 (sides=1: one direction is bounded) or its two-sided form (sides=2: both are, which
#     is what Renyi DP says). For sides=2, with U the log-odds of randomised response at gamma:
#         eps = U + ln(1 - delta (1 + e^-U)),   delta = (1 - e^{eps-U})/(1 + e^-U)
#     where the test of the section before holds at that point, and the one-sided value otherwise.
# Conditions: order > 1, gamma in [0, inf], eps >= 0, delta in {0} or [1e-300, 1].
# Validity: exact.
# Source: Theorem 3 of arXiv:2008.06529 (one-sided); docs/theorems/renyi_two_sided.md.
# Error: upper ends satisfy the lower end of gamma* >= gamma, lower ends the upper end <= gamma,
#     each checked after the root was found; where a check fails Lemma 1 (upper) or 0 (lower) is
#     given. delta below 1e-300 has lower end 0. Safe side: upper.
# Vectors: thm3_eps, thm3_delta in tests/golden/renyi.json.
_LARGEST_GAMMA = 1e90
_NARROW = 1e-9  # below what `crossing_test` leaves open


@elementwise(excess_order, checked_gamma, checked_delta)
def optimal_epsilon(
    z: FloatArray, gamma: FloatArray, delta: FloatArray, *, sides: int = 2
) -> Enclosure:
    """Enclosure of the smallest epsilon that (order, gamma)-Renyi DP implies at delta."""
    _check_sides(sides)
    lower, upper = _epsilon_one_sided(z, gamma, delta)
    if sides == 2:
        lower, upper = _with_crossing_epsilon(z, gamma, delta, lower, upper)
    return Enclosure(np.minimum(lower, upper), upper)


@elementwise(excess_order, checked_gamma, checked_epsilon)
def optimal_delta(
    z: FloatArray, gamma: FloatArray, eps: FloatArray, *, sides: int = 2
) -> Enclosure:
    """Enclosure of the smallest delta that (order, gamma)-Renyi DP implies at epsilon."""
    _check_sides(sides)
    lower, upper = _delta_one_sided(z, gamma, eps)
    if sides == 2:
        lower, upper = _with_crossing_delta(z, gamma, eps, lower, upper)
    return Enclosure(np.minimum(lower, upper), upper)


def _check_sides(sides: int) -> None:
    if sides not in (1, 2):
        raise InvalidInput(
            f"sides must be 1 or 2; got {sides!r}. Renyi DP bounds both directions, so 2 is right "
            "for it; 1 is for a divergence known in one direction only."
        )


def _solvable(gamma: FloatArray) -> NDArray[np.bool_]:
    """The levels whose equation is solved; at larger ones the closed formula is the answer."""
    return np.asarray(gamma < _LARGEST_GAMMA)


class _Target:
    """ln chi of the level gamma, with its rounding."""

    def __init__(self, z: FloatArray, gamma: FloatArray) -> None:
        level = np.clip(gamma, np.finfo(np.float64).tiny, _LARGEST_GAMMA)
        self.value = log_chi_of_gamma(level, z)
        self.slack = 4.0 * ULP * (1.0 + z * level + np.abs(self.value))

    def reached(self, lower: FloatArray, i: Indices) -> NDArray[np.bool_]:
        return np.asarray(lower >= self.value[i] + self.slack[i])

    def missed(self, upper: FloatArray, i: Indices) -> NDArray[np.bool_]:
        return np.asarray(upper <= self.value[i] - self.slack[i])


def _epsilon_one_sided(z: FloatArray, gamma: FloatArray, d: FloatArray) -> Enclosure:
    bound = lemma1_epsilon_upper(z, gamma, d)
    at_zero = optimum(z, np.zeros_like(z), d).lower  # (0, delta)-DP may follow already
    free = _Target(z, gamma).reached(at_zero, np.arange(z.size)) & _solvable(gamma)
    lower, upper = np.where(np.isinf(bound), np.inf, 0.0), np.where(free, 0.0, bound)
    todo = np.flatnonzero((upper > 0.0) & np.isfinite(bound) & (d > 0.0) & _solvable(gamma))
    if todo.size:
        lower[todo], upper[todo] = _solve_epsilon(z[todo], gamma[todo], d[todo], bound[todo])
    return Enclosure(lower, upper)


At = Callable[[FloatArray, Indices], tuple[Optimum, FloatArray]]  # and its slope in the unknown


def _solved(
    at: At, target: _Target, start: FloatArray, least: float, smallest: float
) -> tuple[FloatArray, Any, FloatArray, Any]:
    """The unknown >= least with ln chi = target, from below and above, and where they hold."""

    def residual(x: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        best, slope = at(x, i)
        return 0.5 * (best.lower + best.upper) - target.value[i], slope

    lowest = np.full_like(start, least)
    found = increasing_root(residual, start, lowest, start, smallest=smallest)
    best, slope = at(found, np.arange(start.size))
    doubt = best.upper - best.lower + target.slack
    rounding = found if smallest < 1.0 else 1.0 + np.abs(found)
    step = doubt / np.maximum(slope, 1e-300) + 2.0 * ULP * rounding
    upper, high = verified(found, step, lambda x, i: target.reached(at(x, i)[0].lower, i))
    lower, low = verified(
        found,
        -step,
        lambda x, i: (x <= least) | target.missed(at(np.maximum(x, least), i)[0].upper, i),
    )
    return lower, low, upper, high


def _solve_epsilon(
    z: FloatArray, gamma: FloatArray, d: FloatArray, bound: FloatArray
) -> tuple[FloatArray, FloatArray]:
    warm = np.full_like(z, np.nan)

    def at(eps: FloatArray, i: Indices) -> tuple[Optimum, FloatArray]:
        best = optimum(z[i], eps, d[i], None if np.isnan(warm[i]).any() else warm[i])
        warm[i] = best.logit
        return best, best.by_eps

    lower, low, upper, high = _solved(at, _Target(z, gamma), bound, 0.0, 1e-100)
    upper = np.where(high, np.minimum(upper, bound), bound)
    return np.where(low, np.maximum(lower, 0.0), 0.0), upper


def _delta_one_sided(z: FloatArray, gamma: FloatArray, eps: FloatArray) -> Enclosure:
    bound = lemma1_delta_upper(z, gamma, eps)
    lower, upper = np.where(np.isinf(gamma), 1.0, 0.0), bound.copy()
    todo = np.flatnonzero((bound > SMALLEST_DELTA) & _solvable(gamma) & (gamma > 0.0))
    if todo.size:
        lower[todo], upper[todo] = _solve_delta(z[todo], gamma[todo], eps[todo], bound[todo])
    return Enclosure(lower, upper)


def _solve_delta(
    z: FloatArray, gamma: FloatArray, eps: FloatArray, bound: FloatArray
) -> tuple[FloatArray, FloatArray]:
    least = float(np.log(SMALLEST_DELTA))

    def at(log_delta: FloatArray, i: Indices) -> tuple[Optimum, FloatArray]:
        d = np.clip(np.exp(np.minimum(log_delta, 0.0)), SMALLEST_DELTA, 1.0)
        best = optimum(z[i], eps[i], d)
        return best, best.by_log_delta

    start = np.maximum(np.log(np.minimum(bound, 1.0 - 1e-16)), least)
    lower, low, upper, high = _solved(at, _Target(z, gamma), start, least, 1.0)
    low &= lower > least
    upper = np.where(high, np.exp(np.minimum(upper, 0.0)) * (1.0 + 2.0 * ULP), 1.0)
    return np.where(low, np.exp(lower) * (1.0 - 2.0 * ULP), 0.0), np.minimum(upper, bound)


def _with_crossing_epsilon(
    z: FloatArray, gamma: FloatArray, d: FloatArray, lower: FloatArray, upper: FloatArray
) -> Enclosure:
    """At the crossing eps = U - gap, gap = -ln(1 - delta(1 + e^-U))."""
    U = log_odds_bounds(np.minimum(gamma, _LARGEST_GAMMA), z)
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        base = -np.log1p(-d)  # without cancellation: (1 - delta)(1 - odds e^-U)
        odds = d / (1.0 - np.minimum(d, 1.0 - 2.0**-53))
        low_share = np.minimum(odds * np.exp(-U.upper) * (1.0 - 8.0 * ULP), 1.0)
        high_share = np.minimum(odds * np.exp(-U.lower) * (1.0 + 8.0 * ULP), 1.0)
        gap_low = (base - np.log1p(-low_share)) * (1.0 - 4.0 * ULP)
        gap_high = (base - np.log1p(-high_share)) * (1.0 + 4.0 * ULP)
        high = np.maximum(U.upper - gap_low, 0.0) * (1.0 + 2.0 * ULP)
        low = np.maximum(U.lower - gap_high, 0.0) * (1.0 - 2.0 * ULP)
    # at eps = 0 the test always holds, so a crossing at or below 0 means that eps = 0 suffices
    inside, outside = gap_high < U.lower, gap_low >= U.upper
    gap = np.where(inside, gap_high, np.maximum(U.lower - high, 0.0))
    width = np.where(inside, gap_high - np.where(inside, gap_low, 0.0), 0.0)
    holds, fails = crossing_test(z, np.maximum(U.lower, 1e-300), gap, width + 4.0 * ULP * U.upper)
    holds = np.where(outside, True, holds & _narrow(U)) & _solvable(gamma) & (d > 0.0)
    fails = (fails & inside & _narrow(U)) | ~np.isfinite(gamma) | (d == 0.0)
    # the two-sided value never exceeds either one
    best_upper = np.where(holds, np.minimum(high, upper), upper)
    best_lower = np.where(fails, lower, np.minimum(low, lower))
    return Enclosure(np.minimum(best_lower, best_upper), best_upper)


def _narrow(U: Enclosure) -> NDArray[np.bool_]:
    """The entries whose log-odds are known so well that one test decides for all."""
    return np.asarray(U.upper <= U.lower * (1.0 + _NARROW))


def _with_crossing_delta(
    z: FloatArray, gamma: FloatArray, eps: FloatArray, lower: FloatArray, upper: FloatArray
) -> Enclosure:
    """At the crossing delta = (1 - e^{eps-U})/(1 + e^-U)."""
    U = log_odds_bounds(np.minimum(gamma, _LARGEST_GAMMA), z)
    gap_low, gap_high = U.lower - eps, U.upper - eps
    with np.errstate(under="ignore"):
        high = -np.expm1(-np.maximum(gap_high, 0.0)) / (1.0 + np.exp(-U.upper))
        low = -np.expm1(-np.maximum(gap_low, 0.0)) / (1.0 + np.exp(-U.lower))
    inside = (gap_low > 0.0) & _solvable(gamma)
    outside = (gap_high <= 0.0) | ~np.isfinite(gamma)
    slack = (gap_high - gap_low) + 4.0 * ULP * (U.upper + eps)
    holds, fails = crossing_test(z, U.lower, np.maximum(gap_low, 0.0), slack)
    holds, fails = holds & inside & _narrow(U), (fails & inside & _narrow(U)) | outside
    best_upper = np.where(holds, np.minimum(high * (1.0 + 8.0 * ULP), upper), upper)
    best_lower = np.where(fails, lower, np.minimum(low * (1.0 - 8.0 * ULP), lower))
    return Enclosure(np.minimum(best_lower, best_upper), best_upper)
