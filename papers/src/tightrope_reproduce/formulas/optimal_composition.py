"""Optimal composition of equal (epsilon, delta) guarantees.

Statement: k runs of (eps, delta)-DP are (x, 1 - (1 - delta)^k (1 - D(x)))-DP for every x >= 0, with
    D(x) = sum over l of P(l) (1 - e^{x - (k - 2l) eps})_+,  P(l) = C(k, l) e^{(k - l) eps}/(1 +
    e^eps)^k, and no smaller delta is true for all mechanisms. At x = (k - 2i) eps this is the
    printed theorem.
Conditions: adaptive composition; eps, delta the same in every run (others are composed as pairs of
    four outcomes, by the inversion integral).
Validity: exact for the worst (eps, delta)-DP mechanisms, hence a bound for any others.
Source: Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776), Theorem 3.3; for ln P(l) by Stirling's
    formula with its correction and the two deviances, so that no large numbers cancel, Loader 2000,
    "Fast and accurate computation of binomial probabilities"; for the inverse, Brent 1973.
Error: binomial logarithms to 3e-13, measured against 50 digits for k up to 1e6; terms more than 13
    standard deviations below the largest are bounded by a geometric series and added to the upper
    end. Relative width about 4e-12. The inverse is verified against the upper (lower) end, so each
    end of its interval is safe.
Vectors: kov_delta and kov_epsilon in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
from scipy.special import logsumexp

from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_count, check_delta, check_epsilon

__all__ = [
    "delta_optimal",
    "epsilon_optimal",
    "response_delta",
    "with_failures",
    "LARGEST",
    "log_pmf",
    "smallest_epsilon",
]

_MARGIN = 2e-12


def delta_optimal(at_epsilon: float, epsilon: float, delta: float, count: int) -> Interval:
    """The smallest delta at the level `at_epsilon` after `count` runs of (epsilon, delta)-DP."""
    x, eps = check_epsilon(at_epsilon, "at_epsilon"), check_epsilon(epsilon)
    d, k = check_delta(delta), check_count(count, "count")
    return with_failures(response_delta(x, eps, k), [(d, k)])


def epsilon_optimal(at_delta: float, epsilon: float, delta: float, count: int) -> Interval:
    """The smallest epsilon at `at_delta` after `count` runs; inf where the deltas exceed it."""
    target, eps = check_delta(at_delta, "at_delta"), check_epsilon(epsilon)
    d, k = check_delta(delta), check_count(count, "count")
    nothing = with_failures(Interval.exact(0.0), [(d, k)])
    top = k * eps * (1.0 + ULP) if k > 1 else k * eps
    return smallest_epsilon(lambda x: delta_optimal(x, eps, d, k), target, top, nothing)


def with_failures(response: Interval, failures: list[tuple[float, int]]) -> Interval:
    """1 - (1 - D) prod(1 - delta_i)^count_i for D in `response`."""
    failures = [(d, c) for d, c in failures if d > 0.0 and c > 0]
    if any(d >= 1.0 for d, _ in failures):
        return Interval.exact(1.0)
    if response.upper == 0.0 and len(failures) == 1 and failures[0][1] == 1:
        return Interval.exact(failures[0][0])
    log_kept = math.fsum(c * math.log1p(-d) for d, c in failures)
    if log_kept == 0.0:
        return response

    def total(part: float) -> float:
        return 1.0 if part >= 1.0 else -math.expm1(log_kept + math.log1p(-part))

    lower, upper = total(response.lower), total(response.upper)
    return Interval(max(lower * (1 - 8 * ULP), 0.0), min(upper * (1 + 8 * ULP), 1.0))


def response_delta(x: float, eps: float, count: int) -> Interval:
    """D(x): delta of `count` randomised responses, each of level eps, at the level x."""
    top = count * eps
    noise = ULP * (top + x)  # two roundings of half an ulp each in (k - 2l) eps - x
    if top == 0.0 or x >= top + noise:
        return Interval.exact(0.0)
    if eps > LARGEST:  # flips have probability e^-600 each
        flips = count * math.exp(-LARGEST)
        low, high = -math.expm1(min(x - top + noise, 0.0)), -math.expm1(min(x - top - noise, 0.0))
        return Interval(
            max(low * (1.0 - _MARGIN) - flips, 0.0), min(high * (1.0 + _MARGIN) + flips, 1.0)
        )
    last_useful = min(math.floor((count - x / eps) / 2.0) + 1, count)  # beyond, the loss is <= x
    flips_array = _window(last_useful, eps, count)
    log_p = log_pmf(flips_array, count, eps)
    gaps = (count - 2.0 * flips_array) * eps - x
    left_out = _left_out(flips_array, log_p, count, eps, last_useful)
    upper = _sum(log_p, gaps + noise) * (1.0 + _MARGIN) + left_out
    lower = _sum(log_p, gaps - noise) * (1.0 - _MARGIN)
    return Interval(lower, min(max(upper, 5e-324), 1.0))


def _window(last: int, eps: float, count: int) -> FloatArray:
    """The numbers of flips up to `last` within 13 deviations of the largest term."""
    q = 1.0 / (1.0 + math.exp(eps))
    reach = math.ceil(13.0 * math.sqrt(count * q * (1.0 - q))) + 50
    peak = min(last, math.floor(count * q) + 1)
    first = max(peak - reach, 0)
    return np.arange(first, min(last, peak + reach) + 1, dtype=np.float64)


def _sum(log_p: FloatArray, gaps: FloatArray) -> float:
    live = gaps > 0.0
    if not live.any():
        return 0.0
    return math.exp(min(float(logsumexp(log_p[live] + np.log(-np.expm1(-gaps[live])))), 0.0))


def _left_out(
    flips: FloatArray, log_p: FloatArray, count: int, eps: float, last_useful: int
) -> float:
    """Bound on the terms outside the window: both tails fall faster than geometric series."""
    first, last = flips[0], flips[-1]
    below = above = 0.0
    if first > 0.0:
        ratio = first / (count - first + 1.0) * math.exp(eps)
        below = math.exp(log_p[0]) * ratio / (1.0 - ratio)
    if last < last_useful:
        ratio = (count - last) / (last + 1.0) * math.exp(-eps)
        above = math.exp(log_p[-1]) * ratio / (1.0 - ratio)
    return (below + above) * (1.0 + _MARGIN)


LARGEST = 600.0

_SMALL = np.array(
    [0.0]
    + [
        math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - 0.5 * math.log(2.0 * math.pi)
        for n in range(1, 16)
    ]
)


def log_pmf(successes: FloatArray, trials: int, eps: float) -> FloatArray:
    """ln P(l) for every l in `successes`; the success probability is 1/(1 + e^eps)."""
    n, x = float(trials), successes
    ends = (x == 0.0) | (x == n)
    inner = np.where(ends, 1.0, x) if trials > 1 else np.ones_like(x)
    rest = np.maximum(n - inner, 1.0)
    mean, mean_low = _mean(trials, eps)
    gap = (inner - mean) - mean_low
    value = _stirling(np.array([n]))[0] - _stirling(inner) - _stirling(rest)
    value = value - _deviance(inner, mean, gap) - _deviance(rest, n - mean, -gap)
    value = value - 0.5 * np.log(2.0 * math.pi * inner * rest / n)
    none = -n * math.log1p(math.exp(-eps))
    return np.where(x == 0.0, none, np.where(x == n, none - n * eps, value))


def _mean(trials: int, eps: float) -> tuple[float, float]:
    """n/(1 + e^eps) as a sum of two doubles: its rounding alone would cost 1e-11 at n = 1e6."""
    with localcontext() as context:
        context.prec = 40
        mean = Decimal(trials) / (1 + Decimal(eps).exp())
        high = float(mean)
        return high, float(mean - Decimal(high))


def _stirling(n: FloatArray) -> FloatArray:
    """ln n! - [(n + 1/2) ln n - n + ln sqrt(2 pi)] for whole n >= 1."""
    table = _SMALL[np.minimum(n, 15.0).astype(np.int64)]
    m = np.maximum(n, 15.0)
    s = 1.0 / (m * m)
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188))))) / m
    return np.where(n <= 15.0, table, series)


def _deviance(x: FloatArray, mean: float, gap: FloatArray) -> FloatArray:
    """x ln(x/mean) + mean - x with gap = x - mean given."""
    v = gap / (2.0 * mean + gap)  # (x - mean)/(x + mean)
    w = v * v
    series = np.zeros_like(v)
    for j in range(23, 0, -1):
        series = (series + 1.0 / (2 * j + 1)) * w
    near = gap * v + 2.0 * x * v * series
    far = x * (np.log(x / mean)) - gap
    return np.where(np.abs(v) < 0.35, near, far)


_RELATIVE = 8.9e-16
_STEPS = 300


def smallest_epsilon(
    delta: Callable[[float], Interval], target: float, top: float, beyond: Interval
) -> Interval:
    """Interval around the smallest x with delta(x) <= target; delta is `beyond` from `top` on."""

    def profile(x: float) -> Interval:
        return beyond if x >= top else delta(x)

    if target >= 1.0 or profile(0.0).upper <= target:
        return Interval.exact(0.0)
    if beyond.lower > target:
        return Interval.exact(math.inf)
    upper = math.inf
    if beyond.upper <= target:
        upper = _crossing(lambda x: profile(x).upper, target, 0.0, top)[1]
    if profile(0.0).lower <= target:
        return Interval(0.0, upper)
    lower = _crossing(lambda x: profile(x).lower, target, 0.0, top)[0]
    return Interval(min(lower, upper), upper)


def _crossing(
    function: Callable[[float], float], target: float, low: float, high: float
) -> tuple[float, float]:
    """(low, high) with function(low) > target >= function(high), as close as can be."""

    def excess(x: float) -> float:
        value = function(x)
        return (_log(value) - _log(target)) or (1.0 if value > target else -1e-300)

    from scipy.optimize import brentq  # slow to import, and seldom needed

    root = brentq(excess, low, high, xtol=1e-300, rtol=_RELATIVE, maxiter=_STEPS)
    reach = 2.0 * _RELATIVE * root
    while True:  # grows fourfold, so it ends at `low` and `high`, which are known to hold
        a, b = max(root - reach, low), min(root + reach, high)
        if function(a) > target >= function(b):
            return a, b
        reach = 4.0 * reach + 5e-324


def _log(value: float) -> float:
    return math.log(max(value, 5e-324))
