"""Noise on whole numbers, whole or on a Poisson sample, as pairs of finitely many losses.

P = (1-q) X + q (X + s) if `plus`, Q = (1-q) X + q (X - s) if `minus`, otherwise X: the noise X at
0, moved by the sensitivity s where the record is there. A record that is removed is plus, added
(and mirrored) minus, replaced by its opposite both; q = 1 is a release without sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tightrope.guarantee.loss.discrete import DiscretePair
from tightrope.guarantee.loss.gaussian import log_mix, log_sampled, log_sampled_error
from tightrope.numerics.rounding import UNIT
from tightrope.validate import FloatArray, check_count, check_positive

__all__ = ["discrete_gaussian_pair", "discrete_laplace_pair"]

_REACH, _FAR = 38.0, 1e-300  # deviations, and a bound on what lies beyond
_LOG_TINY = -708.0  # ln of the smallest normal number
_Moved = Callable[[int], FloatArray]  # something of the noise moved by so much


def discrete_laplace_pair(
    decay: float, sensitivity: int = 1, rate: float = 1.0, plus: bool = True, minus: bool = False
) -> DiscretePair:
    """Noise of mass proportional to e^{-decay |k|}: beyond both points the loss is constant."""
    decay = check_positive(decay, "decay")
    shift = check_count(sensitivity, "sensitivity", low=1)
    low, high = (-shift if minus else 0), (shift if plus else 0)
    x = np.arange(low, high + 1, dtype=np.float64)
    # tanh(decay/2) e^{-decay |k|} inside; from an end on e^{-decay |k|}/(1 + e^-decay)
    factor = np.full(len(x), math.log(math.tanh(0.5 * decay)))
    factor[[0, -1]] = -math.log1p(math.exp(-decay))
    return _pair(
        lambda at: factor - decay * np.abs(x - at),
        lambda at: decay * (np.abs(x) - np.abs(x - at)),
        shift,
        rate,
        (plus, minus),
        0.0,
    )


def discrete_gaussian_pair(
    noise_multiplier: float,
    sensitivity: int = 1,
    rate: float = 1.0,
    plus: bool = False,
    minus: bool = True,
) -> DiscretePair:
    """Discrete Gaussian noise of parameter sigma (Canonne-Kamath-Steinke 2020).

    Error: values beyond 38 sigma (mass below 1e-300) count as L = +inf in upper ends, and for
    nothing in lower ends. The Renyi divergence of the noise moved by d is at most order d^2 / (2
    sigma^2) (Proposition 5 there), and a sample's at most as large, since it is quasi-convex.
    """
    sigma = check_positive(noise_multiplier, "noise_multiplier")
    shift = check_count(sensitivity, "sensitivity", low=1)
    reach = math.ceil(_REACH * sigma) + shift
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    log_total = _log_sum(-0.5 * (x / sigma) ** 2)
    return _pair(
        lambda at: -0.5 * ((x - at) / sigma) ** 2 - log_total,
        lambda at: at * (2.0 * x - at) / (2.0 * sigma * sigma),
        shift,
        rate,
        (plus, minus),
        _FAR,
        0.5 * ((plus + minus) * shift / sigma) ** 2,
    )


def _pair(
    log_noise: _Moved,
    ratio: _Moved,
    shift: int,
    rate: float,
    there: tuple[bool, bool],
    far: float,
    zero_concentrated: float = math.inf,
) -> DiscretePair:
    """From ln of the masses, and of their ratios to those at 0; is the record in P, in Q?"""
    (plus, plus_error), (minus, minus_error) = (
        _arm(ratio(way * shift), rate if counts else 0.0)
        for way, counts in zip((1, -1), there, strict=True)
    )
    log_p = log_mix(log_noise(0), log_noise(shift), rate) if there[0] else log_noise(0)
    log_p -= _log_sum(log_p)  # what rounding took or gave
    losses, held = plus - minus, log_p > _LOG_TINY
    left_out = float(np.exp((log_p - losses)[~held]).sum())  # of Q, where P has no normal number
    off = float(np.max(plus_error + minus_error)) / float(np.max(np.abs(losses[held])))
    return DiscretePair(
        tuple(losses[held].tolist()),
        tuple(np.exp(log_p[held]).tolist()),
        infinite_mass=far,
        only_under_q=far + left_out,
        loss_units=off / UNIT,
        is_cut=far > 0.0,
        zero_concentrated=zero_concentrated,
    )


def _arm(u: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """a = ln(1 + rate (e^u - 1)) and its rounding; its slope in u is rate e^{u - a}."""
    if rate == 0.0:
        return np.zeros_like(u), np.zeros_like(u)
    found = log_sampled(u, rate)
    slope = np.exp(np.minimum(math.log(rate) + u - found, 0.0))
    return found, 4.0 * UNIT * slope * np.abs(u) + log_sampled_error(found, rate)


def _log_sum(logs: FloatArray) -> float:
    """Of masses, the largest about 1 over their number; those below 1e-40 are left out."""
    return math.log(math.fsum(np.exp(logs[logs > -92.0]).tolist()))
