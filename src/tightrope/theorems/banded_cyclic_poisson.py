"""Correlated noise with banded C, and Poisson batches from one group of records after the other.

Statement: let C have at most b bands, and let each step draw its batch from the next of b groups,
    with rate q (CyclicPoissonSampling(q, b)). Then the run is dominated by the composition, over
    the r-th turns of the groups, of Poisson-sampled Gaussian steps of rate q and noise
    noise_multiplier / |c_r|, where c_r is the longest column of C among the r-th turns of all
    groups: ceil(steps / b) of them. Attained where one group has all these columns, so where C is
    Toeplitz (the first group), or where all columns are equally long.
Proof: as for `correlated_gaussian`, release C G + Z. Fix the group of the record, which the others
    do not change; its turns are the steps t, t + b, ... and column t of C is zero outside of the
    rows t, ..., t + b - 1, in which the record has no other turn. Condition on the coins of the
    others (joint convexity). In these rows the record adds C_it X_t g_t to row i, where its coin
    X_t is 1 with probability q and g_t depends on the rows before t only; what the others add to
    row i depends on the rows before i, and is subtracted row by row. What is left is one
    observation of X_t (c_t x g_t) plus N(0, noise_multiplier^2 I), |c_t x g_t| <= |c_t|: a step of
    Poisson-sampled Gaussian noise, dominated by that of a shift |c_t| (more noise, or less of the
    shift, is post-processing). The turns compose adaptively. A shorter column is less of a shift,
    so for every group the lengths may be raised to those of the worst one, turn by turn.
    Where all gradients of others are 0 and g_t is constant, group 1 attains its own columns.
Conditions: at most as many bands as the cycle has steps; a fixed public partition, in which a
    record's group does not depend on other records; fresh secret coins; public divisor.
Validity: exact where attained; otherwise, and beyond 1,000 different columns, an upper bound.
Source: Choquette-Choo et al. 2023 (arXiv:2306.08153), Theorem 4; proof above for both ends, and for
    replaced records (`poisson_replace_one_exact`), which keep their group.
Error: lengths of columns are rounded up by some units of a double, equal ones to the longest of
    them; the numerical composition states its own.
Vectors: banded_cyclic_poisson.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tightrope.correlated.sensitivity import column_norms
from tightrope.correlated.strategies import ToeplitzStrategy
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.process import (
    CorrelatedSGD,
    CyclicPoissonSampling,
    NoiseSchedule,
    PoissonSampling,
    Process,
)
from tightrope.theorems import noise_schedule_exact
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Banded noise with cyclic Poisson batches, exact"
SOURCE = Source("Choquette-Choo et al. 2023", "Theorem 4", "cgmrtt23")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD

_SAME = 1e-14  # relative


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, CorrelatedSGD):
        return foreign(NAME, "CorrelatedSGD", process)
    sampling = process.sampling
    if not isinstance(sampling, CyclicPoissonSampling):
        return Refusal(f"{NAME} needs CyclicPoissonSampling; got {sampling}.", "foreign")
    bands = process.strategy.bands or process.steps
    if min(bands, process.steps) > sampling.cycle:
        return Refusal(
            f"{NAME} needs a strategy with at most as many bands as the cycle has steps, so that a "
            f"record's turns do not meet; got {bands} bands and a cycle of {sampling.cycle}. Use a "
            f"longer cycle, or a strategy of {sampling.cycle} bands."
        )
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, CorrelatedSGD)
    assert isinstance(process.sampling, CyclicPoissonSampling)
    if process.steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    if process.noise_multiplier == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    cycle = min(process.sampling.cycle, process.steps)
    lengths = column_norms(process.strategy, process.steps)
    turns = -(-process.steps // cycle)
    padded = np.zeros(turns * cycle)
    padded[: process.steps] = lengths
    by_turn = padded.reshape(turns, cycle)
    longest = by_turn.max(axis=1)
    attained = isinstance(process.strategy, ToeplitzStrategy) or bool(
        np.any(np.all(by_turn >= longest[:, None] * (1.0 - _SAME), axis=0))
    )
    whole = longest.max()  # equal up to rounding: one kind of step
    longest = np.where(longest >= whole * (1.0 - _SAME), whole, longest)
    noises = tuple((process.noise_multiplier / (longest * (1.0 + 1e-15))).tolist())
    steps = NoiseSchedule(PoissonSampling(process.sampling.join_rate), noises, process.adjacency)
    return _of_one_record(noise_schedule_exact.guarantee(steps), attained)


def _of_one_record(found: Guarantee, attained: bool) -> Guarantee:
    """The rows of two records' turns meet: a group is no mixture, step by step."""
    if isinstance(found, LossGuarantee):
        found = replace(found, by_record=False)
    if attained or found.validity is not Validity.EXACT:
        return found
    return replace(found, validity=Validity.BOUND)  # type: ignore[type-var]
