"""Discrete Gaussian noise on whole numbers is accounted as Gaussian noise.

The statement and its proof are in docs/theorems/discrete_gaussian.md. In short: let vectors of
whole numbers move by at most D between neighbours. Adding the discrete Gaussian with parameter s
to each coordinate is post-processing of adding N(0, s^2 - t^2), for any t < s, but for a share of
at most 2 exp(-2 pi^2 t^2) (1 + 10^-8) + 2 exp(-2 pi^2 s^2) (1 + 10^-8) of each draw (t >= 1). So
T adaptive releases of d coordinates, sampled in any way, have the trade-off functions and deltas of
Gaussian noise with multiplier sqrt(s^2 - t^2) / D, up to d T times that share in delta. With t = 8
and d T <= 2^100 this is below 2^-1700, while every certified end is rounded outwards by at least
one unit in the last place of a float64, which is 2^-1074 or more. It is charged by that rounding.

One number, and the other way round: adding N(0, t^2) to the discrete Gaussian gives N(v, s^2 + t^2)
up to a factor of 1 +- 4.1 exp(-2 pi^2 u^2) in density, u^2 = s^2 t^2/(s^2 + t^2): the sum over k of
phi_s(k - v) phi_t(x - k) is phi_w(x - v), w^2 = s^2 + t^2, times a sum of phi_u over a moved
lattice of whole numbers, which Poisson summation gives. So the release loses at least what Gaussian
noise of sqrt(s^2 + t^2) does, and by the page at most what noise of sqrt(s^2 - t^2) does, but for
such factors (of delta, and of e^epsilon) at both ends: `close_gaussians`. With s >= 64 and t = 3
they are within 1 +- 10^-75, and are charged by the rounding of the ends, which is relative and far
larger. Records drawn at random make mixtures of such laws, with the same factors.
"""

from __future__ import annotations

import math
from fractions import Fraction
from math import ceil, isqrt, sqrt
from typing import final

from scipy.special import ndtr

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    GaussianMixturePair,
    GaussianPair,
    SampledGaussianPair,
    approx_pair,
    discrete_gaussian_pair,
)
from tightrope.process import Adjacency, DiscreteGaussianVector, ThresholdedCounts
from tightrope.theorems.base import (
    ONE_RECORD,
    Proved,
    Source,
)

SMOOTHING = 8  # t
_FAR = 10**6  # points
_CLOSE = 3.0  # t of one number
_MOST_POINTS, _REACH, _WIDE = 5e4, 76.0, 64.0
_FURTHEST = 1e3  # deviations that it moves by: of no use beyond, and out of reach
_ULPS = 1e-15
_UP = 1.0 + 1e-12


def is_wide(sigma: float, sensitivity: int) -> bool:
    """Are its points too many to list, and is it close to a Gaussian?"""
    many = _REACH * sigma + 2.0 * sensitivity > _MOST_POINTS
    return many and sigma >= _WIDE and sensitivity <= _FURTHEST * sigma


def close_gaussians(
    sigma: float, sensitivity: int, rate: float = 1.0, plus: bool = True, minus: bool = False
) -> tuple[Components, Components]:
    """One release from below and from above; is the record in P, in Q?"""
    ratio = (_CLOSE / sigma) ** 2
    mu = sensitivity / sigma
    ends = mu / sqrt(1.0 + ratio) * (1.0 - _ULPS), mu / sqrt(1.0 - ratio) * (1.0 + _ULPS)
    below, above = (((_gaussian(end, rate, plus, minus), 1),) for end in ends)
    return below, above


def of_many_points(
    sigma: float,
    sensitivity: int,
    relation: Adjacency,
    rate: float = 1.0,
    ways: tuple[tuple[bool, bool], ...] = ((True, False),),
    links: float = 1.0,
) -> Guarantee | None:
    """Of a release with more points than are to be listed; None where there are fewer.

    ways: is the record in P, in Q? links: how many sensitivities neighbours are apart.
    """
    if is_wide(sigma, sensitivity):
        ends = [close_gaussians(sigma, sensitivity, rate, *sides) for sides in ways]
        below, above = zip(*ends, strict=True)
        return LossGuarantee(above, relation, Validity.BOUND, attained=below)
    if sensitivity < _FAR:
        return None
    rho = 0.5 * (links * sensitivity / sigma) ** 2 * (1.0 + 1e-14)  # a sample loses no more
    return RenyiGuarantee(RenyiCurve.of(LinearTerm(rho)), relation)


def _gaussian(mu: float, rate: float, plus: bool, minus: bool) -> AbstractLossPair:
    if rate == 1.0:
        return GaussianPair(mu * (plus + minus))
    if plus and minus:
        return GaussianMixturePair(rate, mu, 1, 1)
    return SampledGaussianPair(rate, mu, "remove" if plus else "add")


def discrete_scale(noise_multiplier: float, sensitivity: int) -> int:
    """The least whole s with sqrt(s^2 - t^2) >= noise_multiplier * sensitivity, exactly."""
    least = ceil((Fraction(noise_multiplier) * sensitivity) ** 2) + SMOOTHING**2
    root = isqrt(least)
    return root if root * root == least else root + 1


