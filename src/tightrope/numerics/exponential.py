"""exp(-x) of a rational x between two whole numbers, and coins that fall exactly so often.

Everything here is integer arithmetic: no rounding can move a probability.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["below", "exp_bounds"]

WORD = 64

Bounds = Callable[[int], tuple[int, int]]


def exp_bounds(numerator: int, denominator: int, bits: int) -> tuple[int, int]:
    """Whole numbers with lower <= 2^bits exp(-numerator/denominator) <= upper; x >= 0.

    exp(x/2^k) with x/2^k < 1 by its series, each term rounded down for the one and up for the
    other; what is left out after a term of at most one unit is less than that term, as each term
    is at most half of the one before. Then 1/exp, squared k times.
    """
    if numerator == 0:
        return 1 << bits, 1 << bits
    halvings = (numerator // denominator).bit_length()
    work = bits + halvings + 16
    divisor, one = denominator << halvings, 1 << work
    low = high = lower_term = upper_term = one
    k = 0
    while upper_term > 1:
        k += 1
        lower_term = lower_term * numerator // (divisor * k)
        upper_term = _up(upper_term * numerator, divisor * k)
        low, high = low + lower_term, high + upper_term
    low, high = (one * one) // (high + 1), _up(one * one, low)
    for _ in range(halvings):
        low, high = (low * low) >> work, _up(high * high, one)
    return low >> (work - bits), _up(high, 1 << (work - bits))


def below(word: int, bounds: Bounds, more: Callable[[], int]) -> bool:
    """Is a uniform real number, whose first 64 bits are `word`, below a probability?

    bounds: from a number of bits to whole numbers around 2^bits times the probability.
    more: the next 64 bits of the number. They are read until the answer is certain.
    """
    value, bits = word, WORD
    while True:
        lower, upper = bounds(bits)
        if value < lower:
            return True
        if value >= upper:
            return False
        value, bits = (value << WORD) | more(), bits + WORD


def _up(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)
