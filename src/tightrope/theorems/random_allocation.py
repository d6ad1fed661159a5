"""Every record in several random batches of each epoch: k of t.

Statement: where a record joins k of t batches, a uniform subset, one epoch loses at most what k
    epochs of balls in bins lose one after the other: t mod k of them with floor(t/k) + 1 batches
    each, the others with floor(t/k).
Proof: cut the t batches into k blocks of these sizes by a uniformly random permutation, in public,
    and let the record join one batch of each block, uniformly. The subset is uniform, as the law
    does not change when batches are permuted. Given the blocks, the choices are independent, and
    the steps of each block are one epoch of balls in bins beside releases that do not depend on its
    choice; joint convexity over the permutation.
Conditions: fresh and secret batches each epoch, chosen independently of the data.
Validity: upper bound; that of balls in bins where k = 1, and exact where k = t. An epoch that is
    cut off counts as a whole. Lower ends (a record added, removed or zeroed): the first step of
    each epoch, which takes a record with probability k/t.
Source: Feldman, Shenfeld 2025 (arXiv:2502.08202), Section 4 for k that divides t; the proof above.
Error: none here; the exact analysis of balls in bins states its own.
Vectors: balls_in_bins (by its parts).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.process import (
    BallsInBinsSampling,
    FullBatch,
    NoisySGD,
    Process,
    RandomAllocationSampling,
    Repeated,
    Sequence,
    parts_of,
)
from tightrope.theorems import balls_in_bins_exact, gaussian_gdp_drs19
from tightrope.theorems.base import (
    ONE_RECORD,
    PRESENCE,
    Refusal,
    Source,
    foreign,
    other_neighbours,
    require,
)

NAME = "Random allocation to several batches"
SOURCE = Source("Feldman, Shenfeld 2025", "Section 4", "fs25")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "noisy SGD", process)
    if not isinstance(process.sampling, RandomAllocationSampling):
        return Refusal(f"{NAME} needs RandomAllocationSampling; got {process.sampling}.", "foreign")
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, NoisySGD)
    sampling = process.sampling
    assert isinstance(sampling, RandomAllocationSampling)
    if process.steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    if sampling.joins == 1:  # an epoch that is cut off is not a whole one: its page knows
        bins = BallsInBinsSampling(sampling.batches_per_epoch)
        return balls_in_bins_exact.guarantee(replace(process, sampling=bins))
    if sampling.joins == sampling.batches_per_epoch:
        return gaussian_gdp_drs19.guarantee(replace(process, sampling=FullBatch()))
    parts = parts_of(as_blocks(process, sampling))
    found = compose([_of_block(part) for part in parts], list(parts.values()))
    bound = found.as_bound()  # no data set attains the blocks
    if not isinstance(bound, LossGuarantee) or process.adjacency not in PRESENCE:
        return bound
    epochs = -(-process.steps // sampling.batches_per_epoch)
    shown = balls_in_bins_exact.first_steps(sampling.rate, process.step_mu, epochs)
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
        return gaussian_gdp_drs19.guarantee(part)
    return balls_in_bins_exact.guarantee(part)
