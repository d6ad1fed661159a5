"""Correlated noise with banded C, where every record has one secret place in a cycle of batches.

Statement: let C have at most p bands, and let every record choose one of b >= p places uniformly,
    once, in secret, and join the batches of this place in each of k cycles (RandomCycleSampling).
    With N = floor(b / p) and c the longest column of C, the run is dominated by one epoch of balls
    in bins with N batches and noise noise_multiplier / (sqrt(k) |c|).
Proof: as for `correlated_gaussian`, release C G + Z. Let I be N places that are p or more apart
    around the cycle, turned by a uniformly random number t, in public: I + t. A uniform place of
    I + t is a uniform place, so the hockey-stick divergences are at most the mean over t of those
    for records that choose from I + t (joint convexity). Fix t, and the choices of the others.
    Columns of steps p apart have no row in common, so each row r holds the record's gradients in
    case of at most one place i: the row moves by a_i(r), known from the rows before, for this i,
    and sum_r |a_i(r)|^2 <= k |c|^2. Without the record, the likelihood ratio is
    S = (1/N) sum_i exp(M_i - <M_i>/2), M_i = sum_r <a_i(r), Z_r> / noise_multiplier^2. Fill each
    <M_i> up to k |c|^2 / noise_multiplier^2 by independent releases, which can only help an
    observer. The M_i are orthogonal martingales (continuous ones, each row run as a Brownian
    motion), so by Knight's theorem they are independent Brownian motions, each on its own clock,
    and all clocks end at the same constant: the M_i are independent normal numbers, and S is the
    ratio of balls in bins with N batches. Both orders of neighbours are functions of its law.
Conditions: places chosen independently of the data and of each other, and kept secret with the
    sizes of the batches; at most b bands; public divisor.
Validity: upper bound; exact for independent noise (C = I) over whole cycles, where it is attained
    by gradients that are 0 but for the record's. A replaced record is one removed and one added.
Source: our own; the proof above. The pair for C = I: Choquette-Choo et al. 2024
    (arXiv:2410.06266), Lemma 3.2.
Error: `balls_in_bins_exact` states its own.
Vectors: balls_in_bins (by what it is reduced to).
"""

from __future__ import annotations

import math
from dataclasses import replace

from tightrope.correlated.sensitivity import column_norms
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CorrelatedSGD,
    NoisySGD,
    Process,
    RandomCycleSampling,
)
from tightrope.theorems import balls_in_bins_exact
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Banded noise with one secret place in a cycle"
SOURCE = Source("Tightrope", "the proof on its page", "own")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, CorrelatedSGD):
        return foreign(NAME, "CorrelatedSGD", process)
    if not isinstance(process.sampling, RandomCycleSampling):
        return Refusal(f"{NAME} needs RandomCycleSampling; got {process.sampling}.", "foreign")
    bands, cycle = process.strategy.bands, process.sampling.batches_per_epoch
    if bands is None or bands > cycle:
        said = "as many bands as steps" if bands is None else f"{bands} bands"
        return Refusal(
            f"{NAME} needs a strategy with at most as many bands as the cycle has steps; got "
            f"{said} and a cycle of {cycle}. Use fewer bands.",
            "foreign",  # without the secret, such noise is accounted for too
        )
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, CorrelatedSGD)
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
        return replace(balls_in_bins_exact.gaussian_bound(bins), validity=VALIDITY)
    if process.adjacency is Adjacency.REPLACE_ONE:
        bins = replace(bins, adjacency=Adjacency.ADD_OR_REMOVE)
    found = balls_in_bins_exact.guarantee(bins)
    assert isinstance(found, LossGuarantee)
    shown = replace(found, otherwise=balls_in_bins_exact.gaussian_bound(bins))
    if bands > 1 or process.steps % cycle:
        shown = replace(shown, validity=VALIDITY, attained=())
    return shown if shown.adjacency is process.adjacency else shown.as_replace_one()
