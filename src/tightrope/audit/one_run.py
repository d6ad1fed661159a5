"""Lower bounds on epsilon from one run: many canaries, each in the data by a fair coin.

Statement: m canaries are independently in or out with probability 1/2; from the output alone an
    attacker guesses r of them and abstains on the rest. Under (epsilon, delta)-DP
    P(at least v right) <= P(B >= v) + 2 m delta max_{1<=i<=v} P(v > B >= v - i)/i,
    B ~ Bin(r, 1/(1 + e^-epsilon)).
Conditions: the neighbours of the claim are the two states of one canary (in or out for
    add-or-remove; one of two records for replace-one); r is fixed before the output is seen.
Validity: bound.
Source: Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846), Theorem 5.2.
Error: rounding of binomial tails, about 1e-13 relative.
Vectors: one_run_audit_pvalue in tests/golden/audit.json.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from tightrope.errors import InvalidInput
from tightrope.validate import check_count, check_delta, check_epsilon, check_probability

__all__ = ["p_value", "epsilon_lower"]

_LARGEST = 100.0
_TOLERANCE = 1e-6


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The largest chance of so many right guesses against an (epsilon, delta)-DP algorithm."""
    m, r, v = check_guesses(canaries, guesses, correct)
    eps, d = check_epsilon(epsilon), check_delta(delta)
    law = binom(r, 1.0 / (1.0 + math.exp(-eps)))
    chance = float(law.sf(v - 1))
    if d > 0.0 and v > 0:
        steps = np.arange(1, v + 1)
        window = np.cumsum(law.pmf(v - steps))  # P(v > B >= v - i) for i = 1..v
        chance += 2.0 * m * d * float(np.max(window / steps))
    return min(chance, 1.0)


@lru_cache(maxsize=4096)
def epsilon_lower(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float
) -> float:
    """The largest epsilon that this many right guesses refute at this confidence; 0 if none."""
    miss = 1.0 - check_confidence(confidence)

    def refuted(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) < miss

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _LARGEST:
        low, high = high, 2.0 * high
    while high - low > _TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def check_guesses(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    m = check_count(canaries, "canaries", low=1)
    r, v = check_count(guesses, "guesses"), check_count(correct, "correct")
    if not v <= r <= m:
        raise InvalidInput(
            f"There cannot be more guesses than canaries, nor more right guesses than guesses; got "
            f"{m} canaries, {r} guesses, {v} right."
        )
    return m, r, v


def check_confidence(confidence: float) -> float:
    level = check_probability(confidence, "confidence")
    if not 0.0 < level < 1.0:
        raise InvalidInput(
            f"confidence is the chance that the bound holds, strictly between 0 and 1; got {level}."
        )
    return float(level)
