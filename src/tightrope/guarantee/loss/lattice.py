"""The profile of composed pairs by rigorously rounded lattice convolution (theory D(ii))."""

from __future__ import annotations

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.numerics.interval import Interval

__all__ = ["log_delta", "epsilon"]

_MISSING = "The lattice method does not serve these pairs yet; use the contour method."


def log_delta(components: Components, epsilon: float, relative_width: float = 1e-4) -> Interval:
    """Enclosure of ln delta(epsilon)."""
    raise NotCertified(_MISSING)


def epsilon(components: Components, delta: float, relative_width: float = 1e-4) -> Interval:
    """Enclosure of the smallest epsilon >= 0 with delta(epsilon) <= delta."""
    raise NotCertified(_MISSING)
