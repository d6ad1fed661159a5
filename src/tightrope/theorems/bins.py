"""Every record in one random batch, or several, of each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee, TableTerm
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import (
    AllocationPair,
    Direction,
    GaussianPair,
    SampledGaussianPair,
)
from tightrope.numerics.lognormal_mean import log_negative_moments, log_positive_moments
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    FullBatch,
    NoisySGD,
    RandomAllocationSampling,
    Repeated,
    Sequence,
    parts_of,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    PRESENCE,
    Proved,
    Source,
)
from tightrope.theorems.releases import GaussianGdpDrs19
from tightrope.validate import FloatArray


@final
class BallsInBinsExact(Proved):
    """Every record in exactly one random batch of each epoch (random allocation, balls in bins).

    Statement: with t batches an epoch and mu = 1/noise_multiplier, one epoch is dominated by, and
        attains, the pair P = (1/t) sum_i N(mu e_i, I) against Q = N(0, I) in t dimensions (a record
        is removed) and the reversed pair (added). Under Q the likelihood ratio is S, the mean of t
        independent lognormals e^(mu g_i - mu^2/2): delta(eps) = E (S - e^eps)_+ (removed) and E
        (1 - e^eps S)_+ (added). Epochs compose, each order of the neighbours on its own. A replaced
        record is one removed and one added: a group of two. Where a record joins k of t batches, a
        uniform subset, and k divides t, k epochs of t/k batches are a bound: such a subset is a
        mixture of choices of one batch from each of k blocks (Feldman, Shenfeld 2025,
        arXiv:2502.08202).
    Conditions: fresh and secret batches each epoch, chosen independently of the data. A null record
        (zero-out neighbours) adds what an absent one does: the pairs are those of a record removed.
    Validity: exact for whole epochs of a record added, removed or zeroed; an upper bound where the
        last epoch is cut off (the whole of it is counted; the lower ends are those of the epochs
        before, or of the first step), for replaced records (lower ends: those of a record that is
        replaced by one of gradient 0, so removed), and for noise below 0.4 or above 20, where the
        place in the epoch is not counted as secret (lower ends: those of the first step of each
        epoch).
    Source: Choquette-Choo et al. 2024 (arXiv:2410.06266), Lemma 3.2; Chua et al. 2024
        (arXiv:2412.16802).
    Error: none here; the density of ln S and the numerical composition state their own.
    Vectors: balls_in_bins, balls_in_bins_delta, random_allocation_transform (from above).
    """

    NAME = "Balls in bins, exact"
    SOURCE = Source("Choquette-Choo et al. 2024", "Lemma 3.2", "cghm24")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    SAMPLING = (BallsInBinsSampling,)

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        return through_removal(process, _add_or_remove)


_WAYS: tuple[Direction, ...] = ("remove", "add")


_REACH, _LARGEST_MU = (0.05, 2.5), 20.0  # mu, of epochs and of single steps


def batches_of(process: NoisySGD) -> int:
    assert isinstance(process.sampling, BallsInBinsSampling)
    return process.sampling.batches_per_epoch


def through_removal(process: NoisySGD, analyse: Callable[[NoisySGD], Guarantee]) -> Guarantee:
    """A replaced record as one removed and one added; alone in its batch it needs no detour."""
    batches, noise = batches_of(process), process.noise_multiplier
    if process.adjacency is not Adjacency.REPLACE_ONE:
        return analyse(process)
    if batches == 1 or noise == 0.0 or process.steps == 0:
        return gaussian_bound(process)
    found = analyse(replace(process, adjacency=Adjacency.ADD_OR_REMOVE)).as_replace_one()
    return replace(found, replaces_by_nothing=True) if isinstance(found, GroupGuarantee) else found


def gaussian_bound(process: NoisySGD) -> GaussianGuarantee:
    """One step an epoch, without the secret of which."""
    epochs = -(-process.steps // batches_of(process))
    mu = process.step_mu * math.sqrt(epochs) if epochs else 0.0
    return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)


def _add_or_remove(process: NoisySGD) -> Guarantee:
    batches, mu = batches_of(process), process.step_mu
    epochs = -(-process.steps // batches)
    if epochs == 0 or batches == 1 or mu == math.inf:
        return gaussian_bound(process)
    if not _REACH[0] <= mu <= _REACH[1]:
        plain, shown = ((GaussianPair(mu), epochs),), first_steps(1.0 / batches, mu, epochs)
        return LossGuarantee(
            (plain,), process.adjacency, Validity.BOUND, by_record=True, attained=shown
        )
    whole, orders = process.steps // batches, _epochs(process, epochs)
    if whole == epochs:
        return LossGuarantee(orders, process.adjacency, Validity.EXACT)
    shown = _epochs(process, whole) if whole else first_steps(1.0 / batches, mu, epochs)
    return LossGuarantee(orders, process.adjacency, Validity.BOUND, attained=shown)


def _epochs(process: NoisySGD, count: int) -> tuple[Components, ...]:
    batches, mu = batches_of(process), process.step_mu
    return tuple(((AllocationPair(batches, mu, way), count),) for way in _WAYS)


def first_steps(rate: float, mu: float, epochs: int) -> tuple[Components, ...]:
    """What the first step of each epoch shows, which takes a record with this probability."""
    q, shown = rate * (1.0 - 4e-16), min(mu, _LARGEST_MU)  # more noise shows less
    return tuple(((SampledGaussianPair(q, shown, way), epochs),) for way in _WAYS)


@final
class BallsInBinsRdpFs25(Proved):
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

    NAME = "Balls in bins, Renyi"
    SOURCE = Source("Feldman, Shenfeld 2025", "Section 4", "fs25")
    RELATIONS = BallsInBinsExact.RELATIONS
    SAMPLING = (BallsInBinsSampling,)

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        return through_removal(process, _renyi_add_or_remove)


_MOST_MU = 1e3
_ORDERS = (*range(2, 64), *range(64, 129, 8), *range(144, 257, 16))


def _renyi_add_or_remove(process: NoisySGD) -> Guarantee:
    batches, mu = batches_of(process), process.step_mu
    epochs = -(-process.steps // batches)
    if epochs == 0 or batches == 1 or mu > _MOST_MU:
        return gaussian_bound(process)
    curve = RenyiCurve.of(_one_epoch(batches, mu)) * epochs
    return RenyiGuarantee(curve, process.adjacency, Validity.BOUND)


@lru_cache(maxsize=64)
def _one_epoch(batches: int, mu: float) -> TableTerm:
    """The larger divergence of both orders of the neighbours."""
    orders = np.array([order for order in _ORDERS if order <= max(64, batches)])
    removed, added = bins_divergences(batches, mu, orders)
    gammas = np.maximum(removed, added) * (1 + 1e-14)
    return TableTerm(tuple(map(float, orders)), tuple(gammas.tolist()))


def bins_divergences(batches: int, mu: float, orders: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of the law with the record from the one without it, and the other way round."""
    removed = log_positive_moments(batches, mu, int(orders.max()))[orders] / (orders - 1.0)
    jensen = 0.5 * mu * mu * (1.0 + (orders - 1.0) / batches)
    added = log_negative_moments(batches, mu, orders - 1.0) / (orders - 1.0)
    return removed, np.minimum(added, jensen)


