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
from tightrope.process import FullBatch, GaussianMechanism, NoisySGD, Process
from tightrope.theorems.base import Refusal, Source, require

NAME = "Gaussian mechanism"
SOURCE = Source("Dong, Roth, Su 2019", "Theorem 2.7", "drs19")
VALIDITY = Validity.EXACT


def applies(process: Process) -> Refusal | None:
    if isinstance(process, GaussianMechanism):
        return None
    if isinstance(process, NoisySGD):
        if isinstance(process.sampling, FullBatch) or process.sampling.rate == 1.0:
            return None
        return Refusal(
            f"{NAME} needs every record in every step; got {process.sampling}. "
            "Use the sampled Gaussian analyses."
        )
    return Refusal(f"{NAME} needs Gaussian noise; got {type(process).__name__}.")


def guarantee(process: GaussianMechanism | NoisySGD) -> GaussianGuarantee:
    require(applies(process))
    if isinstance(process, NoisySGD):
        mu = process.step_mu * math.sqrt(process.steps)
        return GaussianGuarantee(mu if process.steps else 0.0, process.adjacency, VALIDITY)
    noise = process.noise_multiplier
    mu = 1.0 / noise if noise > 0 else math.inf
    return GaussianGuarantee(mu, process.adjacency, VALIDITY)
