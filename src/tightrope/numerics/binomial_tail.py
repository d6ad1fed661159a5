"""P(Bin(n, q) >= k) in decimal arithmetic.

Error: 50 digits; Stirling's series for ln n! is cut after the term of 1/n^15, below 1e-32 from
n = 200 on; what is left out of a sum is below 1e-32 of it. The result is right to 1e-25, relative,
before it is rounded to a double by whoever asks.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

_DIGITS = 50
_HALF_LOG_2PI = Decimal("0.91893853320467274178032973640561763986139747363778")
_STIRLING = (  # of 1/n, 1/n^3, ...
    (1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156), (-3617, 122400)
)  # fmt: skip
_SMALL = 200
_NEGLIGIBLE = Decimal(10) ** -32


def _log_factorial(n: int) -> Decimal:
    if n < _SMALL:
        return Decimal(math.factorial(n)).ln()
    x = Decimal(n)
    series = sum(
        (Decimal(a) / Decimal(b) / x ** (2 * i + 1) for i, (a, b) in enumerate(_STIRLING)),
        Decimal(0),
    )
    return (x + Decimal("0.5")) * x.ln() - x + _HALF_LOG_2PI + series


def _mass(n: int, k: int, hit: Decimal) -> Decimal:
    """P(Bin(n, hit) = k)."""
    ways = _log_factorial(n) - _log_factorial(k) - _log_factorial(n - k)
    return (ways + k * hit.ln() + (n - k) * (1 - hit).ln()).exp()


@lru_cache(maxsize=64)
def binomial_tail(n: int, rate: float, k: int) -> Decimal:
    """P(Bin(n, rate) >= k), the rate being the exact number that the float is, 0 < rate < 1."""
    if k <= 0:
        return Decimal(1)
    if k > n:
        return Decimal(0)
    with localcontext() as context:
        context.prec = _DIGITS
        context.Emin = -(10**9)
        hit = Decimal(rate)
        if k > n * hit:
            return _summed(n, k, hit, 1)
        return 1 - _summed(n, k - 1, hit, -1)


def _summed(n: int, k: int, hit: Decimal, way: int) -> Decimal:
    """The masses from k on, upwards or downwards, away from the mean: they fall ever faster."""
    odds = hit / (1 - hit)
    term = total = _mass(n, k, hit)
    while 0 <= k + way <= n and term > 0:  # 0: below 10^-(10^9), and so is all that follows
        ratio = odds * (n - k) / (k + 1) if way > 0 else Decimal(k) / ((n - k + 1) * odds)
        term, k = term * ratio, k + way
        total += term
        if ratio < 1 and term * ratio < _NEGLIGIBLE * (1 - ratio) * total:
            break
    return total
