"""Renyi divergence of balls in bins: each record in one random batch of each epoch.

Statement: one epoch of t batches, noise s, whole order a. With M the mean of t independent
    lognormals e^(g_i/s - 1/(2 s^2)), a record removed loses D_a = ln E[M^a]/(a - 1), where
    E[M^a] = a! [x^a] (sum_k x^k e^(k(k-1)/(2 s^2))/k!)^t / t^a, and a record added
    D_a = ln E[M^(1-a)]/(a - 1), where E[M^-b] = (1/Gamma(b)) int u^(b-1) E[e^(-u X/t)]^t du for
    one lognormal X. Epochs add up.
Conditions: batches assigned independently of the data. (A replaced record is a group of two.)
Validity: upper bound (exact Renyi divergences of whole orders, then converted).
Source: Feldman, Shenfeld 2025 (arXiv:2502.08202), Section 4, for a record removed; for a record
    added they use D_a <= (1 + (a - 1)/t)/(2 s^2) (Jensen), which is kept where it is smaller or
    the integral out of reach; the integral is derived in `numerics/lognormal_mean.py`.
Error: decimals of 80 digits, and trapezoidal sums with their errors added; see there.
Vectors: random_allocation_rdp_remove.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee, TableTerm
from tightrope.numerics.lognormal_mean import log_negative_moments, log_positive_moments
from tightrope.process import NoisySGD, Process
from tightrope.theorems import balls_in_bins_exact as exact
from tightrope.theorems.base import Refusal, Source, require
from tightrope.validate import FloatArray

NAME = "Balls in bins, Renyi"
SOURCE = Source("Feldman, Shenfeld 2025", "Section 4", "fs25")
VALIDITY = Validity.BOUND
RELATIONS = exact.RELATIONS
_LARGEST_MU = 1e3

_ORDERS = (*range(2, 64), *range(64, 129, 8), *range(144, 257, 16))


def applies(process: Process) -> Refusal | None:
    reason = exact.applies(process)
    return reason if reason is None else reason.renamed(exact.NAME, NAME)


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    return exact.through_removal(process, _add_or_remove)


def _add_or_remove(process: NoisySGD) -> Guarantee:
    batches, mu = exact.batches_of(process), process.step_mu
    epochs = -(-process.steps // batches)
    if epochs == 0 or batches == 1 or mu > _LARGEST_MU:
        return exact.gaussian_bound(process)
    curve = RenyiCurve.of(_one_epoch(batches, mu)) * epochs
    return RenyiGuarantee(curve, process.adjacency, VALIDITY)


@lru_cache(maxsize=64)
def _one_epoch(batches: int, mu: float) -> TableTerm:
    """The larger divergence of both orders of the neighbours."""
    orders = np.array([order for order in _ORDERS if order <= max(64, batches)])
    removed, added = divergences(batches, mu, orders)
    gammas = np.maximum(removed, added) * (1 + 1e-14)
    return TableTerm(tuple(map(float, orders)), tuple(gammas.tolist()))


def divergences(batches: int, mu: float, orders: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of the law with the record from the one without it, and the other way round."""
    removed = log_positive_moments(batches, mu, int(orders.max()))[orders] / (orders - 1.0)
    jensen = 0.5 * mu * mu * (1.0 + (orders - 1.0) / batches)
    added = log_negative_moments(batches, mu, orders - 1.0) / (orders - 1.0)
    return removed, np.minimum(added, jensen)
