"""Which categories occur, shown where a noisy count reaches a threshold.

Statement: every record has at most one category. For each category that occurs, its count plus
    discrete Gaussian noise of parameter s is shown if it reaches T. The release is dominated by the
    composition of that noise on the counts that move (one by 1; two where a record is replaced) and
    of a (0, d)-DP release, d = Pr[1 + noise >= T].
Proof: let x be a record of category c. If another record has c, the same counts are noisy with and
    without x, and one of them moves by 1. If none has, the law with x is (1 - d) times the law
    without it, plus d times another law (c is shown, with the noise of its own); so the two laws
    are within d in total variation, and the other counts do not move. A replacement is a removal
    and an addition. Where both categories are new the two laws share the same part of weight 1 - d.
    Where one is new, its part multiplies the noise of the other, which moves by 1. Where none is,
    two counts move by 1. Each case is dominated by the whole composition, as leaving out a part is
    post-processing.
    d: sum over k >= m of exp(-k^2/(2 s^2)) is at most the integral from m - 1, and the sum over all
    k is at least sqrt(2 pi) s (Poisson summation), so d <= Pr[N(0, s^2) >= T - 2].
Conditions: at most one category a record; noise for each category that occurs, none shown else. A
    null record has no category.
Validity: upper bound.
Source: Korolova et al. 2009 (thresholds); Canonne, Kamath, Steinke 2020 (arXiv:2004.00010),
    Theorem 7 (noise), Proposition 25 (tail).
Error: the tail is rounded up; of the noise as in theorems/discrete_gaussian_vector.
Vectors: none; compared with all outcomes, listed, in tests/unit/theorems/test_thresholded_counts.
"""

from __future__ import annotations

import math

from scipy.special import ndtr

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.profile import approx_pair
from tightrope.process import Adjacency, DiscreteGaussianVector, Process, ThresholdedCounts
from tightrope.theorems import discrete_gaussian_vector
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

__all__ = ["chance_alone"]

NAME = "Counts of categories above a threshold"
SOURCE = Source("Canonne, Kamath, Steinke 2020", "Theorem 7, Proposition 25; own proof", "cks20")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD

_UP = 1.0 + 1e-12


def chance_alone(sigma: float, threshold: int) -> float:
    """d: how likely, at most, a category of one record is shown."""
    return min(float(ndtr(-(threshold - 2) / sigma)) * _UP + 1e-300, 1.0) if sigma > 0.0 else 0.0


def applies(process: Process) -> Refusal | None:
    if isinstance(process, ThresholdedCounts):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "ThresholdedCounts", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, ThresholdedCounts)
    if process.sigma == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, VALIDITY)
    counts = 2 if process.adjacency is Adjacency.REPLACE_ONE else 1
    moved = DiscreteGaussianVector(process.sigma, math.sqrt(counts), counts, process.adjacency)
    alone = approx_pair(0.0, chance_alone(process.sigma, process.threshold))
    shown = LossGuarantee((((alone, 1),),), process.adjacency, VALIDITY)
    noise = discrete_gaussian_vector.guarantee(moved)
    return compose([noise, shown])
