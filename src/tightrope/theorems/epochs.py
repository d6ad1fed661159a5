"""Batches that visit every record equally often: a bound, and what a shuffled run loses at least.

What shuffled batches lose at least: two data sets that attain it, and a test that shows it.

The bound for shuffled batches (`epochwise_gaussian_gdp`) claims no amplification, and how much of
it is true is not known. Two neighbours give a lower end. All other gradients are -1 along one axis.
* Replaced: the record is +1 or -1. Its batch, a uniform one, moves by two clip norms: exactly the
  pair of balls in bins with mu = step_mu, so its epsilon is attained, and so is that of the test
  below with the shifts step_mu and 0.
* Removed, its place staying empty: the batch of that place is two clip norms above the others with
  the record and one without it: (1/t) sum_i N(2 mu e_i, I) against (1/t) sum_i N(mu e_i, I)
  (Chua et al. 2024, arXiv:2403.17673). Whether the largest of the t sums exceeds c is a
  post-processing, with the chances 1 - Phi(c - 2 mu) Phi(c)^(t-1) and 1 - Phi(c - mu) Phi(c)^(t-1).
  One such test an epoch is a pair of two values; its composition is a lower end for every c.
Epochs that were cut off are left out, which only lowers it. Error: the two chances are moved apart
from the truth by 1e-12 of themselves on the safe side.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from scipy.special import log_ndtr

from tightrope.errors import TightropeError
from tightrope.guarantee.base import Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import AbstractLossPair, AllocationPair, DiscretePair
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    NoisySGD,
    Process,
    RandomAllocationSampling,
    ShuffledSampling,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    Proved,
    Source,
)


@final
class EpochwiseGaussianGdp(Proved):
    """Batches that visit every record once (k times) an epoch: no amplification is claimed.

    Statement: a record takes part in at most k ceil(steps / batches_per_epoch) steps, so the run is
        sqrt(that) * step_mu-GDP, step_mu = 1/noise_multiplier (add-or-remove) or twice it
        (replace). Where the places are secret: condition on them, they have one law for both
        neighbours, and every delta(eps) is jointly convex.
    Conditions: cyclic fixed batches, or fresh random ones each epoch. Every iterate released. A
        record that is added or removed leaves the others in their batches (its place stays empty);
        where the others would move, only replacing a record makes sense.
    Validity: exact for cyclic batches; otherwise an upper bound (no tight analysis of shuffling is
        known, and its lower ends exceed the Poisson numbers: `shuffled_attained.py`, after Chua et
        al. 2024, arXiv:2403.17673).
    Source: Dong, Roth, Su 2019 (arXiv:1905.02383v3), Corollary 3.3 (Gaussian composition).
    Error: none beyond rounding.
    Vectors: gdp_eps.
    """

    NAME = "Once an epoch, composed"
    SOURCE = Source("Dong, Roth, Su 2019", "Corollary 3.3", "drs19")
    RELATIONS = ONE_RECORD
    SAMPLING = (CyclicSampling, ShuffledSampling, BallsInBinsSampling, RandomAllocationSampling)

    @classmethod
    def proved(cls, process: NoisySGD) -> GaussianGuarantee:
        sampling: Any = process.sampling
        visits = -(-process.steps // sampling.batches_per_epoch)
        if isinstance(sampling, RandomAllocationSampling):
            visits *= sampling.joins
        cyclic = isinstance(sampling, CyclicSampling)
        mu = math.sqrt(visits) * process.step_mu if visits else 0.0
        return GaussianGuarantee(
            mu, process.adjacency, Validity.EXACT if cyclic else Validity.BOUND
        )


_TRIED = 20  # places of c
_SLACK, _REACH = 1e-12, (0.05, 2.5)
_RAREST = 1e-300  # a test is no better for a false alarm that is taken as more likely


def least_epsilon(process: Process, delta: float) -> float:
    """A proved lower end of epsilon(delta) of shuffled batches; 0 where nothing is known."""
    if not isinstance(process, NoisySGD) or not isinstance(process.sampling, ShuffledSampling):
        return 0.0
    batches, mu = process.sampling.batches_per_epoch, process.step_mu
    epochs = process.steps // batches
    if epochs == 0 or batches == 1 or not 0.0 < mu < math.inf or not 0.0 < delta < 1.0:
        return 0.0
    replaced = process.adjacency is Adjacency.REPLACE_ONE
    shifts = (mu, 0.0) if replaced else (2.0 * mu, mu)
    likely = math.sqrt(2.0 * math.log(batches))
    places = likely + np.linspace(-1.0, shifts[0] + 3.0, _TRIED)
    pairs: list[AbstractLossPair] = [largest_sum_test(batches, shifts, float(c)) for c in places]
    if replaced and _REACH[0] <= mu <= _REACH[1]:
        pairs.append(AllocationPair(batches, mu, "remove"))
    return max(_least(((pair, epochs),), delta) for pair in pairs)


def largest_sum_test(batches: int, shifts: tuple[float, float], c: float) -> DiscretePair:
    """Does the largest of the sums exceed c, one of them being moved by either shift?"""
    rest = (batches - 1) * float(log_ndtr(c))
    with_it, without = (-math.expm1(float(log_ndtr(c - shift)) + rest) for shift in shifts)
    with_it *= 1.0 - _SLACK
    without = min(max(without, _RAREST) * (1.0 + _SLACK), 1.0 - _SLACK)
    if with_it <= without:
        return DiscretePair((0.0,), (1.0,))
    high, low = math.log(with_it / without), math.log((1.0 - with_it) / (1.0 - without))
    return DiscretePair((low, high), (1.0 - with_it, with_it))


def _least(components: Components, delta: float) -> float:
    try:
        return profile.epsilon(components, delta).lower
    except TightropeError:
        return 0.0
