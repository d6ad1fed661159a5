"""Releases of other kinds on a Poisson sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

import numpy as np
from scipy.special import gammaln, logsumexp

from tightrope.guarantee.approx import amplified
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee, TableTerm
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    LaplaceMixturePair,
    LaplacePair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
)
from tightrope.process import (
    Adjacency,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    LaplaceMechanism,
    SampledRelease,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    Proved,
    Refusal,
    Source,
    foreign,
)
from tightrope.theorems.discrete_gaussian import of_many_points
from tightrope.validate import FloatArray


@final
class PoissonReleasesExact(Proved):
    """Laplace noise, and discrete noise on whole numbers, on a Poisson sample, exactly.

    Statement: let X be symmetric noise with a log-concave law (Laplace; discrete Laplace or
        Gaussian on the whole numbers), added to a sum to which each record of a batch adds a number
        g with |g| <= s. With rate q one release is dominated by, and attains,
            P = (1-q) X + q (X + s) against Q = X (removed, zeroed), and turned round (added),
            P = (1-q) X + q (X + s) against Q = (1-q) X + q (X - s) (replaced).
        Repeated releases compose them, each order on its own.
    Proof: condition on the others (H_G(P, Q) = int (P - G Q)_+ is jointly convex) and move the
        origin to their sum. Removed, added: (X + s, X) dominates the release without sampling for
        the data set that has the record, and sampling keeps domination (Zhu, Dong, Wang 2022,
        Theorem 11).

        *Replaced.* f(g, h) = P - G Q with P = (1-q) X + q (X + g), Q = (1-q) X + q (X + h), |g|,
        |h| <= s. Let p be the mass function (density) of X, G >= 1, a = (G-1)(1-q); F = int f_+,
        f = q p(x-g) - a p(x) - G q p(x-h). By symmetry let g >= 0.
        1. If h > g, mirror h at g: h' = 2g - h lies in [-s, g]. Mirror x at g in F(g, h): the
           weights q at g and -G q at h' stay, -a moves from 0 to 2g. Compare at the two points g +
           t and g - t, t > 0: the terms q p(t) are the same, a p is larger at g + t with its centre
           at 2g and larger at g - t with its centre at 0, and p(x - h') is larger at g - t. So with
           the centre at 2g the losses are a S + u, a s + v, otherwise a s + u, a S + v, where S >=
           s and v >= u: the same sum, further apart. (q p - y)_+ is convex in y, so F(g, h) <= F(g,
           h').
        2. Now h <= g. Divide f by p(x) if h <= 0, else by p(x - h): as p is log-concave, p(x-g)
           over it rises, the others over it fall. So f > 0 on a half-line [x, inf), and F is the
           largest q S(x-g) - a S(x) - G q S(x-h) over x, S(x) = P(X >= x): it rises with g and
           falls with h. The largest is at g = s, h = -s.
        G < 1 follows as H_G(P, Q) = 1 - G + G H_{1/G}(Q, P), and the class is symmetric. QED
    Conditions: secret Poisson sampling; one number; noise as described; rate and noise fixed in
        advance.
    Validity: exact; for Laplace noise below 1/40 of the sensitivity a bound, by epsilon after
        sampling (an unsampled release where a record is replaced).
    Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 11; the replaced record: our own,
        above.
    Error: the discrete Gaussian's far tail is counted as an infinite loss (below 1e-300).
    Vectors: poisson_laplace, discrete_laplace.
    """

    NAME = "Sampled Laplace and discrete noise, exact"
    SOURCE = Source(
        "Zhu, Dong, Wang 2022", "Theorem 11; replaced records by the page's proof", "zdw22"
    )
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (SampledRelease,)
    ABOUT = "SampledRelease of Laplace or discrete noise"

    @classmethod
    def condition(cls, process: SampledRelease) -> Refusal | None:
        return None if type(process.release) in _PAIRS else foreign(cls.NAME, cls.ABOUT, process)

    @classmethod
    def proved(cls, process: SampledRelease) -> Guarantee:
        release, rate = process.release, process.rate
        if rate == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if (
            getattr(release, "noise_multiplier", 1.0) == 0.0
            or getattr(release, "sigma", 1.0) == 0.0
        ):
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        if isinstance(release, LaplaceMechanism) and release.noise_multiplier * _LARGEST < 1.0:
            return _by_epsilon(process)
        if isinstance(release, DiscreteGaussianMechanism):
            relation = process.adjacency
            apart = (rate, _ORDERS[relation], relation.moved)
            wide = of_many_points(release.sigma, release.sensitivity, relation, *apart)
            if wide is not None:
                return wide
        make = _PAIRS[type(release)]
        orders = tuple(((make(release, rate, sides), 1),) for sides in _ORDERS[process.adjacency])
        return LossGuarantee(orders, process.adjacency, Validity.EXACT)


_LARGEST = 40.0  # loss of one Laplace release
_Sides = tuple[bool, bool]  # is the record in P, in Q?
_REMOVED, _REPLACED = ((True, False), (False, True)), ((True, True),)


_ORDERS: dict[Adjacency, tuple[_Sides, ...]] = {
    Adjacency.ADD_OR_REMOVE: _REMOVED,
    Adjacency.REPLACE_ONE: _REPLACED,
    Adjacency.ZERO_OUT: _REMOVED,  # a null record adds what an absent one does
}


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


_PAIRS: dict[type, Callable[[Any, float, _Sides], AbstractLossPair]] = {
    LaplaceMechanism: _laplace,
    DiscreteLaplaceMechanism: lambda r, rate, sides: discrete_laplace_pair(
        r.decay, r.sensitivity, rate, *sides
    ),
    DiscreteGaussianMechanism: lambda r, rate, sides: discrete_gaussian_pair(
        r.sigma, r.sensitivity, rate, *sides
    ),
}


@final
class PoissonZeroConcentrated(Proved):
    """A release known by zero-concentrated DP, on a Poisson sample of the records.

    Statement: the release is (xi, rho)-zCDP when a record is added or removed; a batch takes each
        record with probability q. For whole orders a >= 2 the sampled release is (a, r)-Renyi DP
        with r the larger of
            ln( sum_l C(a, l) (1-q)^(a-l) q^l e^{(l-1)(xi + rho l)} )/(a-1)
                (removed),
            ln min( 1-q + q e^{(a-1)(xi + rho a)},
                    1 + R(x) (e^{xi + 2 rho} - 1) + R(0) (1-x)^2/g_s(x) (e^{s (xi + rho (s+1))} - 1)
                        )
            /(a-1), for every 0 < x < 1 and s >= 1,
                (added),
        R(x) = ((1 - q(1-x))^(1-a) - 1 - (a-1) q (1-x))/(1-x)^2, g_s(x) = x^-s - 1 - s (1-x), and
        the terms l = 0, 1 of the sum without e.
    Proof: condition on the other records of the batch (e^{(a-1) D_a} is jointly convex): the laws
        are Q = M(S) and P = (1-q) Q + q P', P' = M(S with the record), X = dP'/dQ. Removed: expand
        E_Q[(1-q+qX)^a]; E_Q X^l = e^{(l-1) D_l(P'||Q)}, and 1 for l = 0, 1. Added: E_Q f(X), f(X) =
        (1 + q(X-1))^(1-a), and E_Q X = 1. By Taylor f(X) - 1 + (a-1) q (X-1) is (X-1)^2 R(X), R
        falls with X since f'' does, and g_s(X) over (X-1)^2 falls for the same reason. So it is at
        most (X-1)^2 R(x) for X >= x, and below x at most R(0) g_s(X) (1-x)^2/g_s(x); both terms are
        >= 0, E_Q (X-1)^2 = e^{D_2(P'||Q)} - 1 and E_Q g_s(X) = e^{s D_{s+1}(Q||P')} - 1. And f is
        convex, which gives 1-q + q E_Q X^(1-a) = 1-q + q e^{(a-1) D_a(Q||P')}. QED
    Conditions: secret Poisson sampling; a record added or removed, for the release and for its
        sample.
    Validity: upper bound.
    Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), Section 3.3, and Zhu, Wang 2019, Theorem
        5, for the expansion; the bound for an added record as above.
    Error: sums of logarithms, rounded up.
    Vectors: none; held against the sampled Gaussian and sampled Laplace noise, whose divergences
        are known, in tests/unit/theorems/test_given.py.
    """

    NAME = "Zero-concentrated release on a Poisson sample"
    SOURCE = Source("Zhu, Wang 2019; Tightrope", "the expansion; the proof on its page", "zw19")
    RELATIONS = (Adjacency.ADD_OR_REMOVE,)
    OF = (SampledRelease,)
    ABOUT = "SampledRelease of DeclaredZeroConcentrated"

    @classmethod
    def condition(cls, process: SampledRelease) -> Refusal | None:
        known = isinstance(process.release, DeclaredZeroConcentrated)
        return None if known else foreign(cls.NAME, cls.ABOUT, process)

    @classmethod
    def proved(cls, process: SampledRelease) -> Guarantee:
        release, rate = process.release, process.rate
        assert isinstance(release, DeclaredZeroConcentrated)
        if rate == 0.0 or release.rho == release.xi == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        whole = RenyiCurve.of(LinearTerm(release.rho, release.xi))
        table = whole if rate == 1.0 else RenyiCurve.of(_divergences(rate, release.rho, release.xi))
        return RenyiGuarantee(table, process.adjacency)


_SPLITS = np.linspace(0.05, 0.95, 37)[:, None]  # x
_POWERS = np.concatenate([np.arange(1.0, 33.0), np.geomspace(34.0, 1e4, 60)])  # s
_WHOLE_ORDERS = (*range(2, 65), *range(72, 257, 8), *range(288, 1025, 32))


@lru_cache(maxsize=64)
def _divergences(rate: float, rho: float, xi: float) -> TableTerm:
    found = [
        max(_removed(order, rate, rho, xi), _added(order, rate, rho, xi)) / (order - 1.0)
        for order in _WHOLE_ORDERS
    ]
    return TableTerm(tuple(map(float, _WHOLE_ORDERS)), tuple(found))


def _removed(order: int, rate: float, rho: float, xi: float) -> float:
    """ln of the sum, rounded up: its terms with e less 1 are added to 1, and none cancels."""
    k = np.arange(2.0, order + 1.0)
    chances = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0)
    chances = chances + k * math.log(rate) + (order - k) * math.log1p(-rate)
    grown = (k - 1.0) * (xi + rho * k)
    gain = float(logsumexp(chances + _log_expm1(grown)))
    slack = 1e-13 * (order * (20.0 + abs(math.log(rate) + math.log1p(-rate))) + float(grown[-1]))
    return float(np.logaddexp(0.0, gain + slack)) * (1.0 + 1e-12)


def _added(order: int, rate: float, rho: float, xi: float) -> float:
    mixed = math.log(rate) + float(_log_expm1((order - 1.0) * (xi + rho * order)))
    square = float(_log_expm1(xi + 2.0 * rho))
    beyond = _log_expm1(_POWERS * (xi + rho * (_POWERS + 1.0)))
    steep = -_POWERS * np.log(_SPLITS)  # g_s(x) is e^steep - 1 - s (1-x), rounded down
    below = np.log(np.expm1(np.minimum(steep, 600.0)) - _POWERS * (1.0 - _SPLITS) - 1e-12)
    rare = _log_curvature(order, rate, 0.0) + 2.0 * np.log1p(-_SPLITS) - below + beyond
    usual = _log_curvature(order, rate, _SPLITS) + square
    split = float(np.min(np.logaddexp(usual, rare)))
    least = min(mixed, split, float(_log_curvature(order, rate, 0.0)) + square)
    slack = 1e-13 * (order * (10.0 - math.log1p(-rate)) + abs(least) + abs(mixed) + 1e3)
    return float(np.logaddexp(0.0, least + slack)) * (1.0 + 1e-12)


def _log_curvature(order: int, rate: float, x: float | FloatArray) -> FloatArray:
    """ln R(x), rounded up: as it stands, or by half of the second derivative at x."""
    b, gap = order - 1.0, 1.0 - np.asarray(x)
    linear = b * rate * gap
    grown = -b * np.log1p(-rate * gap)
    curved = 2.0 * math.log(rate) + math.log(0.5 * b * order) + grown * (b + 2.0) / b
    room = np.expm1(np.minimum(grown, 700.0)) * (1.0 + 1e-12) - linear * (1.0 - 1e-12)
    whole = np.where(grown < 700.0, np.log(room), grown) - 2.0 * np.log(gap)
    return np.asarray(np.minimum(curved, whole))


def _log_expm1(x: float | FloatArray) -> FloatArray:
    """ln(e^x - 1), for x >= 0."""
    at = np.asarray(x, dtype=np.float64)
    with np.errstate(divide="ignore"):
        small = np.log(np.expm1(np.minimum(at, 50.0)))
    return np.asarray(np.where(at > 50.0, at, small))
