"""The discrete Gaussian on the whole numbers, drawn exactly.

Statement: for a whole number s >= 1, `DiscreteGaussian(s)` gives k with probability exactly
    exp(-k^2 / (2 s^2)) / sum over all whole j of exp(-j^2 / (2 s^2)),
provided that the words it reads are independent and uniform. No rounding enters the law.

Method (rejection; Karney 2016; Canonne, Kamath and Steinke 2020 for the sampler with Laplace
proposals). With blocks of width w = max(1, floor(s/8)):
 1. a block j >= 0 with probability proportional to exp(-(j w)^2 / (2 s^2)), by inversion;
 2. a place u in the block, uniform on 0, ..., w - 1;
 3. kept with probability exp(-u (2 j w + u) / (2 s^2)), which is at most 1, so that m = j w + u
    comes with probability proportional to exp(-m^2 / (2 s^2));
 4. a fair sign; minus zero is dropped, so that zero is not counted twice.
About 95 of 100 candidates are kept.

Exactness. A word is the first 64 bits of a uniform real number U. In step 1 the limits are known
as whole numbers around their 2^64-fold; in step 3 the probability is computed in float64 with an
absolute error below 2^-44 (see `_exp_minus`). Where U is so near the limit that the answer is not
certain (in step 3 within _MARGIN = 2^-40, once in 10^12 draws), more bits of U are read and
compared with bounds in whole numbers until it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import InvalidInput

# Up to this every whole number of step 3 is exact in float64.
LARGEST_SCALE = 2**44
_BLOCKS = 8  # to one s
_MARGIN = 2.0**-40
_TOGETHER = 2**15  # candidates at once: they stay in the cache
_COEFFICIENTS = [(-1.0) ** k / math.factorial(k) for k in range(13)]

Words = Callable[[int], NDArray[np.uint64]]
Whole = NDArray[np.int64]
Real = NDArray[np.float64]


@final
class DiscreteGaussian:
    """Draws whole numbers k with probability proportional to exp(-k^2 / (2 scale^2))."""

    def __init__(self, scale: int) -> None:
        if isinstance(scale, bool) or not isinstance(scale, int) or not 1 <= scale <= LARGEST_SCALE:
            raise InvalidInput(
                f"The scale of a discrete Gaussian must be a whole number from 1 to 2^44; got "
                f"{scale!r}."
            )
        self.scale = scale
        self._width = max(1, scale // _BLOCKS)
        self._largest_place = 2**WORD // self._width * self._width - 1
        self._sure, self._possible = _limits(scale, self._width)

    def draw(self, count: int, words: Words) -> Whole:
        """`count` independent draws. words: gives so many independent uniform 64-bit words."""
        found: list[Whole] = []
        missing = count
        while missing > 0:
            candidates = min(_TOGETHER, missing + missing // 16 + 8)
            kept = self._candidates(candidates, words)[:missing]
            found.append(kept)
            missing -= len(kept)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _candidates(self, count: int, words: Words) -> Whole:
        raw = words(3 * count)
        first, second, third = raw[:count], raw[count : 2 * count], raw[2 * count :]

        def more() -> int:
            return int(words(1)[0])

        block = self._blocks(first, more)
        usable = second <= np.uint64(self._largest_place)
        place = (second % np.uint64(self._width)).astype(np.int64)
        kept = usable & self._kept(block, place, third, more)
        size = block * self._width + place
        negative = np.unpackbits(words(-(-count // WORD)).view(np.uint8))[:count].view(bool)
        kept &= ~(negative & (size == 0))
        return np.where(negative, -size, size)[kept]

    def _blocks(self, words: NDArray[np.uint64], more: Callable[[], int]) -> Whole:
        """Step 1: how many of the limits P(block >= j), j = 1, 2, ..., are above U."""
        certain = _above(self._sure, words)
        unclear = np.flatnonzero(certain != _above(self._possible, words))
        for i in unclear:
            certain[i] = _block(self.scale, self._width, int(words[i]), more)
        return certain

    def _kept(
        self, block: Whole, place: Whole, words: NDArray[np.uint64], more: Callable[[], int]
    ) -> NDArray[np.bool_]:
        """Step 3."""
        other = (2 * self._width) * block + place
        exponent = place.astype(np.float64) * other.astype(np.float64)
        exponent /= float(2 * self.scale**2)
        distance = _exp_minus(exponent) - words.astype(np.float64) * 2.0**-WORD
        kept = np.asarray(distance > 0.0)
        unclear = np.flatnonzero((np.abs(distance) <= _MARGIN) | (exponent > 2.0))
        for i in unclear:
            fraction = int(place[i]) * int(other[i]), 2 * self.scale**2
            kept[i] = below(int(words[i]), partial(exp_bounds, *fraction), more)
        return kept


def _exp_minus(x: Real) -> Real:
    """exp(-x) for 0 <= x <= 2 with an absolute error below 2^-44, x being good to 4 units.

    The series of exp(-x/8), 13 terms, squared three times. With u = 2^-53: Horner's rule errs by
    at most 26 u times the sum of the terms' sizes, which is below 1.65 times the result; the
    rounded coefficients add u, the terms left out (1/4)^13 / 13! < u. Squaring doubles the relative
    error three times and adds 7 u: 8 (26 * 1.65 + 2) u + 7 u < 367 u. The 4 units of x move the
    result by at most 8 u. Together below 2^-44. Only sums and products of float64 are used, which
    IEEE 754 rounds as this needs.
    """
    y = x * 0.125
    value = np.full_like(y, _COEFFICIENTS[-1])
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        value *= y
        value += coefficient
    for _ in range(3):
        value *= value
    return value


def _above(limits: NDArray[np.uint64], words: NDArray[np.uint64]) -> Whole:
    """For each word, how many limits (which rise) are above it."""
    return len(limits) - np.searchsorted(limits, words, side="right")


@lru_cache(maxsize=16)
def _limits(scale: int, width: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Whole numbers below and above 2^64 P(block >= j), both rising (that is, j falling)."""
    sure, possible = (np.array(limits, dtype=np.uint64) for limits in _tails(scale, width, WORD))
    return sure[::-1].copy(), possible[::-1].copy()


