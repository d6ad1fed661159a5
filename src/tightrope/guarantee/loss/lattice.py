"""The lattice method: what other modules ask of it."""

from __future__ import annotations

from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice_delta import (
    Explanation,
    LatticeLaw,
    build,
    counted,
    explain,
    law_at,
    log_delta,
)
from tightrope.guarantee.loss.lattice_inverse import smallest_epsilon
from tightrope.numerics.interval import Interval

__all__ = ["LatticeLaw", "Explanation", "law_at", "build", "log_delta", "explain", "epsilon"]


def epsilon(components: Components, delta: float, relative_width: float = 1e-6) -> Interval:
    """Enclosure of the smallest epsilon >= 0 with delta(epsilon) <= delta."""
    return smallest_epsilon(counted(components), delta, relative_width)
