"""The improved moments accountant for composed Gaussian mechanisms (Lemma 2).

Statement: with rho T = T/(2 s^2) and z = order - 1,
    eps = min(eps0, eps1, (rho T/delta + ln(1-delta))_+),
    eps0 = inf over 1 < order <= 1/delta of (rho T order - ln(delta/zeta)/z)_+,
    eps1 = inf over 1 < order <= 1/delta of ln(1 + (e^{rho T order z} - 1)/(order delta))/z.
Conditions: unit L2 sensitivity under the neighbours meant, every output released, s > 0,
    steps >= 1, 0 < delta < 1.
Validity: bound. Never needed for plain Gaussian composition, where Gaussian DP is exact.
Source: Lemma 2, (31)-(33) of arXiv:2008.06529.
Error: every order is valid, so the value is safe wherever the search stops; the infimum is found to
    about 1e-12 relative.
Vectors: gaussian_composition (lemma2_*) in tests/golden/renyi.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.renyi.closed_forms import epsilon_above, log_zeta, second_term
from tightrope.guarantee.renyi.kernel import rounded_up
from tightrope.numerics.arrays import flat, shaped
from tightrope.validate import FloatArray
from tightrope_reproduce.formulas.moments_accountant import checked_inner_delta, rate_of

__all__ = ["MomentTerms", "terms", "epsilon", "epsilon_of_rate"]

_SCAN, _ZOOM, _ROUNDS = 65, 17, 8


class MomentTerms(NamedTuple):
    """The three terms of Lemma 2; the smallest counts."""

    eps0: Any
    eps1: Any
    third: Any


def terms(noise_multiplier: ArrayLike, steps: ArrayLike, delta: ArrayLike) -> MomentTerms:
    """Each term by itself."""
    (rate, d), shape = flat(rate_of(noise_multiplier, steps), checked_inner_delta(delta))
    return MomentTerms(*(shaped(part, shape) for part in _terms(rate, d)))


def epsilon(noise_multiplier: ArrayLike, steps: ArrayLike, delta: ArrayLike) -> Any:
    (rate, d), shape = flat(rate_of(noise_multiplier, steps), checked_inner_delta(delta))
    return shaped(epsilon_of_rate(rate, d), shape)


def epsilon_of_rate(rate: FloatArray, delta: FloatArray) -> FloatArray:
    """Lemma 2 as a function of rho T."""
    return np.asarray(np.minimum.reduce(_terms(rate, delta)))


def _terms(rate: FloatArray, d: FloatArray) -> MomentTerms:
    def eps0(z: FloatArray) -> FloatArray:
        return epsilon_above(z, rate * (1.0 + z), np.broadcast_to(d, z.shape), log_zeta(z))

    def eps1(z: FloatArray) -> FloatArray:
        return second_term(z, rate * (1.0 + z), d)

    log_highest = np.log1p(-d) - np.log(d)  # order = 1/delta
    log_lowest = np.minimum(np.log(1e-9), log_highest - 1.0)
    with np.errstate(over="ignore"):
        third = np.maximum(rounded_up(rate / d + np.log1p(-d), rate / d, np.log1p(-d)), 0.0)
    return MomentTerms(
        _minimum(eps0, log_lowest, log_highest), _minimum(eps1, log_lowest, log_highest), third
    )


def _minimum(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray
) -> FloatArray:
    """The least value over ln z in [low, high], one problem per column."""
    columns = np.arange(low.size)
    best = np.full(low.size, np.inf)
    count = _SCAN
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, count)
        with np.errstate(over="ignore"):
            values = function(np.exp(grid))
        place = values.argmin(axis=0)
        best = np.minimum(best, values[place, columns])
        low = grid[np.maximum(place - 1, 0), columns]
        high = grid[np.minimum(place + 1, count - 1), columns]
        count = _ZOOM
    return best
