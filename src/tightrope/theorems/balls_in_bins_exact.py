"""Every record in exactly one random batch of each epoch (random allocation, balls in bins).

Statement: with t batches an epoch and mu = 1/noise_multiplier, one epoch is dominated by, and
    attains, the pair P = (1/t) sum_i N(mu e_i, I) against Q = N(0, I) in t dimensions (a record is
    removed) and the reversed pair (added). Under Q the likelihood ratio is S, the mean of t
    independent lognormals e^(mu g_i - mu^2/2): delta(eps) = E (S - e^eps)_+ (removed) and
    E (1 - e^eps S)_+ (added). Epochs compose, each order of the neighbours on its own. A replaced
    record is one removed and one added: a group of two. Where a record joins k of t batches, a
    uniform subset, and k divides t, k epochs of t/k batches are a bound: such a subset is a mixture
    of choices of one batch from each of k blocks (Feldman, Shenfeld 2025, arXiv:2502.08202).
Conditions: fresh and secret batches each epoch, chosen independently of the data. A null record
    (zero-out neighbours) adds what an absent one does: the pairs are those of a record removed.
Validity: exact for whole epochs of a record added, removed or zeroed; an upper bound where the
    last epoch is cut off (the whole of it is counted; the lower ends are those of the epochs
    before, or of the first step), for replaced records (lower ends: those of a record that is
    replaced by one of gradient 0, so removed), and for noise below 0.4 or above 20, where the place
    in the epoch is not counted as secret (lower ends: those of the first step of each epoch).
Source: Choquette-Choo et al. 2024 (arXiv:2410.06266), Lemma 3.2; Chua et al. 2024
    (arXiv:2412.16802).
Error: none here; the density of ln S and the numerical composition state their own.
Vectors: balls_in_bins, balls_in_bins_delta, random_allocation_transform (from above).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import (
    AllocationPair,
    Direction,
    GaussianPair,
    SampledGaussianPair,
)
from tightrope.process import Adjacency, BallsInBinsSampling, NoisySGD, Process
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, other_neighbours, require

NAME = "Balls in bins, exact"
SOURCE = Source("Choquette-Choo et al. 2024", "Lemma 3.2", "cghm24")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD

_WAYS: tuple[Direction, ...] = ("remove", "add")
_REACH, _LARGEST_MU = (0.05, 2.5), 20.0  # mu, of epochs and of single steps


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD) or not isinstance(process.sampling, BallsInBinsSampling):
        return Refusal(
            f"{NAME} applies to noisy SGD with BallsInBinsSampling; got {_words(process)}.",
            "foreign",
        )
    return other_neighbours(NAME, process, RELATIONS)


def _words(process: Process) -> str:
    return str(process.sampling) if isinstance(process, NoisySGD) else type(process).__name__


def batches_of(process: NoisySGD) -> int:
    assert isinstance(process.sampling, BallsInBinsSampling)
    return process.sampling.batches_per_epoch


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    return through_removal(process, _add_or_remove)


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
        return LossGuarantee(orders, process.adjacency, VALIDITY)
    shown = _epochs(process, whole) if whole else first_steps(1.0 / batches, mu, epochs)
    return LossGuarantee(orders, process.adjacency, Validity.BOUND, attained=shown)


def _epochs(process: NoisySGD, count: int) -> tuple[Components, ...]:
    batches, mu = batches_of(process), process.step_mu
    return tuple(((AllocationPair(batches, mu, way), count),) for way in _WAYS)


def first_steps(rate: float, mu: float, epochs: int) -> tuple[Components, ...]:
    """What the first step of each epoch shows, which takes a record with this probability."""
    q, shown = rate * (1.0 - 4e-16), min(mu, _LARGEST_MU)  # more noise shows less
    return tuple(((SampledGaussianPair(q, shown, way), epochs),) for way in _WAYS)
