"""Renyi differential privacy: conversions to and from (epsilon, delta)-DP and f-DP.

The way of reading: kernel (the divergence of two outcomes) -> closed_forms -> optimal (Theorem 3,
both directions, the inverses) -> best (over orders) -> regions (f-DP).
"""

from tightrope.guarantee.kinds.renyi import TabulatedCurve
from tightrope.guarantee.renyi.best import (
    ROUTES,
    Best,
    Route,
    best_delta,
    best_epsilon,
    best_for_delta,
    best_for_epsilon,
)

__all__ = [
    "ROUTES",
    "Best",
    "Route",
    "TabulatedCurve",
    "best_delta",
    "best_epsilon",
    "best_for_delta",
    "best_for_epsilon",
]
