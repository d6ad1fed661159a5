"""The rate that papers took for noisy SGD, and why it is no guarantee.

Statement: arXiv:2008.06529 treats each step of noisy SGD as (order, order rho)-Renyi DP with
    rho = rate^2/((1-rate) s^2). Abadi et al. prove, with z = order - 1, that
    z D <= rho z order + O(rate^3 z^3/s^3).
Conditions: of the original: s >= 1, rate < 1/(16 s), z a positive integer up to s^2 ln(1/(rate s)),
    Poisson sampling, add-or-remove neighbours. Even then a positive term is dropped.
Validity: none. It is offered to reproduce printed figures only; use the exact divergence of the
    sampled Gaussian for an answer.
Source: Abadi et al. 2016 (arXiv:1607.00133), Lemma 3.
Error: not a bound on either side: at rate 0.003, s 0.6 the truth is 2.7 times
    (order 2) to 21,300 times (order 7.8) larger.
Vectors: rdp_abadi_lemma3 in tests/golden/renyi.json.
"""

from __future__ import annotations

import math

from tightrope.validate import check_order, check_positive, check_real

__all__ = ["claimed_renyi", "broken_conditions"]


def claimed_renyi(order: float, rate: float, noise_multiplier: float) -> float:
    """order * rate^2/((1-rate) s^2): the printed number, not a guarantee."""
    a, s = check_order(order), check_positive(noise_multiplier, "noise_multiplier")
    q = check_real(rate, "rate", low=0.0, high=1.0 - 2.0**-53)
    return float(a * q * q / ((1.0 - q) * s * s))


def broken_conditions(order: float, rate: float, noise_multiplier: float) -> list[str]:
    """The conditions of the original lemma that fail here, in words."""
    z, q, s = check_order(order) - 1.0, float(rate), float(noise_multiplier)
    broken = []
    if s < 1.0:
        broken.append(f"noise_multiplier is {s:g}; the lemma needs at least 1")
    if q * 16.0 * s >= 1.0:
        broken.append(f"rate is {q:g}; the lemma needs less than 1/(16 noise_multiplier)")
    if z != math.floor(z):
        broken.append(f"order is {z + 1.0:g}; the lemma is for whole orders")
    if q > 0.0 and z > s * s * math.log(1.0 / (q * s)):
        broken.append(f"order is {z + 1.0:g}; the lemma stops at 1 + s^2 ln(1/(rate s))")
    return broken
