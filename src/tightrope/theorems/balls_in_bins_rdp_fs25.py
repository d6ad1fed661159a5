"""Renyi divergence of balls in bins: each record in one random batch of each epoch.

Statement: one epoch of t batches, noise s, whole order a. A record removed:
    D_a = [ln(a! [x^a] (sum_k x^k e^(k^2/(2 s^2))/k!)^t) - a ln t - a/(2 s^2)]/(a - 1), exactly.
    A record added: the loss is -ln(mean_i e^(x_i/s - 1/(2 s^2))), by Jensen at most
    1/(2 s^2) - mean_i x_i/s, a Gaussian, so D_a <= (1 + (a - 1)/t)/(2 s^2). Epochs add up.
Conditions: add-or-remove neighbours; batches assigned independently of the data.
Validity: upper bound (exact when a record is removed).
Source: Feldman, Shenfeld 2025 (arXiv:2502.08202), Section 4; theory notes C.9.
Error: logarithms of sums of positive terms only (repeated squaring of the power series), rounded
    up by 1e-9 relative.
Vectors: random_allocation_rdp_remove.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.kinds.renyi_curve import RenyiCurve, TableTerm
from tightrope.theorems import balls_in_bins_fs25 as profile
from tightrope.theorems.base import Source, require

NAME = "Balls in bins, Renyi"
SOURCE = Source("Feldman, Shenfeld 2025", "Section 4", "fs25")
VALIDITY = Validity.BOUND

_ORDERS = tuple(range(2, 65))
_ROUNDING = 1e-9


def applies(process: Any) -> str | None:
    reason = profile.applies(process)
    return reason if reason is None else reason.replace(profile.NAME, NAME)


def guarantee(process: Any) -> Guarantee:
    require(applies(process))
    batches, mu = process.sampling.batches_per_epoch, process.step_mu
    epochs = -(-process.steps // batches)
    if epochs == 0 or mu == math.inf:
        return GaussianGuarantee(math.inf if epochs else 0.0, process.adjacency, VALIDITY)
    gammas = tuple(
        max(divergence_removed(order, batches, mu), divergence_added_upper(order, batches, mu))
        for order in _ORDERS
    )
    term = TableTerm(tuple(float(order) for order in _ORDERS), gammas)
    return RenyiGuarantee(RenyiCurve.of(term) * epochs, process.adjacency, VALIDITY)


def divergence_added_upper(order: int, batches: int, mu: float) -> float:
    return 0.5 * mu * mu * (1.0 + (order - 1.0) / batches) * (1 + 1e-15)


@lru_cache(maxsize=4096)
def divergence_removed(order: int, batches: int, mu: float) -> float:
    """D_order of the mean of t shifted Gaussians from the unshifted one, rounded up."""
    weights = [0.5 * (k * mu) ** 2 - math.lgamma(k + 1.0) for k in range(order + 1)]
    log_coefficient = _log_power_coefficient(weights, batches, order)
    total = math.lgamma(order + 1.0) + log_coefficient
    value = (total - order * math.log(batches) - 0.5 * order * mu * mu) / (order - 1.0)
    return max(value, 0.0) * (1 + _ROUNDING) + _ROUNDING * 1e-3


def _log_power_coefficient(logs: list[float], power: int, degree: int) -> float:
    """ln [x^degree] (sum_k e^(logs[k]) x^k)^power by repeated squaring of truncated series.

    All terms are positive, so nothing cancels.
    """
    result: list[float] = [0.0] + [-math.inf] * degree
    base, left = logs, power
    while left:
        if left & 1:
            result = _product(result, base)
        left >>= 1
        if left:
            base = _product(base, base)
    return result[degree]


def _product(first: list[float], second: list[float]) -> list[float]:
    return [_log_sum([first[k] + second[n - k] for k in range(n + 1)]) for n in range(len(first))]


def _log_sum(logs: list[float]) -> float:
    top = max(logs)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(x - top) for x in logs))
