"""Smooth windows on the size of one step's loss: which steps a part of a sampled law is made of.

With b = q e^u (so that r = 1 - q + b) a step of size b is below the size B with the share
Q(m, x) = e^-x sum_{k<m} x^k/k!, x = m b/B, and above it with P = 1 - Q. Both are entire in b. On
b e^{i theta} the modulus of Q is at most e^{x (1 - cos theta)} Q(m, x), that of P the same with P;
as 1 - P and 1 - Q they are also at most 1 plus the bound of the other. Beyond B, Q falls like e^-x,
so that it holds tilts e^{zL} up to about z = m/B back, which no window of Gaussian shape does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.numerics.quadrature import UNIT, FloatArray

__all__ = ["Window", "ORDER", "shares", "log_tail"]

ORDER = 36
_LOG_FACTORIAL = math.lgamma(ORDER + 1.0)
_FARTHEST = 600.0  # x up to which shares are computed: Q is below e^-450 from there on
_AT_ONCE = 9  # terms of a series added up by one matrix product
_CHUNK = 8192  # values of a series in work at one time: about a megabyte
_LARGEST_TILT = 0.6  # of m/B, see max_tilt


def _in_rows(coefficients: list[Fraction]) -> FloatArray:
    values = [float(c) for c in coefficients]
    return np.array(values + [0.0] * (-len(values) % _AT_ONCE)).reshape(-1, _AT_ONCE)


# 1/k! for k < m, and m!/(m+k)! for k <= 2m
_FALLING = _in_rows([Fraction(1, math.factorial(k)) for k in range(ORDER)])
_RISING = _in_rows(
    [Fraction(math.factorial(ORDER), math.factorial(ORDER + k)) for k in range(2 * ORDER + 1)]
)


def shares(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln Q(m, x) and ln P(m, x), each with a relative error below 4 m units of e^value."""
    x = np.clip(x, 1e-250, _FARTHEST)
    above = x > ORDER
    log_q, log_p = np.empty_like(x), np.empty_like(x)
    far, near = x[above], x[~above]
    # e^-x sum_{k<m} x^k/k!, and P = e^-x x^m/m! (1 + x/(m+1) (1 + x/(m+2) (...)))
    log_q[above] = -far + np.log(_series(far, _FALLING))
    series = _series(near, _RISING)
    log_p[~above] = -near + ORDER * np.log(near) - _LOG_FACTORIAL + np.log(series)
    log_p[above] = np.log1p(-np.exp(log_q[above]))
    log_q[~above] = np.log1p(-np.exp(log_p[~above]))
    return log_q, log_p


