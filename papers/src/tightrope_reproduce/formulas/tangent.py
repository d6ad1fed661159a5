"""Where the trade-off function of sampled steps has the slope -e^eps.

Statement: x_T with f_T'(x_T) = -e^eps is the type I error of the test L > eps, and it is minus the
    derivative of delta(eps) = 1 + f_T*(-e^eps) by e^eps. With p sqrt(T) fixed it tends to
    x* = Phi(-eps/mu - mu/2). For every T the moments accountant's delta exceeds
    1 + f_T*(-e^eps) + e^eps x_T, (10).
Conditions: Poisson sampling, add-or-remove neighbours, where the order of f_T is the worse one.
Source: Bu, Dong, Long, Su 2019, Appendix B.5, (10) and Lemma B.6.
Error: a central difference of certified deltas, O(width^2).
Vectors: tests/unit/reproduce/test_tangent.py.
"""

from __future__ import annotations

import math

from scipy.special import ndtr

from tightrope.accounting import account
from tightrope.process import NoisySGD

__all__ = ["limit", "tangent_point"]

_WIDTH = 0.01


def tangent_point(run: NoisySGD, epsilon: float) -> float:
    """x_T."""
    exact = account(run)
    low, high = epsilon - _WIDTH, epsilon + _WIDTH
    fall = exact.delta(low).upper - exact.delta(high).upper
    return fall / (math.exp(high) - math.exp(low))


def limit(mu: float, epsilon: float) -> float:
    """x*."""
    return float(ndtr(-epsilon / mu - 0.5 * mu))
