"""The best (epsilon, delta) that one Renyi level implies, in both unknowns.

Statement: eps(order, gamma, delta) is the smallest eps >= 0, delta(order, gamma, eps) the smallest
    delta, with gamma <= gamma*(order, eps, delta), where gamma* is
    Theorem 3 (sides=1: one direction is bounded) or its two-sided form (sides=2: both are, which is
    what Renyi DP says). For sides=2, with U the log-odds of randomised response at level gamma:
        eps = U + ln(1 - delta (1 + e^-U)),   delta = (1 - e^{eps-U})/(1 + e^-U)
    where the test of two_sided.py holds at that point, and the one-sided value otherwise.
Conditions: order > 1, gamma in [0, inf], eps >= 0, delta in {0} or [1e-300, 1].
Validity: exact.
Source: Theorem 3 of arXiv:2008.06529 (one-sided); docs/theorems/renyi_two_sided.md.
Error: upper ends satisfy the lower end of gamma* >= gamma, lower ends the upper end <= gamma, each
    checked after the root was found; where a check fails Lemma 1 (upper) or 0 (lower) is given.
    delta below 1e-300 has lower end 0. Safe side: upper.
Vectors: thm3_eps, thm3_delta in tests/golden/renyi.json.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.errors import InvalidInput
from tightrope.guarantee.renyi import closed_epsilon, one_sided
from tightrope.guarantee.renyi._arrays import (
    SMALLEST_DELTA,
    ULP,
    Enclosure,
    Indices,
    checked_delta,
    checked_epsilon,
    checked_gamma,
    checked_order,
    flat,
    increasing_root,
    shaped,
    verified,
)
from tightrope.guarantee.renyi.randomized_response import log_chi_of_gamma, log_odds_bounds
from tightrope.guarantee.renyi.two_sided import crossing_test
from tightrope.validate import FloatArray

__all__ = ["epsilon", "delta"]

_LARGEST_GAMMA = 1e90
_NARROW = 1e-9  # below what `crossing_test` leaves open


def epsilon(order: ArrayLike, gamma: ArrayLike, delta: ArrayLike, *, sides: int = 2) -> Enclosure:
    """Enclosure of the smallest epsilon that (order, gamma)-Renyi DP implies at delta."""
    _check_sides(sides)
    (a, g, d), shape = flat(checked_order(order), checked_gamma(gamma), checked_delta(delta))
    z = a - 1.0
    lower, upper = _epsilon_one_sided(z, g, d)
    if sides == 2:
        lower, upper = _with_crossing_epsilon(z, g, d, lower, upper)
    return Enclosure(shaped(np.minimum(lower, upper), shape), shaped(upper, shape))


def delta(order: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike, *, sides: int = 2) -> Enclosure:
    """Enclosure of the smallest delta that (order, gamma)-Renyi DP implies at epsilon."""
    _check_sides(sides)
    (a, g, eps), shape = flat(checked_order(order), checked_gamma(gamma), checked_epsilon(epsilon))
    z = a - 1.0
    lower, upper = _delta_one_sided(z, g, eps)
    if sides == 2:
        lower, upper = _with_crossing_delta(z, g, eps, lower, upper)
    return Enclosure(shaped(np.minimum(lower, upper), shape), shaped(upper, shape))


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
    bound = closed_epsilon.epsilon_upper(z, gamma, d)
    free = _free_of_epsilon(z, gamma, d)
    lower, upper = np.where(np.isinf(bound), np.inf, 0.0), np.where(free, 0.0, bound)
    todo = np.flatnonzero((upper > 0.0) & np.isfinite(bound) & (d > 0.0) & _solvable(gamma))
    if todo.size:
        lower[todo], upper[todo] = _solve_epsilon(z[todo], gamma[todo], d[todo], bound[todo])
    return Enclosure(lower, upper)


def _free_of_epsilon(z: FloatArray, gamma: FloatArray, d: FloatArray) -> NDArray[np.bool_]:
    """The levels from which (0, delta)-DP already follows."""
    at_zero = one_sided.optimum(z, np.zeros_like(z), d).lower
    return _Target(z, gamma).reached(at_zero, np.arange(z.size)) & _solvable(gamma)


def _solve_epsilon(
    z: FloatArray, gamma: FloatArray, d: FloatArray, bound: FloatArray
) -> tuple[FloatArray, FloatArray]:
    target, warm = _Target(z, gamma), np.full_like(z, np.nan)

    def at(eps: FloatArray, i: Indices) -> one_sided.Optimum:
        best = one_sided.optimum(z[i], eps, d[i], None if np.isnan(warm[i]).any() else warm[i])
        warm[i] = best.logit
        return best

    def residual(eps: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        best = at(eps, i)
        return 0.5 * (best.lower + best.upper) - target.value[i], best.by_eps

    everything = np.arange(z.size)
    found = increasing_root(residual, bound, np.zeros_like(z), bound, smallest=1e-100)
    best = at(found, everything)
    doubt = best.upper - best.lower + target.slack
    step = doubt / np.maximum(best.by_eps, 1e-300) + 2.0 * ULP * found
    upper, high = verified(found, step, lambda e, i: target.reached(at(e, i).lower, i))
    lower, low = verified(
        found, -step, lambda e, i: (e <= 0.0) | target.missed(at(np.maximum(e, 0.0), i).upper, i)
    )
    upper = np.where(high, np.minimum(upper, bound), bound)
    return np.where(low, np.maximum(lower, 0.0), 0.0), upper


def _delta_one_sided(z: FloatArray, gamma: FloatArray, eps: FloatArray) -> Enclosure:
    bound = closed_epsilon.delta_upper(z, gamma, eps)
    lower, upper = np.where(np.isinf(gamma), 1.0, 0.0), bound.copy()
    todo = np.flatnonzero((bound > SMALLEST_DELTA) & _solvable(gamma) & (gamma > 0.0))
    if todo.size:
        lower[todo], upper[todo] = _solve_delta(z[todo], gamma[todo], eps[todo], bound[todo])
    return Enclosure(lower, upper)


def _solve_delta(
    z: FloatArray, gamma: FloatArray, eps: FloatArray, bound: FloatArray
) -> tuple[FloatArray, FloatArray]:
    target = _Target(z, gamma)
    low_end, high_end = np.log(SMALLEST_DELTA), np.log(np.minimum(bound, 1.0 - 1e-16))

    def at(log_delta: FloatArray, i: Indices) -> one_sided.Optimum:
        d = np.clip(np.exp(np.minimum(log_delta, 0.0)), SMALLEST_DELTA, 1.0)
        return one_sided.optimum(z[i], eps[i], d)

    def residual(log_delta: FloatArray, i: Indices) -> tuple[FloatArray, FloatArray]:
        best = at(log_delta, i)
        return 0.5 * (best.lower + best.upper) - target.value[i], best.by_log_delta

    everything = np.arange(z.size)
    start = np.maximum(high_end, low_end)
    found = increasing_root(residual, start, np.full_like(z, low_end), start)
    best = at(found, everything)
    doubt = best.upper - best.lower + target.slack
    step = doubt / np.maximum(best.by_log_delta, 1e-300) + 2.0 * ULP * (1.0 + np.abs(found))
    upper, high = verified(found, step, lambda x, i: target.reached(at(x, i).lower, i))
    lower, low = verified(
        found, -step, lambda x, i: (x <= low_end) | target.missed(at(x, i).upper, i)
    )
    low &= lower > low_end
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