@final
class RandomAllocation(Proved):
    """Every record in several random batches of each epoch: k of t.

    Statement: where a record joins k of t batches, a uniform subset, one epoch loses at most what k
        epochs of balls in bins lose one after the other: t mod k of them with floor(t/k) + 1
        batches each, the others with floor(t/k).
    Proof: cut the t batches into k blocks of these sizes by a uniformly random permutation, in
        public, and let the record join one batch of each block, uniformly. The subset is uniform,
        as the law does not change when batches are permuted. Given the blocks, the choices are
        independent, and the steps of each block are one epoch of balls in bins beside releases that
        do not depend on its choice; joint convexity over the permutation.
    Conditions: fresh and secret batches each epoch, chosen independently of the data.
    Validity: upper bound; that of balls in bins where k = 1, and exact where k = t. An epoch that
        is cut off counts as a whole. Lower ends (a record added, removed or zeroed): the first step
        of each epoch, which takes a record with probability k/t.
    Source: Feldman, Shenfeld 2025 (arXiv:2502.08202), Section 4 for k that divides t; the proof
        above.
    Error: none here; the exact analysis of balls in bins states its own.
    Vectors: balls_in_bins (by its parts).
    """

    NAME = "Random allocation to several batches"
    SOURCE = Source("Feldman, Shenfeld 2025", "Section 4", "fs25")
    RELATIONS = ONE_RECORD
    SAMPLING = (RandomAllocationSampling,)

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        sampling = process.sampling
        assert isinstance(sampling, RandomAllocationSampling)
        if process.steps == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if sampling.joins == 1:  # an epoch that is cut off is not a whole one: its page knows
            bins = BallsInBinsSampling(sampling.batches_per_epoch)
            return BallsInBinsExact.guarantee(replace(process, sampling=bins))
        if sampling.joins == sampling.batches_per_epoch:
            return GaussianGdpDrs19.guarantee(replace(process, sampling=FullBatch()))
        parts = parts_of(as_blocks(process, sampling))
        found = compose([_of_block(part) for part in parts], list(parts.values()))
        bound = found.as_bound()  # no data set attains the blocks
        if not isinstance(bound, LossGuarantee) or process.adjacency not in PRESENCE:
            return bound
        epochs = -(-process.steps // sampling.batches_per_epoch)
        shown = first_steps(sampling.rate, process.step_mu, epochs)
        return replace(bound, attained=shown)


def as_blocks(process: NoisySGD, sampling: RandomAllocationSampling) -> Sequence:
    """The epochs of balls in bins, one after the other, that bound it."""
    t, k = sampling.batches_per_epoch, sampling.joins
    epochs, (size, longer) = -(-process.steps // t), divmod(t, k)
    blocks = []
    for batches, count in ((size + 1, longer), (size, k - longer)):
        how = BallsInBinsSampling(batches) if batches > 1 else FullBatch()
        run = NoisySGD(how, process.noise_multiplier, batches, process.adjacency)
        blocks.append(Repeated(run, count * epochs))
    return Sequence(tuple(blocks))


def _of_block(part: Any) -> Guarantee:
    if isinstance(part.sampling, FullBatch):
        return GaussianGdpDrs19.guarantee(part)
    return BallsInBinsExact.guarantee(part)
