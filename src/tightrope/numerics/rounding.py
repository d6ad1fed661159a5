"""Rounding in double precision: the units every error term counts in, and steps to the safe side.

Model: + - * / and sqrt are right to one UNIT, relative (IEEE 754, to nearest); elementary functions
are taken to be right to 4 units. Sums of n terms lose at most n units of the sum of their sizes.
docs/certificate_argument.md, 5.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction

UNIT = 2.0**-53  # the largest relative error of one operation
ULP = 2.0**-52  # the distance of 1 to the next number


def up(value: float) -> float:
    """Above a value >= 0 that is off by at most 4 units."""
    return math.nextafter(value * (1.0 + 4.0 * UNIT), math.inf)


def down(value: float) -> float:
    """Below a value >= 0 that is off by at most 4 units; not below 0."""
    return max(math.nextafter(value * (1.0 - 4.0 * UNIT), -math.inf), 0.0)


def exp_or_inf(value: float) -> float:
    """e^value as an error bound: infinite, and never smaller, where no double holds it."""
    return math.exp(value) if value < 700.0 else math.inf


def expm1_or_inf(value: float) -> float:
    """e^value - 1, in the same way."""
    return math.expm1(value) if value < 700.0 else math.inf


def log_down(value: float) -> float:
    """ln value from below; -inf for 0."""
    return math.log(value) * (1.0 + 4e-16) - 4e-16 if value > 0.0 else -math.inf


def times_up(value: float, count: int) -> float:
    """value * count for a value >= 0, never below it: exact where that is a double."""
    found = value * count
    if math.isinf(found) or Fraction(found) >= Fraction(value) * count:
        return found
    return math.nextafter(found, math.inf)


def over_down(value: float, count: int) -> float:
    """value / count for a finite value >= 0, never above it: exact where that is a double."""
    found = value / count
    if Fraction(found) * count <= Fraction(value):
        return found
    return math.nextafter(found, 0.0)


def rest_up(share: float) -> float:
    """1 - share for a share in [0, 1], never below it; one minus a double from 1/2 on is exact."""
    found = 1.0 - share
    return found if 1.0 - found <= share else math.nextafter(found, math.inf)


def rest_down(share: float) -> float:
    """1 - share for a share in [0, 1], never above it."""
    found = 1.0 - share
    return found if 1.0 - found >= share else math.nextafter(found, 0.0)


def root_up(square: Fraction, guess: float) -> float:
    """The smallest double whose square is not below this, from a guess a few doubles away."""
    found = guess
    while not math.isinf(found) and Fraction(found) ** 2 < square:
        found = math.nextafter(found, math.inf)
    while not math.isinf(found) and Fraction(math.nextafter(found, 0.0)) ** 2 >= square:
        found = math.nextafter(found, 0.0)
    return found


# ---- Numbers printed with a few digits, rounded to the side that keeps a bound a bound -----------
DIGITS = 5


def rounded_up(value: float, digits: int = DIGITS) -> str:
    """The value to so many digits, never below it."""
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = DIGITS) -> str:
    """The value to so many digits, never above it."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, way: str) -> str:
    if value == 0.0 or not math.isfinite(value):
        return f"{float(value) + 0.0:g}"
    exact = Decimal(repr(float(value)))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(step, rounding=way)):.{digits}g}"
