"""The sharper optimum that the papers miss: Renyi DP bounds both directions.

Statement: the largest gamma such that D_order(P||Q) <= gamma and D_order(Q||P) <= gamma force
    E_{e^eps}(P||Q) <= delta is, with E = e^eps, z = order - 1, U = ln((E+delta)/(1-delta)),
        gamma_2 = r(order, U)              if order E sinh(z U) <= z sinh(order U),
        gamma_2 = gamma of Theorem 3       otherwise,
    where r is the divergence of randomised response with log-odds U.
    Proof. As for Theorem 3, gamma_2 = min over p of max{d(p||q), d(q||p)}, q = (p-delta)/E, and
    both are convex in p. With x = p/q, y = (1-p)/(1-q) and c = order - 1/2,
        e^{z d(p||q)} - e^{z d(q||p)} = (p-q) ( h(ln x) - h(-ln y) ),  h(t) = sinh(c t)/sinh(t/2),
    because sqrt(pq) 2 sinh(ln(x)/2) = p - q = sqrt((1-p)(1-q)) 2 sinh(-ln(y)/2). h increases, so
    d(p||q) > d(q||p) iff x y > 1 iff p(1-p) > q(1-q) iff p + q < 1. The two curves cross once, at
    p + q = 1, which is randomised response with log-odds U. If the slope of d(p||q) there is >= 0,
    its minimum lies to the left, where it is the larger of the two. Otherwise it falls up to the
    crossing, and d(q||p) rises from there on: its slope is at least (1 - E^-2) z (x^order -
    y^order) >= 0. The slope of d(p||q) at the crossing has the sign of
    order E sinh(z U) - z sinh(order U).
Conditions: order > 1, eps >= 0, delta in {0} or [1e-300, 1]; both directions bounded by gamma.
Validity: exact.
Source: derived here (docs/theorems/renyi_two_sided.md).
Error: where the sign of the test is within rounding the enclosure spans both cases, whose values
    then agree to second order. Safe side: lower.
Vectors: thm3_gamma (two_sided) in tests/golden/renyi.json.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.guarantee.renyi import one_sided
from tightrope.guarantee.renyi._arrays import (
    TINY,
    ULP,
    Enclosure,
    checked_delta,
    checked_epsilon,
    checked_order,
    flat,
    shaped,
)
from tightrope.guarantee.renyi.randomized_response import divergence_bounds
from tightrope.validate import FloatArray

__all__ = ["gamma", "log_odds", "crossing_test"]

_UNSURE = 1e-8  # far above the rounding of the test, and the two cases then differ by its square


def gamma(order: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Enclosure:
    """Enclosure of the optimal two-sided gamma; use the lower end to promise (epsilon, delta)."""
    (a, eps, d), shape = flat(checked_order(order), checked_epsilon(epsilon), checked_delta(delta))
    one = one_sided.gamma(a, eps, d)
    ends = (d == 0.0) | (d == 1.0)
    U, gap = log_odds(eps, np.where(ends, 0.5, d))
    crossing = Enclosure(
        divergence_bounds(U * (1.0 - 4.0 * ULP), a - 1.0).lower,
        divergence_bounds(U * (1.0 + 4.0 * ULP), a - 1.0).upper,
    )
    surely_crossing, surely_not = crossing_test(a - 1.0, U, gap, 4.0 * ULP * gap)
    # gamma_2 is a minimum of maxima: never below Theorem 3, never above the value at the crossing
    lower = np.where(surely_crossing, np.maximum(crossing.lower, one.lower), one.lower)
    upper = np.where(surely_not, np.minimum(one.upper, crossing.upper), crossing.upper)
    known = np.where(d == 1.0, np.inf, 0.0)
    lower, upper = np.where(ends, known, lower), np.where(ends, known, upper)
    return Enclosure(shaped(lower, shape), shaped(np.maximum(upper, lower), shape))


def log_odds(eps: FloatArray, delta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """U = ln((e^eps + delta)/(1 - delta)), and U - eps; relative rounding below 4 ulp."""
    with np.errstate(under="ignore"):
        gap = np.log1p(delta * (1.0 + np.exp(-eps)) / (1.0 - delta))
    return eps + gap, gap


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
        right = 2.0 * z * np.sinh(0.5 * U) ** 2 + excess + (1.0 + excess) * _coth_excess(z * U)
        left = (1.0 + z) * np.expm1(np.maximum(U - gap, 0.0))
        total = np.maximum(left + right, TINY)
        return (left - right) / total, 3.0 * (1.0 + z) * slack / total


def _coth_excess(t: FloatArray) -> FloatArray:
    """t coth(t) - 1 to nine digits."""
    s = np.minimum(t, 0.5) ** 2
    series = s * (1 / 3 - s * (1 / 45 - s * (2 / 945 - s * (1 / 4725 - s * (2 / 93555)))))
    far = np.maximum(t, 0.5)
    return np.asarray(np.where(t < 0.5, series, far / np.tanh(far) - 1.0))
