"""Numbers as people write them: 0.01, 1e-5, 256/60000."""

from __future__ import annotations

import math
from fractions import Fraction

from tightrope.errors import InvalidInput

__all__ = ["parse_number", "parse_count"]


def parse_number(given: object, name: str) -> float:
    """A number as written by people; what is not finite is left to the checks of its range."""
    if isinstance(given, int) and not isinstance(given, bool):
        return _of_whole(given)
    if isinstance(given, float):
        return given
    parts = str(given).replace(" ", "").split("/")
    try:
        value = _quotient(*parts)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise InvalidInput(
            f"{name} must be a number such as 0.01, 1e-5 or 256/60000; got {_shown(given)}."
            f"{_advice(str(given))}"
        ) from None
    if math.isnan(value):
        raise InvalidInput(f"{name} must be a finite number; got {_shown(given)}.")
    if value == 0.0 and any(digit in parts[0].lower().split("e")[0] for digit in "123456789"):
        raise InvalidInput(
            f"{name} = {_shown(given)} is below the smallest number that a computer holds, about "
            "5e-324. Give a larger number, or 0 if 0 is meant."
        )
    return value


def _advice(text: str) -> str:
    """For people who write a percentage, a decimal comma or a division by zero."""
    if "%" in text:
        return " Write a percentage as a fraction: 0.01 or 1/100 for 1%."
    if "," in text:
        return " Write decimals with a point: 0.01."
    return " Nothing can be divided by 0." if text.strip().endswith("/0") else ""


def parse_count(given: object, name: str) -> int | float:
    """The same for a count, where a whole number is kept to its last digit."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = str(given).replace(" ", "")
    return int(text) if text.isdecimal() and len(text) < 310 else parse_number(given, name)


def _quotient(top: str, bottom: str = "1") -> float:
    """top / bottom, rounded once; the parts may be written 6e4."""
    above, below = _exactly(top), _exactly(bottom)
    if isinstance(above, Fraction) and isinstance(below, Fraction):
        return float(above / below)
    return float(above) / float(below)


def _exactly(text: str) -> Fraction | float:
    """The fraction a text means; a float where 10 to a huge power would have to be made."""
    value = float(text)
    huge = "e" in text.lower() and (value == 0.0 or math.isinf(value))
    return value if huge or math.isnan(value) or "inf" in text.lower() else Fraction(text)


def _of_whole(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
