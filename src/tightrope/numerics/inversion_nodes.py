"""A tilted law as weighted points, and its transform on a uniform grid of frequencies.

With M(z) = int e^{zx} dF(x) and points x_j of weight p_j (the tilted law at c, summing to 1),
M(c + iy)/M(c) = e^{i y m} (1 + sum_j p_j (e^{iy d_j} - 1)),   d_j = x_j - m,  m any centre.
Writing frequency n dy as a dy + b A dy, e^{iy d} - 1 = u + v + u v with u, v small: two thin tables
and one matrix product replace a table of all frequencies, and no digit is lost for |y d| << 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tightrope.numerics.quadrature import UNIT, FloatArray

__all__ = ["ComplexArray", "TiltedNodes", "tilted_nodes", "log1p_complex"]

ComplexArray = NDArray[np.complex128]
_TABLE = 1 << 16  # entries of a table, to stay within the cache


def log1p_complex(x: ComplexArray) -> ComplexArray:
    """ln(1 + x) on the principal branch, accurate for small |x|; ln of 0 becomes ln 1e-300."""
    square = x.real * (2.0 + x.real) + x.imag * x.imag  # |1+x|^2 - 1
    modulus = 0.5 * np.log1p(np.maximum(square, -0.75))
    near = square > -0.75
    if not near.all():
        direct = np.log(np.maximum(np.hypot(1.0 + x.real, x.imag), 1e-300))
        modulus = np.where(near, modulus, direct)
    return np.asarray(modulus + 1j * np.arctan2(x.imag, 1.0 + x.real))


def _expm1_i(phase: FloatArray) -> ComplexArray:
    """e^{i phase} - 1, each part with a small relative error."""
    out = np.empty(phase.shape, dtype=np.complex128)
    half = np.sin(0.5 * phase)
    out.real = -2.0 * half * half
    out.imag = np.sin(phase)
    return out


@final
@dataclass(frozen=True)
class TiltedNodes:
    """log_mass = ln M(c) within log_mass_error; the points stand for the law tilted by e^{cx}.

    relative, point_error: bounds on the rounding of each weight and each point. fixed_error: bound
    on the quadrature error and what was left out, in units of M(c), for y <= frequency.
    """

    log_mass: float
    log_mass_error: float
    centre: float
    deviations: FloatArray
    weights: FloatArray
    relative: FloatArray
    point_error: FloatArray
    fixed_error: float
    frequency: float

    def transform(self, step: float, count: int) -> tuple[ComplexArray, FloatArray]:
        """x = transform - 1 without e^{iym}, at y = 0, step, ..., and the bound on its error."""
        y = np.arange(count, dtype=np.float64) * step
        return self._products(step, count), self.fixed_error + self._error(y)

    def _products(self, step: float, count: int) -> ComplexArray:
        """sum_j p_j (e^{iy d_j} - 1) at y = n step, by blocks of points."""
        inner = max(1, math.isqrt(count))
        outer = -(-count // inner)
        x = np.zeros((outer, inner), dtype=np.complex128)
        block = max(64, _TABLE // inner)
        for first in range(0, len(self.weights), block):
            d, p = self.deviations[first : first + block], self.weights[first : first + block]
            near = _expm1_i(np.outer(np.arange(inner) * step, d))
            far = _expm1_i(np.outer(np.arange(outer) * (inner * step), d))
            weighted = near * p
            x += (far @ weighted.T) + np.sum(weighted, axis=1)
            x += np.sum(far * p, axis=1)[:, None]
        return np.asarray(x.reshape(-1)[:count])

    def _error(self, y: FloatArray) -> FloatArray:
        """Rounding: of points and weights, of phases and sums, and of the matrix product."""
        weights, size = self.weights, np.abs(self.deviations)
        spread = float(weights @ size)
        second = float(weights @ (size * size))
        slope = float(weights @ (size * self.relative + self.point_error))
        slope += UNIT * (spread + float(np.sum(weights)) * abs(self.centre))
        # 40 units: phases, sines, pairwise sums; then one for each block
        units = 40.0 + math.isqrt(len(y)) * len(weights) / _TABLE
        product = 4.0 * UNIT * (len(weights) + 8)
        most = 4.0 * float(np.sum(weights))
        return 1.01 * y * (slope + units * UNIT * spread) + product * np.minimum(
            0.25 * y * y * second, most
        )


def tilted_nodes(
    points: FloatArray,
    exponents: FloatArray,
    mass: tuple[float, float],
    exponent_error: FloatArray,
    point_error: FloatArray,
    quadrature: float,
    frequency: float,
) -> TiltedNodes:
    """Points x_j with unnormalised tilted weights e^exponent, where ln M = mass[0] +- mass[1].

    quadrature: bound on |M(c+iy) - sum|/M for |y| <= frequency (0 included), not part of mass[1].
    Points of negligible weight are left out; their weight counts as an error.
    """
    value, rounding = mass
    p = np.exp(exponents - value)
    keep = p > 1e-40
    left_out = float(np.sum(p[~keep]))
    p, x = p[keep], points[keep]
    centre = float(p @ x)
    return TiltedNodes(
        log_mass=value,
        log_mass_error=1.01 * quadrature + rounding,
        centre=centre,
        deviations=x - centre,
        weights=p,
        relative=exponent_error[keep] + 2.0 * UNIT * (abs(value) + 4.0) + rounding,
        point_error=point_error[keep],
        fixed_error=4.2 * quadrature + 2.1 * left_out,
        frequency=frequency,
    )
