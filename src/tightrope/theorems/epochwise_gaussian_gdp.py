"""Batches that visit every record once (k times) an epoch: no amplification is claimed.

Statement: a record takes part in at most k ceil(steps / batches_per_epoch) steps, so the run is
    sqrt(that) * step_mu-GDP, step_mu = 1/noise_multiplier (add-or-remove) or twice it (replace).
    Where the places are secret: condition on them, they have one law for both neighbours, and
    every delta(eps) is jointly convex.
Conditions: cyclic fixed batches, or fresh random ones each epoch. Every iterate released. A
    record that is added or removed leaves the others in their batches (its place stays empty);
    where the others would move, only replacing a record makes sense.
Validity: exact for cyclic batches; otherwise an upper bound (no tight analysis of
    shuffling is known, and its lower ends exceed the Poisson numbers: `shuffled_attained.py`, after
    Chua et al. 2024, arXiv:2403.17673).
Source: Dong, Roth, Su 2019 (arXiv:1905.02383v3), Corollary 3.3 (Gaussian composition).
Error: none beyond rounding.
Vectors: gdp_eps.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import (
    BallsInBinsSampling,
    CyclicSampling,
    NoisySGD,
    Process,
    RandomAllocationSampling,
    ShuffledSampling,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Once an epoch, composed"
SOURCE = Source("Dong, Roth, Su 2019", "Corollary 3.3", "drs19")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD
_EPOCHWISE = (CyclicSampling, ShuffledSampling, BallsInBinsSampling, RandomAllocationSampling)


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "noisy SGD", process)
    if not isinstance(process.sampling, _EPOCHWISE):
        return Refusal(
            f"{NAME} applies to batches that visit records equally often in every epoch; got "
            f"{process.sampling}.",
            "foreign",
        )
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: NoisySGD) -> GaussianGuarantee:
    require(applies(process))
    assert isinstance(process.sampling, _EPOCHWISE)
    visits = -(-process.steps // process.sampling.batches_per_epoch)
    if isinstance(process.sampling, RandomAllocationSampling):
        visits *= process.sampling.joins
    cyclic = isinstance(process.sampling, CyclicSampling)
    mu = math.sqrt(visits) * process.step_mu if visits else 0.0
    return GaussianGuarantee(mu, process.adjacency, Validity.EXACT if cyclic else VALIDITY)
