"""Gaussian noise that is correlated over the steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import numpy as np

from tightrope.correlated.sensitivity import (
    Cycle,
    OnceAnEpoch,
    Pattern,
    Separated,
    column_norms,
    sensitivity,
)
from tightrope.correlated.strategies import ToeplitzStrategy
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    FullBatch,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    RandomCycleSampling,
    SeparatedSampling,
    ShuffledSampling,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    Proved,
    Refusal,
    Source,
)
from tightrope.theorems.bins import BallsInBinsExact, gaussian_bound
from tightrope.theorems.composition import NoiseScheduleExact


@final
class CorrelatedGaussian(Proved):
    """Noise that is correlated over the steps, for records that take part where no chance decides.

    Statement: with lower triangular C of positive diagonal, releasing every step's sum plus row i
        of C^-1 Z, Z of independent N(0, noise_multiplier^2) (clip norm 1), is mu-GDP with mu =
        moved * S / noise_multiplier. S is the largest root of sum_{s,t in P} |(C^T C)_st| over the
        sets P of steps that one record can take part in; moved = 2 where it is replaced, else 1.
    Proof: C is invertible, so the releases Y = G + C^-1 Z are as informative as C Y = C G + Z,
        whose row i is known once the first i releases are. The clipped gradients of step j depend
        on the rows before j only, so between neighbours row i moves by d_i = sum_{j <= i} C_ij u_j,
        a function of the rows before i, with u_j = 0 off P and |u_j| <= moved. For each transcript
        sum_i |d_i|^2 = sum_{s,t in P} (C^T C)_st <u_s, u_t> <= (moved S)^2. Release independent
        noise moved by what is missing, so that the sum is (moved S)^2 always (the extra release can
        only help an observer). Then the privacy loss is a stochastic integral with this constant
        quadratic variation: under either law it is exactly that of N(0, 1) against N(mu, 1) (Levy).
        P itself may depend on the releases, as the bound holds for each transcript. Attained where
        C^T C has no negative entry on the worst P: u_j constant.
    Conditions: every record takes part in a fixed cycle (CyclicSampling; cyclic Poisson at rate 1),
        once in each epoch whichever step (ShuffledSampling, BallsInBinsSampling; of these and of
        RandomCycleSampling it is not counted that steps are secret), at most so often and so far
        apart (SeparatedSampling), or in every step (FullBatch). A record that is added or removed
        leaves the others where they are, and a replaced one keeps the places of the one before.
    Validity: exact where the lower end of the sensitivity meets the upper one and the sampler keeps
        nothing secret; else a bound, whose lower ends are those of one set of steps.
    Source: Denisov et al. 2022 (arXiv:2202.08312), Theorem 2.1, for one participation;
        Choquette-Choo et al. 2023 (arXiv:2211.06530), Section 2, for several; the proof above.
    Error: `correlated/sensitivity.py` states that of the sensitivity, both ends of which are kept.
    Vectors: prefix_sum_multi_participation, prefix_sum_single_participation.
    """

    NAME = "Correlated Gaussian noise"
    SOURCE = Source("Denisov et al. 2022", "Theorem 2.1", "dmrst22")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (CorrelatedSGD,)

    @classmethod
    def condition(cls, process: CorrelatedSGD) -> Refusal | None:
        if pattern(process) is not None:
            return None
        return Refusal(
            f"{cls.NAME} needs to know which sets of steps one record can take part in; got "
            f"{process.sampling}, for which no such set is small or no account of correlated noise "
            "is certified. Use CyclicSampling, SeparatedSampling or FullBatch, or "
            "CyclicPoissonSampling with a strategy that has at most as many bands as its cycle.",
            "foreign" if isinstance(process.sampling, CyclicPoissonSampling) else "condition",
        )

    @classmethod
    def proved(cls, process: CorrelatedSGD) -> Guarantee:
        at = pattern(process)
        assert at is not None
        found = sensitivity(process.strategy, at, process.steps)
        if found.upper == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if process.noise_multiplier == 0.0:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        scale = process.adjacency.moved / process.noise_multiplier
        mu = scale * found.upper
        if isinstance(
            process.sampling, ShuffledSampling | BallsInBinsSampling | RandomCycleSampling
        ):
            return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)
        validity = Validity.EXACT if found.relative_width <= _EXACT else Validity.BOUND
        least = min(scale * found.lower, mu)
        return GaussianGuarantee(mu, process.adjacency, validity, least_mu=least)


_EXACT = 1e-9  # relative width of the sensitivity


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


@final
class BandedCyclicPoisson(Proved):
    """Correlated noise with banded C, Poisson batches from one group of records after the other.

    Statement: let C have at most b bands, and let each step draw its batch from the next of b
        groups, with rate q (CyclicPoissonSampling(q, b)). Then the run is dominated by the
        composition, over the r-th turns of the groups, of Poisson-sampled Gaussian steps of rate q
        and noise noise_multiplier / |c_r|, where c_r is the longest column of C among the r-th
        turns of all groups: ceil(steps / b) of them. Attained where one group has all these
        columns, so where C is Toeplitz (the first group), or where all columns are equally long.
    Proof: as for `correlated_gaussian`, release C G + Z. Fix the group of the record, which the
        others do not change; its turns are the steps t, t + b, ... and column t of C is zero
        outside of the rows t, ..., t + b - 1, in which the record has no other turn. Condition on
        the coins of the others (joint convexity). In these rows the record adds C_it X_t g_t to row
        i, where its coin X_t is 1 with probability q and g_t depends on the rows before t only;
        what the others add to row i depends on the rows before i, and is subtracted row by row.
        What is left is one observation of X_t (c_t x g_t) plus N(0, noise_multiplier^2 I), |c_t x
        g_t| <= |c_t|: a step of Poisson-sampled Gaussian noise, dominated by that of a shift |c_t|
        (more noise, or less of the shift, is post-processing). The turns compose adaptively. A
        shorter column is less of a shift, so for every group the lengths may be raised to those of
        the worst one, turn by turn. Where all gradients of others are 0 and g_t is constant, group
        1 attains its own columns.
    Conditions: at most as many bands as the cycle has steps; a fixed public partition, in which a
        record's group does not depend on other records; fresh secret coins; public divisor.
    Validity: exact where attained; otherwise, and beyond 1,000 different columns, an upper bound.
    Source: Choquette-Choo et al. 2023 (arXiv:2306.08153), Theorem 4; proof above for both ends, and
        for replaced records (`poisson_replace_one_exact`), which keep their group.
    Error: lengths of columns are rounded up by some units of a double, equal ones to the longest of
        them; the numerical composition states its own.
    Vectors: banded_cyclic_poisson.
    """

    NAME = "Banded noise with cyclic Poisson batches, exact"
    SOURCE = Source("Choquette-Choo et al. 2023", "Theorem 4", "cgmrtt23")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (CorrelatedSGD,)
    SAMPLING = (CyclicPoissonSampling,)

    @classmethod
    def condition(cls, process: CorrelatedSGD) -> Refusal | None:
        cycle = process.sampling.cycle  # type: ignore[attr-defined]
        bands = process.strategy.bands or process.steps
        if min(bands, process.steps) > cycle:
            return Refusal(
                f"{cls.NAME} needs a strategy with at most as many bands as the cycle has steps, "
                f"so that a record's turns do not meet; got {bands} bands and a cycle of {cycle}. "
                f"Use a longer cycle, or a strategy of {cycle} bands."
            )
        return None

    @classmethod
    def proved(cls, process: CorrelatedSGD) -> Guarantee:
        assert isinstance(process.sampling, CyclicPoissonSampling)
        if process.steps == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
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
        steps = NoiseSchedule(
            PoissonSampling(process.sampling.join_rate), noises, process.adjacency
        )
        return _of_one_record(NoiseScheduleExact.guarantee(steps), attained)


_SAME = 1e-14  # relative


def _of_one_record(found: Guarantee, attained: bool) -> Guarantee:
    """The rows of two records' turns meet: a group is no mixture, step by step."""
    if isinstance(found, LossGuarantee):
        found = replace(found, by_record=False)
    if attained or found.validity is not Validity.EXACT:
        return found
    return replace(found, validity=Validity.BOUND)  # type: ignore[type-var]


