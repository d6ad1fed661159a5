"""K(z) of a pair for complex z, read off the points of its law, for comparison with slow sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.guarantee.loss.abstract import AbstractLossPair, law_of
from tightrope.numerics.inversion_law import log1p_complex
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray

_NATS = 42.0  # quadrature errors below 1e-18


@final
@dataclass(frozen=True)
class Enclosed:
    """|truth - value| <= error, elementwise."""

    value: NDArray[np.complex128]
    error: FloatArray


def cumulant(pair: AbstractLossPair, z: ArrayLike) -> Enclosed:
    """K(z) for complex z, the branch continuous along each vertical line not being followed.

    The imaginary part is that of the principal logarithm of e^{-iy m} M(z)/M(Re z), plus y m.
    """
    flat = np.atleast_1d(np.asarray(z, dtype=np.complex128))
    value, error = np.empty(flat.shape, np.complex128), np.empty(flat.shape)
    for index, point in np.ndenumerate(flat):
        value[index], error[index] = _cumulant_at(pair, complex(point))
    shape = np.shape(z)
    return Enclosed(value.reshape(shape), error.reshape(shape))


def _cumulant_at(pair: AbstractLossPair, z: complex) -> tuple[complex, float]:
    mu = pair.plain_mu
    if mu is not None:
        value = 0.5 * mu * mu * z * (z + 1.0)
        return value, 8.0 * UNIT * 0.5 * mu * mu * abs(z) * (abs(z) + 1.0)
    nodes = law_of(pair).nodes(z.real, abs(z.imag), _NATS)
    if z.imag == 0.0:
        return complex(nodes.log_mass[0]), float(nodes.log_mass_error[0])
    x, x_error = nodes.transform(abs(z.imag), 2)
    phase = 1j * abs(z.imag) * float(nodes.centre[0])
    value = complex(nodes.log_mass[0] + phase + log1p_complex(x)[0, 1])
    ratio = float(x_error[0, 1]) / max(abs(1.0 + complex(x[0, 1])), 1e-300)
    error = float(nodes.log_mass_error[0]) + (-math.log1p(-ratio) if ratio < 1 else math.inf)
    error += 8.0 * UNIT * (abs(value) + abs(phase))
    return (value if z.imag > 0 else value.conjugate()), error
