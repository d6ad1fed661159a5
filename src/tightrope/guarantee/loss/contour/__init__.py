"""The inversion integral: delta(epsilon) and epsilon(delta) of a composition, proved."""

from __future__ import annotations

from tightrope.guarantee.loss.contour.integral import (
    epsilon,
    epsilon_and_reverse,
    log_delta,
    log_delta_and_reverse,
    trivially_zero,
    without_rare,
)

__all__ = [
    "epsilon",
    "epsilon_and_reverse",
    "log_delta",
    "log_delta_and_reverse",
    "trivially_zero",
    "without_rare",
]