def _block(scale: int, width: int, word: int, more: Callable[[], int]) -> int:
    """The block for a uniform number with these first 64 bits, reading more of them."""
    value, bits = word, WORD
    while True:
        value, bits = (value << WORD) | more(), bits + WORD
        sure, possible = _tails(scale, width, bits)
        block = sum(limit > value for limit in sure)
        if block == sum(limit > value for limit in possible):
            return block


def _tails(scale: int, width: int, bits: int) -> tuple[list[int], list[int]]:
    """Whole numbers below and above 2^bits P(block >= j) for j = 1, 2, ..., n.

    Below the last one nothing is certain: its lower bound is 0, its upper bound at least 1, and
    all later limits lie in between.
    """
    weights = _weights(scale, width, bits + 16)
    low, high = sum(w for w, _ in weights), sum(w for _, w in weights) + weights[-1][1]
    head_low = head_high = 0
    sure, possible = [], []
    for lower, upper in weights:
        head_low, head_high = head_low + lower, head_high + upper
        tail_low, tail_high = low - head_low, high - head_high
        sure.append((tail_low << bits) // (tail_low + head_high))
        possible.append(-(-(tail_high << bits) // (tail_high + head_low)))
    return sure, possible


def _weights(scale: int, width: int, bits: int) -> list[tuple[int, int]]:
    """Bounds of 2^bits exp(-(j width)^2 / (2 scale^2)), j = 0, 1, ..., down to one unit.

    From the last one on, each weight is at most half of the one before, so that all that follow
    add up to at most the last.
    """
    found: list[tuple[int, int]] = []
    while True:
        j = len(found)
        found.append(exp_bounds((j * width) ** 2, 2 * scale**2, bits))
        halved = (2 * j + 1) * width**2 * 10 >= 14 * scale**2  # exp(-0.7) < 1/2
        if halved and found[-1][1] <= 1:
            return found


# ---- exp(-x) of a rational x between two whole numbers, and coins that fall exactly so often -----
# Everything here is integer arithmetic: no rounding can move a probability.
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
