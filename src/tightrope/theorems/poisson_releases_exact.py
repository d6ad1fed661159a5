"""Laplace noise, and discrete noise on whole numbers, on a Poisson sample of the records, exactly.

Statement: let X be symmetric noise with a log-concave law (Laplace; discrete Laplace or Gaussian on
    the whole numbers), added to a sum to which each record of a batch adds a number g with
    |g| <= s. With rate q one release is dominated by, and attains,
        P = (1-q) X + q (X + s) against Q = X (removed, zeroed), and turned round (added),
        P = (1-q) X + q (X + s) against Q = (1-q) X + q (X - s) (replaced).
    Repeated releases compose them, each order on its own.
Proof: condition on the others (H_G(P, Q) = int (P - G Q)_+ is jointly convex) and move the origin
    to their sum. Removed, added: (X + s, X) dominates the release without sampling for the data set
    that has the record, and sampling keeps domination (Zhu, Dong, Wang 2022, Theorem 11).

    *Replaced.* f(g, h) = P - G Q with P = (1-q) X + q (X + g), Q = (1-q) X + q (X + h), |g|, |h|
    <= s. Let p be the mass function (density) of X, G >= 1, a = (G-1)(1-q); F = int f_+,
    f = q p(x-g) - a p(x) - G q p(x-h). By symmetry let g >= 0.
    1. If h > g, mirror h at g: h' = 2g - h lies in [-s, g]. Mirror x at g in F(g, h): the weights
       q at g and -G q at h' stay, -a moves from 0 to 2g. Compare at the two points g + t and g -
       t, t > 0: the terms q p(t) are the same, a p is larger at g + t with its centre at 2g and
       larger at g - t with its centre at 0, and p(x - h') is larger at g - t. So with the centre
       at 2g the losses are a S + u, a s + v, otherwise a s + u, a S + v, where S >= s and v >= u:
       the same sum, further apart. (q p - y)_+ is convex in y, so F(g, h) <= F(g, h').
    2. Now h <= g. Divide f by p(x) if h <= 0, else by p(x - h): as p is log-concave, p(x-g) over it
       rises, the others over it fall. So f > 0 on a half-line [x, inf), and F is the largest
       q S(x-g) - a S(x) - G q S(x-h) over x, S(x) = P(X >= x): it rises with g and falls with h.
       The largest is at g = s, h = -s.
    G < 1 follows as H_G(P, Q) = 1 - G + G H_{1/G}(Q, P), and the class is symmetric. QED
Conditions: secret Poisson sampling; one number; noise as described; rate and noise fixed in
    advance.
Validity: exact; for Laplace noise below 1/40 of the sensitivity a bound, by epsilon after sampling
    (an unsampled release where a record is replaced).
Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 11; the replaced record: our own, above.
Error: the discrete Gaussian's far tail is counted as an infinite loss (below 1e-300).
Vectors: poisson_laplace, discrete_laplace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tightrope.guarantee.approx import amplified
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    LaplaceMixturePair,
    LaplacePair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
)
from tightrope.process import (
    Adjacency,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    LaplaceMechanism,
    Process,
    SampledRelease,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require
from tightrope.theorems.discrete_gaussian import close_gaussians, is_wide

NAME = "Sampled Laplace and discrete noise, exact"
SOURCE = Source("Zhu, Dong, Wang 2022", "Theorem 11; replaced records by the page's proof", "zdw22")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD

_FAR = 10**6  # points of discrete noise
_LARGEST = 40.0  # loss of one Laplace release
_Sides = tuple[bool, bool]  # is the record in P, in Q?
_REMOVED, _REPLACED = ((True, False), (False, True)), ((True, True),)
_ORDERS: dict[Adjacency, tuple[_Sides, ...]] = {
    Adjacency.ADD_OR_REMOVE: _REMOVED,
    Adjacency.REPLACE_ONE: _REPLACED,
    Adjacency.ZERO_OUT: _REMOVED,  # a null record adds what an absent one does
}


def applies(process: Process) -> Refusal | None:
    if isinstance(process, SampledRelease) and type(process.release) in _PAIRS:
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "SampledRelease of Laplace or discrete noise", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, SampledRelease)
    release, rate = process.release, process.rate
    if rate == 0.0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    if getattr(release, "noise_multiplier", 1.0) == 0.0 or getattr(release, "sigma", 1.0) == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    if isinstance(release, LaplaceMechanism) and release.noise_multiplier * _LARGEST < 1.0:
        return _by_epsilon(process)
    if isinstance(release, DiscreteGaussianMechanism):
        wide = _wide_discrete_gaussian(release, rate, process.adjacency)
        if wide is not None:
            return wide
    make = _PAIRS[type(release)]
    orders = tuple(((make(release, rate, sides), 1),) for sides in _ORDERS[process.adjacency])
    return LossGuarantee(orders, process.adjacency, VALIDITY)


def _wide_discrete_gaussian(
    release: DiscreteGaussianMechanism, rate: float, relation: Adjacency
) -> Guarantee | None:
    """Of more points than are to be listed (theorems/discrete_gaussian); None where fewer."""
    sigma, moved = release.sigma, release.sensitivity
    if is_wide(sigma, moved):
        ends = [close_gaussians(sigma, moved, rate, *sides) for sides in _ORDERS[relation]]
        below, above = zip(*ends, strict=True)
        return LossGuarantee(above, relation, Validity.BOUND, attained=below)
    if moved < _FAR:
        return None
    links = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
    rho = 0.5 * (links * moved / sigma) ** 2 * (1.0 + 1e-14)  # a sample loses no more than all
    return RenyiGuarantee(RenyiCurve.of(LinearTerm(rho)), relation)


def _by_epsilon(process: SampledRelease) -> Guarantee:
    assert isinstance(process.release, LaplaceMechanism)
    epsilon = (1.0 + 1e-15) / process.release.noise_multiplier
    if process.adjacency is Adjacency.REPLACE_ONE:
        return ApproxGuarantee(2.0 * epsilon, 0.0, process.adjacency)
    left = amplified(epsilon, 0.0, process.rate, Adjacency.ADD_OR_REMOVE)
    return ApproxGuarantee(*left, process.adjacency)


def _laplace(release: LaplaceMechanism, rate: float, sides: _Sides) -> AbstractLossPair:
    if rate == 1.0:  # a record replaced by its opposite moves twice as far
        return LaplacePair(release.noise_multiplier / sum(sides))
    return LaplaceMixturePair(rate, release.noise_multiplier, *sides)


def _discrete_laplace(
    release: DiscreteLaplaceMechanism, rate: float, sides: _Sides
) -> AbstractLossPair:
    return discrete_laplace_pair(release.decay, release.sensitivity, rate, *sides)


def _discrete_gaussian(
    release: DiscreteGaussianMechanism, rate: float, sides: _Sides
) -> AbstractLossPair:
    return discrete_gaussian_pair(release.sigma, release.sensitivity, rate, *sides)


_PAIRS: dict[type, Callable[[Any, float, _Sides], AbstractLossPair]] = {
    LaplaceMechanism: _laplace,
    DiscreteLaplaceMechanism: _discrete_laplace,
    DiscreteGaussianMechanism: _discrete_gaussian,
}
