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


def log1p_complex(x: ComplexArray) -> ComplexArray:
    """ln(1 + x) on the principal branch, accurate for small |x|; ln of 0 becomes ln 1e-300."""
    square = x.real * (2.0 + x.real) + x.imag * x.imag  # |1+x|^2 - 1
    modulus = 0.5 * np.log1p(np.maximum(square, -1.0 + 1e-300))
    near = square > -0.5
    if not near.all():
        direct = np.log(np.maximum(np.hypot(1.0 + x.real, x.imag), 1e-300))
        modulus = np.where(near, modulus, direct)
    return np.asarray(modulus + 1j * np.arctan2(x.imag, 1.0 + x.real))


@final
@dataclass(frozen=True)
class TiltedNodes:
    """log_mass = ln M(c) within log_mass_error; the points stand for the law tilted by e^{cx}.

    Error of the transform at y <= frequency: fixed_error (quadrature and what was left out, in
    units of M(c)) + y * slope_error (rounding of points and weights) + that of the product.
    """

    log_mass: float
    log_mass_error: float
    centre: float
    deviations: FloatArray
    weights: FloatArray
    fixed_error: float
    slope_error: float
    frequency: float

    def transform(self, step: float, count: int) -> tuple[ComplexArray, FloatArray]:
        """x = transform - 1 without e^{iym}, at y = 0, step, ..., and the bound on its error."""
        inner = max(1, math.isqrt(count))
        outer = -(-count // inner)
        near = _expm1_i(np.outer(np.arange(inner) * step, self.deviations))
        far = _expm1_i(np.outer(np.arange(outer) * (inner * step), self.deviations))
        weighted = near * self.weights
        x = (far @ weighted.T) + np.sum(weighted, axis=1)
        x += np.sum(far * self.weights, axis=1)[:, None]
        return np.asarray(x.reshape(-1)[:count]), self._error(np.arange(count) * step)

    def _error(self, y: FloatArray) -> FloatArray:
        second = float(np.sum(self.weights * self.deviations**2))
        product = 4.0 * UNIT * (len(self.weights) + 8) * np.minimum(0.25 * y * y * second, 4.0)
        spread = float(np.sum(self.weights * np.abs(self.deviations)))
        # 40 units: phases, sines, pairwise sums of up to 2^20 terms
        return self.fixed_error + y * (self.slope_error + 40.0 * UNIT * spread) + product


def _expm1_i(phase: FloatArray) -> ComplexArray:
    """e^{i phase} - 1, each part with a small relative error."""
    out = np.empty(phase.shape, dtype=np.complex128)
    half = np.sin(0.5 * phase)
    out.real = -2.0 * half * half
    out.imag = np.sin(phase)
    return out


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
    """
    value, rounding = mass
    p = np.exp(exponents - value)
    keep = p > 1e-40
    left_out = float(np.sum(p[~keep]))
    p, x, x_error = p[keep], points[keep], point_error[keep]
    centre = float(p @ x)
    d = x - centre
    relative = exponent_error[keep] + 2.0 * UNIT * (abs(value) + 4.0) + rounding
    slope = p * (np.abs(d) * relative + x_error + UNIT * (np.abs(d) + abs(centre)))
    return TiltedNodes(
        log_mass=value,
        log_mass_error=1.01 * quadrature + rounding,
        centre=centre,
        deviations=d,
        weights=p,
        fixed_error=4.2 * quadrature + 2.1 * left_out,
        slope_error=1.01 * float(np.sum(slope)),
        frequency=frequency,
    )
