"""The cumulant K(z) = ln E_P[e^{zL}; L < inf] of a loss pair, and its Renyi divergences.

Error: quadrature bounded on a strip or an ellipse, truncation by Gaussian tails, rounding summed
term by term with elementary functions taken to be right to 4 units in the last place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.errors import DoesNotApply, NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.allocation import AllocationCumulant, AllocationPair
from tightrope.guarantee.loss.cumulant_fixed_size import FixedSizeCumulant
from tightrope.guarantee.loss.cumulant_mixture import MixtureCumulant
from tightrope.guarantee.loss.cumulant_points import DiscreteCumulant
from tightrope.guarantee.loss.cumulant_sampled import SampledCumulant
from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.gaussian import (
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
)
from tightrope.guarantee.loss.laplace import (
    BoundedRangePair,
    LaplaceCumulant,
    LaplaceMixtureCumulant,
    LaplaceMixturePair,
    LaplacePair,
)
from tightrope.guarantee.loss.mixture import GaussianMixturePair
from tightrope.guarantee.loss.public_mixture import PublicCumulant, PublicMixturePair
from tightrope.guarantee.loss.renyi_cells import renyi_of_endless
from tightrope.numerics.inversion_law import AbstractFamily, SumLaw, log1p_complex
from tightrope.numerics.quadrature import FloatArray
from tightrope.numerics.rounding import UNIT
from tightrope.validate import check_order

__all__ = ["Enclosed", "cumulant", "renyi", "law_of", "sum_law", "plain_mu"]

_NATS = 42.0  # quadrature errors below 1e-18
_FAMILY = 32  # sampled Gaussians treated in one go

_LAWS: dict[type, Any] = {
    FixedSizeGaussianPair: FixedSizeCumulant,
    LaplacePair: LaplaceCumulant,
    BoundedRangePair: LaplaceCumulant,
    LaplaceMixturePair: LaplaceMixtureCumulant,
    DiscretePair: DiscreteCumulant,
    AllocationPair: AllocationCumulant,
    GaussianMixturePair: MixtureCumulant,
    PublicMixturePair: lambda pair, count: _public(pair, count),
}


@final
@dataclass(frozen=True)
class Enclosed:
    """|truth - value| <= error, elementwise."""

    value: NDArray[np.complex128]
    error: FloatArray


def _public(pair: PublicMixturePair, count: int) -> PublicCumulant:
    weights, pairs = zip(*pair.parts, strict=True)
    return PublicCumulant(list(weights), [law_of(part) for part in pairs], count)


def plain_mu(pair: AbstractLossPair) -> float | None:
    """mu when the pair is an unsampled Gaussian, otherwise None."""
    if isinstance(pair, GaussianPair):
        return pair.mu
    sampled = isinstance(pair, SampledGaussianPair | FixedSizeGaussianPair)
    return pair.mu if sampled and pair.rate == 1.0 else None  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def law_of(pair: AbstractLossPair, count: int = 1) -> AbstractFamily:
    """The loss of a pair that is not an unsampled Gaussian, as a law of the numerics."""
    if isinstance(pair, SampledGaussianPair):
        return SampledCumulant([pair], [count])
    make = _LAWS.get(type(pair))
    if make is None:
        raise DoesNotApply(
            f"No cumulant is known for {type(pair).__name__}; known are GaussianPair, "
            f"SampledGaussianPair, {', '.join(kind.__name__ for kind in _LAWS)}. "
            "Use the lattice method instead."
        )
    return make(pair, count)  # type: ignore[no-any-return]


def sum_law(components: tuple[tuple[AbstractLossPair, int], ...]) -> SumLaw:
    """The loss of a composition. An unsampled Gaussian has K(z) = mu^2 z (z + 1)/2."""
    variance = 0.0
    parts: dict[AbstractLossPair, int] = {}
    for pair, count in components:
        mu = plain_mu(pair)
        if mu is not None:
            variance += count * mu * mu
        elif count > 0:
            parts[pair] = parts.get(pair, 0) + count
    return SumLaw(_families(parts), 0.5 * variance, variance)


def _families(parts: dict[AbstractLossPair, int]) -> tuple[AbstractFamily, ...]:
    """Sampled Gaussians of one direction are treated in families, neighbours in mu together."""
    families = [law_of(p, n) for p, n in parts.items() if not isinstance(p, SampledGaussianPair)]
    for direction in ("remove", "add"):
        members = [
            (p, n)
            for p, n in parts.items()
            if isinstance(p, SampledGaussianPair) and p.direction == direction
        ]
        members.sort(key=lambda member: member[0].mu)
        for first in range(0, len(members), _FAMILY):
            pairs, counts = zip(*members[first : first + _FAMILY], strict=True)
            if len(pairs) == 1:
                families.append(law_of(pairs[0], counts[0]))
            else:
                families.append(SampledCumulant(pairs, counts))
    return tuple(families)


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
    mu = plain_mu(pair)
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


def renyi(pair: AbstractLossPair, order: ArrayLike) -> tuple[Any, Any]:
    """Lower and upper bound of D_order(P||Q) = K(order - 1)/(order - 1), order > 1.

    Infinite where the pair has P(L = +inf) > 0.
    """
    orders = np.atleast_1d(np.asarray(check_order(order), dtype=np.float64))
    bounds = np.array([_renyi_at(pair, float(a)) for a in orders.reshape(-1)])
    lower, upper = bounds[:, 0].reshape(np.shape(order)), bounds[:, 1].reshape(np.shape(order))
    return (lower, upper) if np.shape(order) else (float(lower), float(upper))


def _renyi_at(pair: AbstractLossPair, order: float) -> tuple[float, float]:
    if pair.infinite_mass > 0.0:
        found = renyi_of_endless(pair, order)
        return found.lower, found.upper
    z = order - 1.0  # exact for order in (1, 2]; one rounding otherwise
    mu = plain_mu(pair)
    if mu is not None:
        value = 0.5 * mu * mu * order
        return value * (1.0 - 4.0 * UNIT), value * (1.0 + 4.0 * UNIT)
    # K >= z^2 Var/2-like sizes can be tiny: ask for digits relative to K, not to 1
    law = law_of(pair)
    try:
        value, error = (float(v[0]) for v in law.real(z, _NATS))
        if error > 1e-13 * abs(value):
            nats = _NATS - math.log(max(abs(value), 1e-200))
            value, error = (float(v[0]) for v in law.real(z, nats))
    except OverflowError as problem:
        raise NotCertified(
            f"The Renyi divergence of order {order:.3g} of {pair} needs too much work ({problem}). "
            "Ask for a smaller order; those up to 1e6 are answered for mu from 0.01 on."
        ) from problem
    if error == math.inf:
        raise NotCertified(
            f"Nothing is known of the Renyi divergence of order {order:.3g} of {pair}: it rests on "
            "rarer losses than its law was computed for. Ask for a smaller order."
        )
    slack = 8.0 * UNIT * abs(value) / z
    lower = (value - error) / z - slack
    return max(lower, 0.0), (value + error) / z + slack
