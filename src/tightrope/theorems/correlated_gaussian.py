"""Noise that is correlated over the steps, for records that take part where no chance decides.

Statement: with lower triangular C of positive diagonal, releasing every step's sum plus row i of
    C^-1 Z, Z of independent N(0, noise_multiplier^2) (clip norm 1), is mu-GDP with
    mu = moved * S / noise_multiplier. S is the largest root of sum_{s,t in P} |(C^T C)_st| over the
    sets P of steps that one record can take part in; moved = 2 where it is replaced, else 1.
Proof: C is invertible, so the releases Y = G + C^-1 Z are as informative as C Y = C G + Z, whose
    row i is known once the first i releases are. The clipped gradients of step j depend on the rows
    before j only, so between neighbours row i moves by d_i = sum_{j <= i} C_ij u_j, a function of
    the rows before i, with u_j = 0 off P and |u_j| <= moved. For each transcript
    sum_i |d_i|^2 = sum_{s,t in P} (C^T C)_st <u_s, u_t> <= (moved S)^2. Release independent noise
    moved by what is missing, so that the sum is (moved S)^2 always (the extra release can only
    help an observer). Then the privacy loss is a stochastic integral with this constant quadratic
    variation: under either law it is exactly that of N(0, 1) against N(mu, 1) (Levy). P itself may
    depend on the releases, as the bound holds for each transcript. Attained where C^T C has no
    negative entry on the worst P: u_j constant.
Conditions: every record takes part in a fixed cycle (CyclicSampling; cyclic Poisson at rate 1),
    once in each epoch whichever step (ShuffledSampling, BallsInBinsSampling; of these and of
    RandomCycleSampling it is not counted that steps are secret), at most so often and so far apart
    (SeparatedSampling), or in every step (FullBatch). A record that is added or removed leaves the
    others where they are, and a replaced one keeps the places of the one before.
Validity: exact where the lower end of the sensitivity meets the upper one and the sampler keeps
    nothing secret; else a bound, whose lower ends are those of one set of steps.
Source: Denisov et al. 2022 (arXiv:2202.08312), Theorem 2.1, for one participation;
    Choquette-Choo et al. 2023 (arXiv:2211.06530), Section 2, for several; the proof above.
Error: `correlated/sensitivity.py` states that of the sensitivity, both ends of which are kept.
Vectors: prefix_sum_multi_participation, prefix_sum_single_participation.
"""

from __future__ import annotations

import math

from tightrope.correlated.sensitivity import Cycle, OnceAnEpoch, Pattern, Separated, sensitivity
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import (
    BallsInBinsSampling,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    FullBatch,
    Process,
    RandomCycleSampling,
    SeparatedSampling,
    ShuffledSampling,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Correlated Gaussian noise"
SOURCE = Source("Denisov et al. 2022", "Theorem 2.1", "dmrst22")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD

_EXACT = 1e-9  # relative width of the sensitivity


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, CorrelatedSGD):
        return foreign(NAME, "CorrelatedSGD", process)
    if pattern(process) is None:
        return Refusal(
            f"{NAME} needs to know which sets of steps one record can take part in; got "
            f"{process.sampling}, for which no such set is small or no account of correlated noise "
            "is certified. Use CyclicSampling, SeparatedSampling or FullBatch, or "
            "CyclicPoissonSampling with a strategy that has at most as many bands as its cycle.",
            "foreign" if isinstance(process.sampling, CyclicPoissonSampling) else "condition",
        )
    return other_neighbours(NAME, process, RELATIONS)


def pattern(process: CorrelatedSGD) -> Pattern | None:
    """The sets of steps that one record can take part in; nothing longer than the run."""
    most = max(process.steps, 1)
    match process.sampling:
        case CyclicSampling(batches) | RandomCycleSampling(batches):
            return Cycle(min(batches, most))
        case CyclicPoissonSampling(1.0, cycle):
            return Cycle(min(cycle, most))
        case ShuffledSampling(batches) | BallsInBinsSampling(batches):
            return OnceAnEpoch(min(batches, most))
        case SeparatedSampling(separation, most_joins):
            return Separated(min(most_joins, most), min(separation, most))
        case FullBatch():
            return Cycle(1)
    return None


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, CorrelatedSGD)
    at = pattern(process)
    assert at is not None
    found = sensitivity(process.strategy, at, process.steps)
    if found.upper == 0.0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    if process.noise_multiplier == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    scale = process.adjacency.moved / process.noise_multiplier
    mu = scale * found.upper
    if isinstance(process.sampling, ShuffledSampling | BallsInBinsSampling | RandomCycleSampling):
        return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)
    validity = VALIDITY if found.relative_width <= _EXACT else Validity.BOUND
    least = min(scale * found.lower, mu)
    return GaussianGuarantee(mu, process.adjacency, validity, least_mu=least)
