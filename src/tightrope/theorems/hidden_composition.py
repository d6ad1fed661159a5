"""Noisy gradient methods in a public order with every iterate seen: plain composition.

Statement: a step that uses the record is a Gaussian mechanism of parameter mu_1 = 2 L / (batch *
    noise_std); used in k steps the record is protected by sqrt(k) mu_1-GDP, whatever is released.
Conditions: gradients whose record-dependent part has norm <= L; replace-one neighbours. Convexity,
    smoothness and secrecy of the iterates are not needed: this is the fallback.
Validity: upper bound for the last iterate, exact when every iterate is released.
Source: Dong, Roth, Su 2019 (arXiv:1905.02383), Corollary 3.3.
Error: mu is raised by 1e-14 relative.
Vectors: thm_VII1 (composition).
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency, Process
from tightrope.process.convex import (
    ContractiveIteration,
    CyclicSGD,
    IterationNoise,
    NoisyGradientDescent,
    SkipSGD,
    StopSGD,
)
from tightrope.theorems.base import REPLACED, Refusal, Source, foreign, require
from tightrope.theorems.hidden_steps import step_mu

NAME = "Composition of noisy gradient steps"
SOURCE = Source("Dong, Roth, Su 2019", "Corollary 3.3", "drs19")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_KINDS = (NoisyGradientDescent, CyclicSGD, SkipSGD, StopSGD, ContractiveIteration)


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, _KINDS):
        wanted = ", ".join(kind.__name__ for kind in _KINDS)
        return foreign(NAME, f"one of {wanted}", process)
    if process.adjacency is not Adjacency.REPLACE_ONE:
        return Refusal(
            f"{NAME} needs replace-one neighbours; got {process.adjacency}.", "neighbours"
        )
    if isinstance(process, ContractiveIteration):
        if process.noise is not IterationNoise.GAUSSIAN:
            return Refusal(f"{NAME} is about Gaussian noise; got {process.noise}.")
        if process.start_distance > 0.0:
            return Refusal(
                f"{NAME} needs a common start; got start_distance {process.start_distance:g}."
            )
    return None


def squared_mu(process: Process) -> float:
    if isinstance(process, ContractiveIteration):
        steps = zip(process.sensitivities, process.noise_scales, strict=True)
        return math.fsum((s / noise) ** 2 if noise else math.inf for s, noise in steps if s > 0.0)
    uses = 1  # one pass uses a record at most once
    if isinstance(process, NoisyGradientDescent):
        uses = process.steps
    elif isinstance(process, CyclicSGD):
        uses = process.epochs
    return uses * step_mu(process) ** 2


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    mu = math.sqrt(squared_mu(process)) * (1.0 + 1e-14)
    return GaussianGuarantee(mu, process.adjacency, VALIDITY)
