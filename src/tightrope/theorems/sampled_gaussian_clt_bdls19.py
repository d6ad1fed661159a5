"""Central limit theorem: many sampled steps look like one Gaussian mechanism.

Statement: if rate * sqrt(steps) -> nu, the composed trade-off function tends to G_mu with
    mu = nu sqrt(e^(1/s^2) - 1), s the noise multiplier; used at finite steps as
    mu = rate sqrt(steps (e^(1/s^2) - 1)). For replace-one neighbours (symmetrised steps)
    mu = sqrt(2) rate sqrt(steps (e^(m^2) Phi(3m/2) + 3 Phi(-m/2) - 2)), m = 2/s. mu^2 adds over
    different steps.
Conditions: Poisson sampling (add-or-remove), fixed-size or Poisson sampling (replace-one), full
    batches (where it is exact), also with scheduled noise; declared mu-GDP.
Validity: ESTIMATE in neither direction. It claims too much privacy in eight of the nine rows of the
    paper's own tables, by up to 2.14 in epsilon; never calibrate with it.
Source: Bu, Dong, Long, Su 2019 (arXiv:1911.11607), Theorem 5 (its printed T inside mu is wrong);
    Dong, Roth, Su 2019 (arXiv:1905.02383v3), Corollary 5.4.
Error: unknown at finite steps; `account` states the true error beside it (`estimate_error`).
Vectors: clt_mu.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from tightrope.guarantee.base import Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import (
    Adjacency,
    DeclaredGaussianDP,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Process,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, other_neighbours, require

NAME = "Central limit theorem (GDP)"
SOURCE = Source("Bu, Dong, Long, Su 2019", "Theorem 5", "bdls19")
VALIDITY = Validity.ESTIMATE
RELATIONS = ONE_RECORD
_WHY = "a limit for many steps of small rate; its error at this setting is not bounded"


def applies(process: Process) -> Refusal | None:
    if isinstance(process, (GaussianMechanism, DeclaredGaussianDP)):
        return other_neighbours(NAME, process, RELATIONS)
    if isinstance(process, NoiseSchedule):
        return applies(NoisySGD(process.sampling, 1.0, 1, process.adjacency))
    if not isinstance(process, NoisySGD):
        return Refusal(
            f"{NAME} is stated here for (sampled) Gaussian steps; got {type(process).__name__}.",
            "foreign",
        )
    if isinstance(process.sampling, (PoissonSampling, FullBatch)):
        return other_neighbours(NAME, process, RELATIONS)
    if isinstance(process.sampling, FixedSizeSampling):
        if process.adjacency is Adjacency.REPLACE_ONE:
            return None
        return Refusal(
            f"{NAME} with fixed-size batches needs replace-one neighbours; got "
            f"{process.adjacency}.",
            "neighbours",
        )
    return Refusal(f"{NAME} needs batches drawn afresh for every step; got {process.sampling}.")


def guarantee(process: Process) -> Estimate:
    require(applies(process))
    return Estimate(GaussianGuarantee(mu(process), process.adjacency), _WHY)


def mu(process: Process) -> float:
    """The limit's parameter."""
    if isinstance(process, DeclaredGaussianDP):
        return float(process.mu)
    if isinstance(process, GaussianMechanism):
        noise = float(process.noise_multiplier)
        return 1.0 / noise if noise > 0 else math.inf
    if isinstance(process, NoiseSchedule):
        noises, counts = np.unique(np.array(process.noise_multipliers), return_counts=True)
        parts = [
            mu(NoisySGD(process.sampling, float(noise), int(count), process.adjacency))
            for noise, count in zip(noises, counts, strict=True)
        ]
        return math.hypot(*parts)
    assert isinstance(process, NoisySGD)
    m, rate, steps = process.step_mu, process.sampling.rate, process.steps
    if rate == 0.0 or steps == 0:
        return 0.0
    if rate == 1.0 or m == math.inf:
        return float(m * math.sqrt(steps))
    if process.adjacency is not Adjacency.REPLACE_ONE:
        return float(rate * math.sqrt(steps) * _sqrt_expm1(m * m))
    if m * m > 700.0:
        return math.inf
    chi = math.exp(m * m) * ndtr(1.5 * m) + 3.0 * ndtr(-0.5 * m) - 2.0
    return float(rate * math.sqrt(2.0 * steps) * math.sqrt(max(chi, 0.0)))


def _sqrt_expm1(square: float) -> float:
    return math.sqrt(math.expm1(square)) if square < 700.0 else math.exp(min(square / 2, 709.0))
