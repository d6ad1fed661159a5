"""Renyi differential privacy: conversions to and from (epsilon, delta)-DP and f-DP.

The way of reading: kernel, binary (the divergence of two outcomes) -> stationarity, one_sided
(Theorem 3), randomized_response, two_sided -> optimal (the inverses) -> routes, best (over orders).
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
