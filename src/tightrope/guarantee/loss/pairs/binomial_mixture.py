"""The likelihood ratio of a binomial mixture of normals to N(0,1).

A(x) = sum_k Bin(size, rate)(k) e^{k mu x - k^2 mu^2/2}.

All zeros of A, a polynomial in y = e^{mu x}, are real and negative: those of sum b_k y^k are, and
1 + s y d/dy and 1 - s y d/dy keep such polynomials so for 0 < s < 1/K (Rolle's theorem on y^{1/s} A
and y^{-1/s} A); the factors e^{-k^2 mu^2/2} are the limit of products of both. So A is a product of
K factors 1 - q_j + q_j y: given x, k is a sum of independent Bernoulli variables of chances t_j(x)
that rise with x. Its mean m(x) = (ln A)'/mu rises, its variance is at most m (1 - m/K), and each
factor obeys the bounds of one sampled Gaussian (docs/certificate_argument.md, 3.5).
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import final

import numpy as np
from scipy.special import log_ndtr

from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

_HUGE = 600.0  # an exponent too large to be taken
_FARTHEST = 1e9  # of points
_REACH, _TINY = 300.0, 92.0  # largest |k mu x| of a stretch; nats of terms that are left out
_AT_ONCE = 4096  # points, so that their powers stay in the cache


@final
class Arm:
    """A(x) = sum_k Bin(size, rate)(k) e^{k mu x - k^2 mu^2/2}."""

    def __init__(self, rate: float, mu: float, size: int) -> None:
        self.mu, self.size = mu, size
        self.weights, self.logs = _binomial(rate, size)
        self.k = np.arange(1.0, size + 1.0)
        self.ones = np.ones(size)
        self.terms: dict[float, tuple[FloatArray, float]] = {}

    def log(self, x: FloatArray) -> FloatArray:
        """ln A, with a small relative error where A is near 1."""
        if self.size == 0:
            return np.zeros_like(x)
        (rest,), scale = self._sums(x, self.ones)
        return self._log(rest, scale)

    def log_and_mean(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`log` and `mean` in one go."""
        if self.size == 0:
            return np.zeros_like(x), np.zeros_like(x)
        (rest, first), scale = self._sums(x, self.ones, self.k)
        whole = rest + np.exp(np.minimum(self.logs[0] - scale, _HUGE))
        return self._log(rest, scale), np.asarray(first / whole)

    def _log(self, rest: FloatArray, scale: FloatArray) -> FloatArray:
        """ln A from the sum over k >= 1, in units of e^scale."""
        first, missing = self.logs[0], float(self.weights[1:].sum())
        log_rest = np.log(rest) + scale
        over = np.exp(np.minimum(log_rest, _HUGE)) - missing  # A - 1
        found = np.asarray(np.log1p(np.maximum(over, -0.5)))
        far = (over <= -0.5) | (log_rest >= _HUGE)
        if bool(np.any(far)):  # a sum of terms that cannot cancel
            found[far] = np.logaddexp(log_rest[far], first)
        return found

    def mean(self, x: FloatArray) -> FloatArray:
        """m(x), the expected k given x."""
        return self._expected(x, self.k)[0]

    def _expected(self, x: FloatArray, *values: FloatArray) -> tuple[FloatArray, ...]:
        """The expectations of functions of k that are 0 at 0."""
        if self.size == 0:
            return tuple(np.zeros_like(x) for _ in values)
        (rest, *sums), scale = self._sums(x, self.ones, *values)
        whole = rest + np.exp(np.minimum(self.logs[0] - scale, _HUGE))
        return tuple(np.asarray(total / whole) for total in sums)

    def _sums(self, x: FloatArray, *values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sums over k >= 1 of values_k b_k e^{k mu x - k^2 mu^2/2} in units of e^scale, and scale.

        They are polynomials of e^{mu (x - centre)}, taken on stretches on which no power leaves the
        range of doubles.
        """
        flat, weights = np.clip(x.reshape(-1), -_FARTHEST, _FARTHEST), np.stack(values)
        sums, scale = np.empty((len(values), flat.size)), np.empty(flat.size)
        width = 2.0 * _REACH / (self.mu * self.size)
        stretch = np.round(flat / width)
        if flat.size and flat.size <= _AT_ONCE and stretch.min() == stretch.max():
            sums, scale[:] = self._around(width * float(stretch[0]), flat, weights)
            return sums.reshape(len(values), *x.shape), scale.reshape(x.shape)
        for number in np.unique(stretch):
            at = np.flatnonzero(stretch == number)
            for first in range(0, len(at), _AT_ONCE):
                part = at[first : first + _AT_ONCE]
                sums[:, part], scale[part] = self._around(width * number, flat[part], weights)
        return sums.reshape(len(values), *x.shape), scale.reshape(x.shape)

    def _around(
        self, centre: float, x: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, float]:
        if centre not in self.terms:
            exponents = self.logs[1:] + self.k * (self.mu * centre) - 0.5 * (self.mu * self.k) ** 2
            top = float(exponents.max())
            held = int(np.flatnonzero(exponents > top - 2.0 * _REACH - _TINY)[-1]) + 1
            self.terms[centre] = np.exp(exponents[:held] - top), top
        terms, scale = self.terms[centre]
        powers = _powers(np.exp(self.mu * (x - centre)), len(terms))
        return (weights[:, : len(terms)] * terms) @ powers, scale

    def log_error(self, x: FloatArray, value: FloatArray) -> FloatArray:
        """Rounding of ln A: of the exponents (points included) and weights of k >= 1, and of sums.

        Terms with e^u near 0 count with their weight: e^u - 1 is right to a few units there.
        """
        if self.size == 0:
            return np.zeros_like(x)
        sums = 16.0 + 2.0 * self.size + 4.0 * np.abs(self.logs[1:])
        steady, mean = self._expected(x, 4.0 * (self.mu * self.k) ** 2 + sums, self.k)
        floor = (float(self.weights[1:] @ sums) + 1e-20) * np.exp(np.minimum(-value, 0.0))
        moved = steady + 6.0 * self.mu * np.abs(x) * mean
        return np.asarray(UNIT * (moved + floor + 8.0 * np.abs(value)))

    def log_above(self, point: FloatArray) -> FloatArray:
        """ln of the mass of sum_k b_k N(k mu, 1) beyond a point."""
        return log_sum_exp(log_ndtr(self._centred(-1.0, point)) + self.logs)

    def log_below(self, point: FloatArray) -> FloatArray:
        return log_sum_exp(log_ndtr(self._centred(1.0, point)) + self.logs)

    def quantile(self, log_mass: float) -> float:
        """A point with about this ln of the mass beyond it, or less."""
        low, high = 0.0, self.mu * self.size + math.sqrt(2.0 * abs(log_mass)) + 1.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            rare = float(self.log_above(np.array(middle))) < log_mass
            low, high = (low, middle) if rare else (middle, high)
        return high

    def _centred(self, sign: float, point: FloatArray) -> FloatArray:
        return sign * (np.asarray(point)[..., None] - self.mu * np.arange(self.size + 1.0))


def _powers(y: FloatArray, most: int) -> FloatArray:
    """(most, len(y)): y, y^2, ..."""
    powers = np.empty((most, len(y)))
    powers[0], done = y, 1
    while done < most:
        more = min(done, most - done)
        np.multiply(powers[:more], powers[done - 1], out=powers[done : done + more])
        done += more
    return powers


@lru_cache(maxsize=64)
def _binomial(rate: float, size: int) -> tuple[FloatArray, FloatArray]:
    """Bin(size, rate) and its logarithms, each rounded once."""
    with localcontext() as context:
        context.prec = 40
        context.Emin = -999999
        hit = Decimal(rate)
        miss = 1 - hit
        chances = [math.comb(size, k) * hit**k * miss ** (size - k) for k in range(size + 1)]
        return np.array([float(c) for c in chances]), np.array([float(c.ln()) for c in chances])
