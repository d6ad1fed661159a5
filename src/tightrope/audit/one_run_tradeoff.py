"""Refuting a trade-off curve, Gaussian DP above all, from one run.

Statement: as in `one_run`, c_g guesses on m canaries, c of them right. With p_j = P(j right),
    r_c = sum_{j>=c} j p_j/m (a uniformly chosen canary is guessed, rightly, and at least c are
    right) and h_c = sum_{j>=c} (c_g - j) p_j/m (guessed wrongly, ...), f-DP gives
    h_{c-1} >= f(1 - r_c) for every c. If P(at least c right) were tau, then r_c >= tau c/m, and
    following the inequalities down to c = 0 the total r_0 + h_0, which is c_g/m, would be
    reached or passed.
Conditions: those of `one_run`; f convex, for both orders of the neighbours.
Validity: bound.
Source: Mahloujifar, Melis and Chaudhuri 2024 (arXiv:2410.22235), Theorem 9 and Algorithm 3.
    Flipping canary i, all else held: the guess stays and turns from right to wrong, so the wrong
    event of count c - 1 is the right event of count c under the neighbour; convexity of f averages
    over i. Checked against the linear program of all the inequalities (tests).
Error: rounding only.
Vectors: tests/unit/audit/test_one_run.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from scipy.special import ndtr, ndtri

from tightrope.audit.one_run import check_confidence, check_guesses

__all__ = ["refutes", "gaussian_survivor", "mu_lower"]

_LARGEST = 100.0
_TOLERANCE = 1e-6


def refutes(
    survivor: Callable[[float], float], canaries: int, guesses: int, correct: int, miss: float
) -> bool:
    """Are this many right guesses less likely than `miss` under the trade-off curve f?

    survivor(x) = f(1 - x): the least mass under one neighbour of an event of mass x under another.
    """
    m, total, c = check_guesses(canaries, guesses, correct)
    right, wrong = miss * c / m, miss * (total - c) / m
    for count in range(c - 1, -1, -1):
        least = max(wrong, survivor(right))
        right += count / (total - count) * (least - wrong)
        wrong = least
        if right + wrong > total / m:
            return True
    return False


def gaussian_survivor(mu: float) -> Callable[[float], float]:
    """f(1 - x) = Phi(Phi^-1(x) - mu) of mu-Gaussian DP."""

    def survivor(mass: float) -> float:
        return float(ndtr(ndtri(min(mass, 1.0)) - mu))

    return survivor


@lru_cache(maxsize=4096)
def mu_lower(canaries: int, guesses: int, correct: int, confidence: float) -> float:
    """The largest mu whose Gaussian DP these guesses refute at this confidence; 0 if none."""
    miss = 1.0 - check_confidence(confidence)

    def refuted(mu: float) -> bool:
        return refutes(gaussian_survivor(mu), canaries, guesses, correct, miss)

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < _LARGEST:
        low, high = high, 2.0 * high
    while high - low > _TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
