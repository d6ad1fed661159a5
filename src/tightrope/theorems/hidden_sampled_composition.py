"""Noisy SGD on secret random batches, every iterate seen: composition of sampled Gaussians.

Statement: with q = batch_size / records and mu_1 = 2 L / (batch_size * noise_std) each of the T
    steps is C_q(G_{mu_1})-DP; all iterates together are C_q(G_{mu_1}) composed T times.
Conditions: uniform batches of fixed size, drawn afresh and kept secret; gradients whose
    record-dependent part has norm <= L; replace-one neighbours. No convexity: this is the fallback.
Validity: upper bound.
Source: Dong, Roth, Su 2019 (arXiv:1905.02383), Theorem 4.2.
Error: that of the numerical composition of the dominating pair.
Vectors: one example (q = 0.01, noise multiplier 2, 1000 steps: 2.199).
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.process import Adjacency, FixedSizeSampling, NoisySGD, Process
from tightrope.process.convex import SubsampledSGD
from tightrope.theorems import sampled_gaussian_replace_drs19
from tightrope.theorems.base import REPLACED, Refusal, Source, foreign, require
from tightrope.theorems.hidden_steps import step_mu

NAME = "Composition of noisy steps on random batches"
SOURCE = Source("Dong, Roth, Su 2019", "Theorem 4.2", "drs19")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, SubsampledSGD):
        return foreign(NAME, "SubsampledSGD", process)
    if process.adjacency is not Adjacency.REPLACE_ONE:
        return Refusal(
            f"{NAME} needs replace-one neighbours, since batches of fixed size make the number of "
            f"records public; got {process.adjacency}.",
            "neighbours",
        )
    return None


def guarantee(process: SubsampledSGD) -> Guarantee:
    require(applies(process))
    noise = 2.0 / step_mu(process) * (1.0 - 1e-15)  # in the unit of what a replaced record moves
    steps = NoisySGD(FixedSizeSampling(process.rate), noise, process.steps, process.adjacency)
    return sampled_gaussian_replace_drs19.guarantee(steps).as_bound()
