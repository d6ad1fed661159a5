"""Tilted laws as weighted points, and their transforms on a uniform grid of frequencies.

With M(z) = int e^{zx} dF(x) and points x_j of weight p_j (the tilted law at c, summing to 1),
M(c + iy)/M(c) = e^{i y m} (1 + sum_j p_j (e^{iy d_j} - 1)),   d_j = x_j - m,  m any centre.
Writing frequency n dy as a dy + b A dy, e^{iy d} - 1 = u + v + u v with u, v small: thin tables and
one matrix product replace a table of all frequencies, and no digit is lost for |y d| << 1. The thin
tables are made from thinner ones in the same way, so that few sines are taken.
Every array has one row for each law of a family.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import UNIT

__all__ = ["ComplexArray", "TiltedNodes", "tilted_nodes", "log1p_complex", "log_error"]

ComplexArray = NDArray[np.complex128]
# e^{iyd} - 1 (laws, frequencies, points), and sum_j p_j (e^{iy d_j} - 1 - iy d_j)
_Turned = tuple[ComplexArray, ComplexArray]
_TABLE = 1 << 15  # entries of a table, to stay within the cache
_FEW = 12  # frequencies for which sines cost less than products
_SMALL, _UNKNOWN = 0.01, 1e100  # -ln(1 - x) <= 1.01 x up to the first
_NEGLIGIBLE = 1e-26  # weights left out; what they add up to counts as an error


def log1p_complex(x: ComplexArray) -> ComplexArray:
    """ln(1 + x) on the principal branch, accurate for small |x|; ln of 0 becomes ln 1e-300."""
    square = x.real * (2.0 + x.real) + x.imag * x.imag  # |1+x|^2 - 1
    modulus = 0.5 * np.log1p(np.maximum(square, -0.75))
    near = square > -0.75
    if not near.all():
        direct = np.log(np.maximum(np.hypot(1.0 + x.real, x.imag), 1e-300))
        modulus = np.where(near, modulus, direct)
    return np.asarray(modulus + 1j * np.arctan2(x.imag, 1.0 + x.real))


def _rotations(phase: FloatArray) -> tuple[ComplexArray, FloatArray]:
    """e^{i phase} - 1, and the imaginary part of e^{i phase} - 1 - i phase, all to a few units.

    The real parts of both are the same, and the sines, which cost most, are taken once.
    """
    turned = np.empty(phase.shape, dtype=np.complex128)
    half = np.sin(0.5 * phase)
    turned.real = -2.0 * half * half
    turned.imag = np.sin(phase)
    curved = turned.imag - phase
    small = np.abs(phase) < 1.0  # where sin x - x would lose digits
    curved[small] = _sine_minus(phase[small])
    return turned, curved


def _sine_minus(x: FloatArray) -> FloatArray:
    """sin x - x = -x^3/6 (1 - x^2/20 (1 - x^2/42 (...))) for |x| < 1."""
    square = x * x
    series = np.ones_like(x)
    for k in (210.0, 156.0, 110.0, 72.0, 42.0, 20.0):
        series = 1.0 - square / k * series
    return np.asarray(-x * square / 6.0 * series)


def _direct(step: float, count: int, d: FloatArray, p: FloatArray) -> _Turned:
    turned, curved = _rotations((np.arange(count) * step)[:, None] * d)
    return turned, np.sum(turned.real * p, axis=2) + 1j * np.sum(curved * p, axis=2)


def _multiples(step: float, count: int, d: FloatArray, p: FloatArray) -> _Turned:
    """The table at y = 0, step, ..., for points d of weights p, both (laws, 1, points)."""
    if count <= _FEW:
        return _direct(step, count, d, p)
    inner = math.isqrt(count)
    near, far = _direct(step, inner, d, p), _direct(inner * step, -(-count // inner), d, p)
    u, v = near[0][:, None, :, :], far[0][:, :, None, :]
    turned = u * v
    turned += u
    turned += v
    turned = turned.reshape(len(p), -1, p.shape[2])
    return turned[:, :count], _joined(near, far, p)[:, :count]


def _joined(near: _Turned, far: _Turned, p: FloatArray) -> ComplexArray:
    """The weighted sums at all sums of two frequencies, those of `near` running fastest."""
    sums = far[0] @ (near[0] * p).transpose(0, 2, 1)
    sums += near[1][:, None, :]
    sums += far[1][:, :, None]
    return np.asarray(sums.reshape(len(p), -1))


@final
@dataclass(frozen=True)
class TiltedNodes:
    """log_mass = ln M(c) within log_mass_error; the points stand for the law tilted by e^{cx}.

    relative, point_error: bounds on the rounding of each weight and each point; common: of a factor
    of all weights of a law. fixed_error: bound on the quadrature error and what was left out, in
    units of M(c).
    """

    log_mass: FloatArray  # (laws,)
    log_mass_error: FloatArray
    centre: FloatArray
    deviations: FloatArray  # (laws, points)
    weights: FloatArray
    relative: FloatArray
    point_error: FloatArray
    common: FloatArray
    fixed_error: FloatArray

    @property
    def size(self) -> int:
        return self.weights.size

    def transform(self, step: float, count: int) -> tuple[ComplexArray, FloatArray]:
        """x = transform - 1 without e^{iym}, at y = 0, step, ..., and the bound on its error."""
        y = np.arange(count, dtype=np.float64) * step
        # sum p d is 0 but for rounding; taken exactly, it leaves only terms of second order
        linear = np.array([math.fsum(row) for row in (self.weights * self.deviations).tolist()])
        x = self._curved_sums(step, count) + 1j * (linear[:, None] * y)
        error = self.fixed_error[:, None] + self._error(y) + self.common[:, None] * np.abs(x)
        return x, error

    def _curved_sums(self, step: float, count: int) -> ComplexArray:
        """sum_j p_j (e^{iy d_j} - 1 - iy d_j) at y = n step, by blocks of points."""
        inner = max(1, math.isqrt(count))
        outer = -(-count // inner)
        laws, points = self.weights.shape
        x = np.zeros((laws, outer * inner), dtype=np.complex128)
        block = max(64, _TABLE // (inner * laws))
        for first in range(0, points, block):
            d = self.deviations[:, None, first : first + block]
            p = self.weights[:, None, first : first + block]
            near = _multiples(step, inner, d, p)
            x += _joined(near, _multiples(inner * step, outer, d, p), p)
        return x[:, :count]

    def _error(self, y: FloatArray) -> FloatArray:
        """Rounding: of points and weights (first order in y), of sums and products (second)."""
        weights, size = self.weights, np.abs(self.deviations)
        spread = np.sum(weights * size, axis=1)[:, None]
        second = np.sum(weights * size * size, axis=1)[:, None]
        slope = np.sum(weights * (size * (self.relative + 4.0 * UNIT) + self.point_error), axis=1)
        # With phases a, b, c, d of the four thinnest tables, a + b + c + d = y |d_j|: the products
        # add up to at most ab + cd + (a+b)(c+d) <= (yd)^2/2, and to at most 4 + yd.
        # 96 units: phases, sines, tables, pairwise sums, one for each block; n + 8 for products
        units = 96.0 + math.isqrt(len(y)) * weights.size / _TABLE + 2.0 * (weights.shape[1] + 8)
        curved = np.minimum(0.5 * y * y * second, 4.1 + y * spread)
        return np.asarray(1.01 * (y * slope[:, None] + units * UNIT * curved))


def log_error(share: FloatArray) -> FloatArray:
    """What an error of M, as a share of M, does to ln M; of which nothing is known from 1 on."""
    large = np.where(share < 0.99, -1.01 * np.log1p(-np.minimum(share, 0.99)), _UNKNOWN)
    return np.where(share <= _SMALL, 1.01 * share, large)


def tilted_nodes(
    points: FloatArray,
    exponents: FloatArray,
    mass: tuple[FloatArray, FloatArray],
    exponent_error: FloatArray,
    point_error: FloatArray,
    quadrature: FloatArray,
) -> TiltedNodes:
    """Points x_j with unnormalised tilted weights e^exponent, where ln M = mass[0] +- mass[1].

    quadrature: bound on |M(c+iy) - sum|/M for every frequency allowed (0 too), not in mass[1].
    Columns of negligible weight are left out; their weight counts as an error.
    """
    value, rounding = mass
    p = np.exp(exponents - value[:, None])
    keep = np.any(p > _NEGLIGIBLE, axis=0)
    left_out = np.sum(p[:, ~keep], axis=1)
    p, x = p[:, keep], points[:, keep]
    centre = np.sum(p * x, axis=1)
    return TiltedNodes(
        log_mass=value,
        log_mass_error=log_error(quadrature) + rounding,
        centre=centre,
        deviations=x - centre[:, None],
        weights=p,
        relative=exponent_error[:, keep],
        point_error=point_error[:, keep],
        common=2.0 * UNIT * (np.abs(value) + 4.0) + 1.01 * rounding,
        fixed_error=4.2 * quadrature + 2.1 * left_out,
    )