def _series(x: FloatArray, coefficients: FloatArray) -> FloatArray:
    """sum_k c_k x^k for c_0 = 1 and c_k <= 1, so many values at a time as stay near."""
    found = np.empty_like(x)
    for begin in range(0, len(x), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        found[part] = _series_part(x[part], coefficients)
    return found


def _series_part(x: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Powers up to the 8th at once, then Horner in x^9.

    At most 3 ORDER roundings, all terms being positive; no power of x from 1e-17 on underflows.
    """
    x = np.maximum(x, 1e-17)
    powers = np.empty((_AT_ONCE, len(x)))
    powers[0] = 1.0
    for k in range(1, _AT_ONCE):
        np.multiply(powers[k - 1], x, out=powers[k])
    parts, power = coefficients @ powers, powers[-1] * x
    total = parts[-1]
    for part in parts[-2::-1]:
        total *= power
        total += part
    return np.asarray(total)


@final
@dataclass(frozen=True)
class Window:
    """The share P(b > start) Q(b < end) of each step; one row for each law.

    log_start or log_end None: no such end.
    """

    log_start: FloatArray | None = None  # (rows, 1)
    log_end: FloatArray | None = None

    def repeated(self, times: int) -> Window:
        """The rows, `times` times one after the other."""
        start, end = (
            None if at is None else np.tile(at, (times, 1)) for at in (self.log_start, self.log_end)
        )
        return Window(start, end)

    def log_rising(self, log_b: FloatArray) -> FloatArray:
        return np.zeros_like(log_b) if self.log_start is None else shares(self._x(log_b, True))[1]

    def log_falling(self, log_b: FloatArray) -> FloatArray:
        """-inf where the share is below e^-450."""
        if self.log_end is None:
            return np.zeros_like(log_b)
        x = self._x(log_b, False)
        return np.where(x < _FARTHEST, shares(x)[0], -np.inf)

    def log_share(self, log_b: FloatArray) -> FloatArray:
        return np.asarray(self.log_rising(log_b) + self.log_falling(log_b))

    def log_share_and_error(
        self, log_b: FloatArray, size: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """The share, and its relative rounding; size: what was added up to ln b.

        Of x: ln b and the end are rounded thrice each, and x P'/P <= m, x Q'/Q <= m P/Q and <= x.
        Of the formulas: 3 m roundings of a series, and the terms of the exponent. Where a share is
        near 1 only the other one, which is small, is rounded.
        """
        share, total = np.zeros_like(log_b), np.full(log_b.shape, 8.0 * UNIT)
        for at, start in ((self.log_start, True), (self.log_end, False)):
            if at is None:
                continue
            x = self._x(log_b, start)
            log_q, log_p = shares(x)
            share = share + (log_p if start else np.where(x < _FARTHEST, log_q, -np.inf))
            slope = ORDER if start else np.minimum(np.maximum(x, ORDER), _FARTHEST)
            terms = np.minimum(x, _FARTHEST) + ORDER * (4.0 + np.abs(np.log(np.maximum(x, 1e-300))))
            own = slope * (8.0 + 3.0 * (size + np.abs(at))) + 2.0 * (terms + _LOG_FACTORIAL)
            total = total + 2.0 * UNIT * np.exp(log_q if start else log_p) * own
        return share, total

    def dropped(self, log_b: FloatArray) -> FloatArray:
        """1 - share, for a window without a start."""
        assert self.log_start is None
        return np.asarray(np.exp(shares(self._x(log_b, False))[1]))

    def _x(self, log_b: FloatArray, start: bool) -> FloatArray:
        at = self.log_start if start else self.log_end
        assert at is not None
        return np.exp(np.minimum(log_b - at + math.log(ORDER), 600.0))

    def max_tilt(self, rate: FloatArray) -> float:
        """The largest tilt whose r^w Q falls beyond x = 600 on every line with theta <= pi/3.

        There (ln |r^w|)' = w mu b (b + (1-q) cos)/|1-q+b e^{i theta}|^2 is at most
        0.6 * 1.155 * 1.06 mu x cos for w <= 0.6 m (1-q+B)/B, and (ln |Q|)' <= mu (m - 1 - x cos).
        """
        if self.log_end is None:
            return math.inf
        end = np.exp(np.minimum(self.log_end, 600.0))
        return float(np.min(_LARGEST_TILT * ORDER * (1.0 - rate + end) / end)) - 1.0

    def log_last(self) -> FloatArray | None:
        """ln b where x = 600."""
        return None if self.log_end is None else self.log_end[:, 0] + math.log(_FARTHEST / ORDER)

    def log_first(self, nats: FloatArray) -> FloatArray | None:
        """ln b where the share of the start is about e^-nats."""
        if self.log_start is None:
            return None
        return np.asarray(self.log_start[:, 0] - math.log(ORDER) + (_LOG_FACTORIAL - nats) / ORDER)

    def log_outside(self, log_b: FloatArray, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln of bounds on |share| left of the first and right of the second of two ln b.

        Right of x = m/cos the modulus of Q falls; before that it is at most e^{m (1 - cos)/cos}.
        """
        cos, left, right = np.cos(theta), np.zeros_like(theta), np.zeros_like(theta)
        if self.log_start is not None:
            x = self._x(log_b[:, :1], True)
            left = left + shares(x)[1] + x * (1.0 - cos)
            right = right + np.logaddexp(0.0, ORDER * (1.0 - cos) / cos)
        if self.log_end is not None:
            x = self._x(log_b[:, :1], False)
            left = left + np.logaddexp(0.0, shares(x)[1] + x * (1.0 - cos))
            x = self._x(log_b[:, 1:], False)
            falling = np.where(x > ORDER, -x * cos + _log_sum(x), 0.0)
            right = right + np.where(x * cos > ORDER, falling, ORDER * (1.0 - cos) / cos)
        return left, right

    def log_cells(self, log_b: FloatArray, theta: FloatArray) -> FloatArray:
        """ln of bounds on |share| in each cell at several angles, (rows, depths, cells).

        log_b rises along the edges, (rows, cells + 1); theta < pi/2 has shape (rows, depths, 1).
        """
        turn = 1.0 - np.cos(theta)
        total = np.zeros((1, 1, 1))
        for start in (True, False):
            if (self.log_start if start else self.log_end) is None:
                continue
            x = self._x(log_b, start)
            log_q, log_p = shares(x)
            own_q = self._on_cells(x, log_q, turn, False)
            own_p = self._on_cells(x, log_p, turn, True)
            one, other = (own_p, own_q) if start else (own_q, own_p)
            total = total + np.minimum(one, np.logaddexp(0.0, other))
        return np.asarray(total)

    @staticmethod
    def _on_cells(
        x: FloatArray, log_share: FloatArray, turn: FloatArray, rises: bool
    ) -> FloatArray:
        """(1 - cos) x + ln of the share, x at the right end and the share at its larger end."""
        share = log_share[:, 1:] if rises else log_share[:, :-1]
        left, right = x[:, None, :-1], x[:, None, 1:]
        value = turn * right + share[:, None, :]
        if rises:
            return value
        # far out e^{-x cos} sum x^k/k! falls
        far = -left * (1.0 - turn) + _log_sum(left)
        return np.where(left * (1.0 - turn) > ORDER, np.minimum(value, far), value)


def _log_sum(x: FloatArray) -> FloatArray:
    """ln of a bound on sum_{k<m} x^k/k! for x > m: the last term over 1 - (m-1)/x."""
    y = np.maximum(x, ORDER + 1.0)
    last = (ORDER - 1) * np.log(y) - math.lgamma(ORDER)
    return np.asarray(last - np.log1p(-(ORDER - 1) / y))


def log_tail(s: FloatArray, log_rate: FloatArray, mu: FloatArray) -> FloatArray:
    """ln of a bound on the mass of (1-q) N(0,1) + q N(mu,1) beyond s, at most 1 + q too large."""
    return np.asarray(np.logaddexp(log_ndtr(-s), log_rate + log_ndtr(mu - s)))
