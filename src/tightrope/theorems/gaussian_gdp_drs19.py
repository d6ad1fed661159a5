"""The Gaussian mechanism is Gaussian DP.

Statement: releasing a query plus N(0, s^2) is mu-GDP with mu = sensitivity / s, attained. A full
    batch step of noisy SGD is such a release; its sum moves by the clip norm when a record is
    added or removed and by twice the clip norm when one is replaced.
Conditions: Gaussian noise, every record in the release (no sampling).
Validity: exact.
Source: Dong, Roth, Su 2019 (arXiv:1905.02383v3), Theorem 2.7.
Error: none beyond the rounding of one division.
Vectors: gdp_delta, gdp_eps, tradeoff_gaussian.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import (
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    NoisySGD,
    PoissonSampling,
    Process,
    RandomAllocationSampling,
    ShuffledSampling,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Gaussian mechanism"
SOURCE = Source("Dong, Roth, Su 2019", "Theorem 2.7", "drs19")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD
# with rate 1 each of these takes every record into every batch, once, and nothing gives way to it
_ALL_AT_RATE_ONE = (
    FullBatch,
    PoissonSampling,
    FixedSizeSampling,
    ShuffledSampling,
    CyclicSampling,
    BallsInBinsSampling,
    RandomAllocationSampling,
)


def applies(process: Process) -> Refusal | None:
    if isinstance(process, GaussianMechanism):
        return other_neighbours(NAME, process, RELATIONS)
    if isinstance(process, NoisySGD):
        if isinstance(process.sampling, _ALL_AT_RATE_ONE) and process.sampling.rate == 1.0:
            return other_neighbours(NAME, process, RELATIONS)
        return Refusal(
            f"{NAME} needs every record in every step; got {process.sampling}. "
            "Use the sampled Gaussian analyses."
        )
    return foreign(NAME, "a Gaussian mechanism or noisy SGD", process)


def guarantee(process: GaussianMechanism | NoisySGD) -> GaussianGuarantee:
    require(applies(process))
    if isinstance(process, NoisySGD):
        mu = process.step_mu * math.sqrt(process.steps)
        return GaussianGuarantee(mu if process.steps else 0.0, process.adjacency, VALIDITY)
    noise = process.noise_multiplier
    mu = 1.0 / noise if noise > 0 else math.inf
    return GaussianGuarantee(mu, process.adjacency, VALIDITY)
