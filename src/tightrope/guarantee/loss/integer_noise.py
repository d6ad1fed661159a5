"""Noise on whole numbers, whole or on a Poisson sample, as pairs of finitely many losses.

P = (1-q) X + q (X + s) if `plus`, Q = (1-q) X + q (X - s) if `minus`, otherwise X: the noise X at
0, moved by the sensitivity s where the record is there. A record that is removed is plus, added
(and mirrored) minus, replaced by its opposite both; q = 1 is a release without sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp

from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.validate import FloatArray, check_count, check_positive

__all__ = ["discrete_gaussian_pair", "discrete_laplace_pair"]

_REACH, _FAR = 38.0, 1e-300  # deviations, and a bound on what lies beyond
_LARGE = 600.0  # an exponent; next to a tiny rate smaller ones need all digits of log1p
_Ratio = Callable[
    [int], FloatArray
]  # ln of the masses of the noise moved by so much, over those at 0


def discrete_laplace_pair(
    decay: float, sensitivity: int = 1, rate: float = 1.0, plus: bool = True, minus: bool = False
) -> DiscretePair:
    """Noise of mass proportional to e^{-decay |k|}: beyond both points the loss is constant."""
    decay = check_positive(decay, "decay")
    shift = check_count(sensitivity, "sensitivity", low=1)
    low, high = (-shift if minus else 0), (shift if plus else 0)
    x = np.arange(low, high + 1, dtype=np.float64)
    # tanh(decay/2) e^{-decay |k|} inside; from an end on e^{-decay |k|}/(1 + e^-decay)
    base = math.log(math.tanh(0.5 * decay)) - decay * np.abs(x)
    base[0], base[-1] = (-decay * abs(x[i]) - math.log1p(math.exp(-decay)) for i in (0, -1))
    return _pair(
        base, lambda at: decay * (np.abs(x) - np.abs(x - at)), shift, rate, (plus, minus), 0.0
    )


def discrete_gaussian_pair(
    noise_multiplier: float,
    sensitivity: int = 1,
    rate: float = 1.0,
    plus: bool = False,
    minus: bool = True,
) -> DiscretePair:
    """Discrete Gaussian noise of parameter sigma (Canonne-Kamath-Steinke 2020).

    Error: values beyond 38 sigma (mass below 1e-300) count as L = +inf, so the pair dominates the
    mechanism and is above it by less than 1e-300.
    """
    sigma = check_positive(noise_multiplier, "noise_multiplier")
    shift = check_count(sensitivity, "sensitivity", low=1)
    reach = math.ceil(_REACH * sigma) + shift
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    base = -0.5 * (x / sigma) ** 2
    return _pair(
        base - float(logsumexp(base)),
        lambda at: at * (2.0 * x - at) / (2.0 * sigma * sigma),
        shift,
        rate,
        (plus, minus),
        _FAR,
    )


def _pair(
    base: FloatArray, ratio: _Ratio, shift: int, rate: float, there: tuple[bool, bool], far: float
) -> DiscretePair:
    """From ln of the masses at 0; `there`: is the record in P, in Q?"""
    plus, minus = (
        _log_sampled(ratio(way * shift), rate) if counts else np.zeros_like(base)
        for way, counts in zip((1, -1), there, strict=True)
    )
    log_p = base + plus
    log_p -= float(logsumexp(log_p))  # what rounding took or gave
    # exponents of size -ln rate, where e^u is as rare as the record, are right to 4 units of it
    units = 8.0 if rate == 1.0 else 16.0 + 4.0 * (2.0 - math.log(rate))
    masses = tuple(np.exp(log_p).tolist())
    return DiscretePair(tuple((plus - minus).tolist()), masses, far, units)


def _log_sampled(u: FloatArray, rate: float) -> FloatArray:
    if rate == 1.0:
        return u
    small = np.log1p(rate * np.expm1(np.minimum(u, _LARGE)))
    large = u + np.log(rate + (1.0 - rate) * np.exp(-np.maximum(u, _LARGE)))
    return np.where(u > _LARGE, large, small)