@final
class DiscreteGaussianVectorTheorem(Proved):
    """Discrete Gaussian noise on several whole numbers.

    Statement: let a vector of d whole numbers move by at most D in Euclidean length. With the
        discrete Gaussian of parameter s on each coordinate the release is
        - that of one number of sensitivity 1, exactly, if D < sqrt 2: only one coordinate can move;
        - Gaussian noise of multiplier sqrt(s^2 - 4)/D except with probability d k, k = 4.1 e^(-8
          pi^2), if s >= 8 (docs/theorems/discrete_gaussian.md with t = 2: eta(t) + eta(s) <= 4.1
          e^(-2 pi^2 t^2));
        - D^2/(2 s^2)-zCDP otherwise.
    Conditions: whole numbers; noise drawn independently for each.
    Validity: exact for D < sqrt 2, otherwise an upper bound.
    Source: docs/theorems/discrete_gaussian.md; Canonne, Kamath, Steinke 2020 (arXiv:2004.00010),
        Theorem 7 and Proposition 5.
    Error: rounding, on the safe side.
    Vectors: none; held against products of one-dimensional laws in the tests.
    """

    NAME = "Discrete Gaussian on several numbers"
    SOURCE = Source(
        "Canonne, Kamath, Steinke 2020", "Theorem 7; smoothing of the own page", "cks20"
    )
    RELATIONS = ONE_RECORD
    OF = (DiscreteGaussianVector,)

    @classmethod
    def proved(cls, process: DiscreteGaussianVector) -> Guarantee:
        sigma, moved = process.sigma, process.sensitivity
        if moved < 1.0:  # whole numbers that do not move
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if sigma == 0.0:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        if moved * moved < 2.0 * (1.0 - 1e-15):
            if is_wide(sigma, 1):
                below, above = close_gaussians(sigma, 1)
                return LossGuarantee((above,), process.adjacency, Validity.BOUND, attained=(below,))
            alone = (((discrete_gaussian_pair(sigma, 1), 1),),)
            return LossGuarantee(alone, process.adjacency, Validity.EXACT)
        if sigma < _SMALL:
            rho = 0.5 * (moved / sigma) ** 2 * _UP
            return RenyiGuarantee(RenyiCurve.of(LinearTerm(rho)), process.adjacency)
        mu = moved / math.sqrt(sigma * sigma - _SMOOTHING**2) * _UP
        share = process.dimension * 4.1 * math.exp(-2.0 * (math.pi * _SMOOTHING) ** 2)
        orders = (((GaussianPair(mu), 1), (approx_pair(0.0, min(share, 1.0)), 1)),)
        return LossGuarantee(orders, process.adjacency, Validity.BOUND)


_SMOOTHING, _SMALL = 2.0, 8.0  # t, and the sigma from which it costs less than zCDP
_UP = 1.0 + 1e-14


@final
class ThresholdedCountsTheorem(Proved):
    """Which categories occur, shown where a noisy count reaches a threshold.

    Statement: every record has at most one category. For each category that occurs, its count plus
        discrete Gaussian noise of parameter s is shown if it reaches T. The release is dominated by
        the composition of that noise on the counts that move (one by 1; two where a record is
        replaced) and of a (0, d)-DP release, d = Pr[1 + noise >= T].
    Proof: let x be a record of category c. If another record has c, the same counts are noisy with
        and without x, and one of them moves by 1. If none has, the law with x is (1 - d) times the
        law without it, plus d times another law (c is shown, with the noise of its own); so the two
        laws are within d in total variation, and the other counts do not move. A replacement is a
        removal and an addition. Where both categories are new the two laws share the same part of
        weight 1 - d. Where one is new, its part multiplies the noise of the other, which moves by
        1. Where none is, two counts move by 1. Each case is dominated by the whole composition, as
        leaving out a part is post-processing.
        d: sum over k >= m of exp(-k^2/(2 s^2)) is at most the integral from m - 1, and the sum over
        all k is at least sqrt(2 pi) s (Poisson summation), so d <= Pr[N(0, s^2) >= T - 2].
    Conditions: at most one category a record; noise for each category that occurs, none shown else.
        A null record has no category.
    Validity: upper bound.
    Source: Korolova et al. 2009 (thresholds); Canonne, Kamath, Steinke 2020 (arXiv:2004.00010),
        Theorem 7 (noise), Proposition 25 (tail).
    Error: the tail is rounded up; of the noise as for `DiscreteGaussianVectorTheorem`.
    Vectors: none; compared with all outcomes, listed, in the tests.
    """

    NAME = "Counts of categories above a threshold"
    SOURCE = Source(
        "Canonne, Kamath, Steinke 2020", "Theorem 7, Proposition 25; own proof", "cks20"
    )
    RELATIONS = ONE_RECORD
    OF = (ThresholdedCounts,)

    @classmethod
    def proved(cls, process: ThresholdedCounts) -> Guarantee:
        if process.sigma == 0.0:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        counts = 2 if process.adjacency is Adjacency.REPLACE_ONE else 1
        moved = DiscreteGaussianVector(process.sigma, sqrt(counts), counts, process.adjacency)
        alone = approx_pair(0.0, chance_alone(process.sigma, process.threshold))
        shown = LossGuarantee((((alone, 1),),), process.adjacency, Validity.BOUND)
        return compose([DiscreteGaussianVectorTheorem.guarantee(moved), shown])


def chance_alone(sigma: float, threshold: int) -> float:
    """How likely, at most, a category of one record is shown."""
    return min(float(ndtr(-(threshold - 2) / sigma)) * _UP + 1e-300, 1.0) if sigma > 0.0 else 0.0
