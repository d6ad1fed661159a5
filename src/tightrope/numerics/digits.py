"""Numbers printed with a few digits, rounded to the side that keeps a bound a bound."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

__all__ = ["rounded_up", "rounded_down"]

DIGITS = 5


def rounded_up(value: float, digits: int = DIGITS) -> str:
    """So many digits, never below the value."""
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = DIGITS) -> str:
    """So many digits, never above the value."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, way: str) -> str:
    if value == 0.0 or not math.isfinite(value):
        return f"{float(value) + 0.0:g}"
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(step, rounding=way)):.{digits}g}"