@final
class BandedRandomCycle(Proved):
    """Correlated noise with banded C: every record has one secret place in a cycle of batches.

    Statement: let C have at most p bands, and let every record choose one of b >= p places
        uniformly, once, in secret, and join the batches of this place in each of k cycles
        (RandomCycleSampling). With N = floor(b / p) and c the longest column of C, the run is
        dominated by one epoch of balls in bins with N batches and noise noise_multiplier / (sqrt(k)
        |c|).
    Proof: as for `correlated_gaussian`, release C G + Z. Let I be N places that are p or more apart
        around the cycle, turned by a uniformly random number t, in public: I + t. A uniform place
        of I + t is a uniform place, so the hockey-stick divergences are at most the mean over t of
        those for records that choose from I + t (joint convexity). Fix t, and the choices of the
        others. Columns of steps p apart have no row in common, so each row r holds the record's
        gradients in case of at most one place i: the row moves by a_i(r), known from the rows
        before, for this i, and sum_r |a_i(r)|^2 <= k |c|^2. Without the record, the likelihood
        ratio is S = (1/N) sum_i exp(M_i - <M_i>/2), M_i = sum_r <a_i(r), Z_r> / noise_multiplier^2.
        Fill each <M_i> up to k |c|^2 / noise_multiplier^2 by independent releases, which can only
        help an observer. The M_i are orthogonal martingales (continuous ones, each row run as a
        Brownian motion), so by Knight's theorem they are independent Brownian motions, each on its
        own clock, and all clocks end at the same constant: the M_i are independent normal numbers,
        and S is the ratio of balls in bins with N batches. Both orders of neighbours are functions
        of its law.
    Conditions: places chosen independently of the data and of each other, and kept secret with the
        sizes of the batches; at most b bands; public divisor.
    Validity: upper bound; exact for independent noise (C = I) over whole cycles, where it is
        attained by gradients that are 0 but for the record's. A replaced record is one removed and
        one added.
    Source: our own; the proof above. The pair for C = I: Choquette-Choo et al. 2024
        (arXiv:2410.06266), Lemma 3.2.
    Error: `balls_in_bins_exact` states its own.
    Vectors: balls_in_bins (by what it is reduced to).
    """

    NAME = "Banded noise with one secret place in a cycle"
    SOURCE = Source("Tightrope", "the proof on its page", "own")
    RELATIONS = ONE_RECORD
    OF = (CorrelatedSGD,)
    SAMPLING = (RandomCycleSampling,)

    @classmethod
    def condition(cls, process: CorrelatedSGD) -> Refusal | None:
        cycle = process.sampling.batches_per_epoch  # type: ignore[attr-defined]
        bands = process.strategy.bands
        if bands is not None and bands <= cycle:
            return None
        claim = "as many bands as steps" if bands is None else f"{bands} bands"
        return Refusal(
            f"{cls.NAME} needs a strategy with at most as many bands as the cycle has steps; got "
            f"{claim} and a cycle of {cycle}. Use fewer bands.",
            "foreign",  # without the secret, such noise is accounted for too
        )

    @classmethod
    def proved(cls, process: CorrelatedSGD) -> Guarantee:
        assert isinstance(process.sampling, RandomCycleSampling)
        if process.steps == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if process.noise_multiplier == 0.0:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        cycle, bands = process.sampling.batches_per_epoch, process.strategy.bands or process.steps
        cycles, places = -(-process.steps // cycle), cycle // bands
        longest = float(column_norms(process.strategy, process.steps).max())
        noise = process.noise_multiplier / (math.sqrt(cycles) * longest) * (1.0 - 1e-15)
        bins = NoisySGD(BallsInBinsSampling(places), noise, places, process.adjacency)
        if places == 1:
            return replace(gaussian_bound(bins), validity=Validity.BOUND)
        if process.adjacency is Adjacency.REPLACE_ONE:
            bins = replace(bins, adjacency=Adjacency.ADD_OR_REMOVE)
        found = BallsInBinsExact.guarantee(bins)
        assert isinstance(found, LossGuarantee)
        shown = replace(found, otherwise=gaussian_bound(bins))
        if bands > 1 or process.steps % cycle:
            shown = replace(shown, validity=Validity.BOUND, attained=())
        return shown if shown.adjacency is process.adjacency else shown.as_replace_one()
