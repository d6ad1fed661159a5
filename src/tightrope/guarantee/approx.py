"""Closed forms for (epsilon, delta) guarantees: groups, subsampling, advanced composition.

Statement:
    group     k records: (k eps, delta (e^{k eps} - 1)/(e^eps - 1));
    sampling  (ln(1 + q (e^eps - 1)), q delta).
Conditions: groups hold for any mechanisms (adaptive too). Sampling: Poisson sampling with
    probability q for add-or-remove neighbours, or q = m/n of a uniform batch of fixed size m drawn
    without replacement for replace-one neighbours; the draw stays secret. Poisson sampling with
    replace-one neighbours has no such formula and is refused.
Validity: bound; sampling is tight for one step.
Source: Vadhan 2017, Lemma 2.2 (group); Balle, Barthe and Gaboardi 2018
    (arXiv:1807.01647), Theorems 8 and 9.
Error: a few roundings, rounded up.
Vectors: subsample_eps_delta in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import ULP, expm1_or_inf, times_up, up
from tightrope.process import Adjacency
from tightrope.validate import (
    FloatArray,
    check_count,
    check_delta,
    check_epsilon,
    check_probability,
    check_real,
)

Approx = tuple[float, float]  # (epsilon, delta)
ROUNDED_UP = 1.0 + 4.0 * ULP


def checked(
    guarantees: Sequence[Approx], counts: Sequence[int] | None = None
) -> list[tuple[float, float, int]]:
    """(epsilon, delta, count) of each part that runs at least once."""
    times = [1] * len(guarantees) if counts is None else [check_count(c, "count") for c in counts]
    if len(times) != len(guarantees):
        raise InvalidInput(
            f"Give one count for each guarantee; got {len(times)} for {len(guarantees)}."
        )
    parts = [
        (float(check_epsilon(e)), float(check_delta(d)), c)
        for (e, d), c in zip(guarantees, times, strict=True)
    ]
    return [part for part in parts if part[2] > 0]


def group(epsilon: float, delta: float, size: int) -> Approx:
    """The guarantee for `size` records that change together; delta is capped at 1."""
    eps, d, k = check_epsilon(epsilon), check_delta(delta), check_count(size, "size", low=1)
    if k == 1 or d == 0.0:
        return (times_up(eps, k), d)
    if eps * (k - 1) > 700.0:
        return (eps * k * ROUNDED_UP, 1.0)
    # (e^{k eps} - 1)/(e^eps - 1) = e^{(k-1) eps} (1 - e^{-k eps})/(1 - e^-eps)
    factor = (
        float(k)
        if eps == 0.0
        else math.exp(eps * (k - 1)) * math.expm1(-k * eps) / math.expm1(-eps)
    )
    return (eps * k * ROUNDED_UP, min(d * factor * (1.0 + 1e-12), 1.0))


def amplified(
    epsilon: float, delta: float, rate: float, adjacency: Adjacency, *, fixed_size: bool = False
) -> Approx:
    """(epsilon, delta) after secret sampling: Poisson, or `fixed_size` without replacement."""
    eps, d, q = check_epsilon(epsilon), check_delta(delta), check_probability(rate, "rate")
    wanted = Adjacency.REPLACE_ONE if fixed_size else Adjacency.ADD_OR_REMOVE
    if adjacency is not wanted:
        scheme = "Fixed-size sampling without replacement" if fixed_size else "Poisson sampling"
        raise DoesNotApply(
            f"{scheme} amplifies by this formula for {wanted} neighbours only (Balle, Barthe and "
            f"Gaboardi 2018, Theorems 8 and 9); got {adjacency}. Declare {wanted}, or use the "
            "other sampling scheme."
        )
    if q == 1.0:
        return (eps, d)
    if q == 0.0:
        return (0.0, 0.0)
    value = math.log1p(q * math.expm1(eps)) if eps < 700.0 else eps + math.log(q + math.exp(-eps))
    return (min(value * ROUNDED_UP, eps), min(up(q * d), d))


# ---- Advanced composition of (epsilon, delta) guarantees -----------------------------------------
# Statement: k runs of (eps, delta)-DP are (eps', k delta + slack)-DP for every slack > 0,
#     eps' = eps sqrt(2 k ln(1/slack)) + k eps (e^eps - 1); for different eps_i,
#     eps' = sqrt(2 ln(1/slack) sum eps_i^2) + sum eps_i (e^eps_i - 1).
# Conditions: adaptive composition; 0 < slack <= 1.
# Validity: bound; `optimal` is never larger.
# Source: Dwork, Rothblum and Vadhan 2010, Theorem III.3; Dwork and Roth 2014, Theorem 3.20.
# Error: a few roundings, rounded up.
# Vectors: advanced_composition in tests/golden/tradeoff.json.
_SAFE = 1.0 + 8.0 * ULP


def advanced(
    guarantees: Sequence[Approx], slack: float, counts: Sequence[int] | None = None
) -> Approx:
    """(eps', sum delta_i + slack) of (eps_i, delta_i), part i being run counts[i] times."""
    parts = checked(guarantees, counts)
    log_slack = -math.log(checked_slack(slack))
    largest = max((e for e, _, _ in parts), default=0.0) or 1.0
    squares = math.fsum(c * (e / largest) ** 2 for e, _, c in parts)
    drift = math.fsum(c * e * expm1_or_inf(e) for e, _, c in parts)
    total = (largest * math.sqrt(2.0 * log_slack * squares) + drift) * _SAFE
    return (total, min((math.fsum(c * d for _, d, c in parts) + slack) * _SAFE, 1.0))


def checked_slack(value: float) -> float:
    return float(check_real(value, "slack", low=0.0, high=1.0, open_low=True))


# ---- Trade-off function and profile of one (epsilon, delta) guarantee
# Statement: f(a) = max{0, 1 - delta - e^eps a, e^-eps (1 - delta - a)}, and for every other level x
#     >= 0 delta(x) = delta + (1 - delta) (e^eps - e^x)_+ / (1 + e^eps).
# Conditions: 0 <= eps <= inf, 0 <= delta <= 1.
# Validity: exact ((eps, delta)-DP is equivalent to f-DP; the worst pair has four outcomes).
# Source: Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015 (arXiv:1311.0776).
# Error: a few roundings (relative 1e-15; relative to 1 where f is computed as 1 - ...).
# Vectors: tradeoff_eps_delta in tests/golden/tradeoff.json.
_ULPS = 4.0 * ULP
_LARGE, _TINY = 700.0, 5e-324  # e^700 is still a double; the smallest of them


def tradeoff(type_i: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest type II error at `type_i` under (epsilon, delta)-DP."""
    a = np.asarray(check_probability(type_i, "type_i"))
    eps = np.asarray(check_real(epsilon, "epsilon", low=0.0, finite=False))
    left = 1.0 - np.asarray(check_delta(delta))
    with np.errstate(over="ignore"):  # e^eps in two factors: neither is too large for a double
        grown = np.exp(np.clip(eps - _LARGE, 0.0, _LARGE)) * (np.exp(np.minimum(eps, _LARGE)) * a)
    steep = np.where(a < 0.5, left - grown, 0.0)  # from 1/2 on it lies below the flat line
    flat = np.exp(-eps) * (left - a)
    return np.maximum(np.maximum(steep, flat), 0.0)[()]


def tradeoff_bounds(
    type_i: FloatArray, epsilon: float, delta: float
) -> tuple[FloatArray, FloatArray]:
    """(lower, upper) around `tradeoff`; lower is the safe side."""
    value = np.asarray(tradeoff(type_i, epsilon, delta))
    # the steep line is a difference of numbers below 1; the flat one is relative to itself, unless
    # 1 - delta is rounded
    rounded = math.exp(-epsilon) if delta > 0.0 else 0.0
    slack = _ULPS * np.where(type_i < 0.5, 1.0, value + rounded) + _TINY * (value > 0.0)
    return np.maximum(value - slack, 0.0), np.minimum(value + slack, 1.0)


def tradeoff_interval(type_i: float, epsilon: float, delta: float) -> Interval:
    lower, upper = tradeoff_bounds(np.asarray(float(type_i)), float(epsilon), float(delta))
    return Interval(float(lower), float(upper))


def implied_delta(at_epsilon: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Any:
    """The smallest delta at the level `at_epsilon` that (epsilon, delta)-DP implies."""
    x = np.asarray(check_epsilon(at_epsilon, "at_epsilon"))
    eps = np.asarray(check_real(epsilon, "epsilon", low=0.0, finite=False))
    d = np.asarray(check_delta(delta))
    share = -np.expm1(np.minimum(x - eps, 0.0)) / (1.0 + np.exp(-eps))
    return (d + (1.0 - d) * share)[()]
