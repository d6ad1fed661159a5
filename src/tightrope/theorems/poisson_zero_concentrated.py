"""A release known by zero-concentrated DP, on a Poisson sample of the records.

Statement: the release is (xi, rho)-zCDP when a record is added or removed; a batch takes each
    record with probability q. For whole orders a >= 2 the sampled release is (a, r)-Renyi DP with
    r the larger of
        ln( sum_l C(a, l) (1-q)^(a-l) q^l e^{(l-1)(xi + rho l)} )/(a-1)                   (removed),
        ln min( 1-q + q e^{(a-1)(xi + rho a)},
                1 + R(x) (e^{xi + 2 rho} - 1) + R(0) (1-x)^2/g_s(x) (e^{s (xi + rho (s+1))} - 1) )
        /(a-1), for every 0 < x < 1 and s >= 1,                                             (added),
    R(x) = ((1 - q(1-x))^(1-a) - 1 - (a-1) q (1-x))/(1-x)^2, g_s(x) = x^-s - 1 - s (1-x), and
    the terms l = 0, 1 of the sum without e.
Proof: condition on the other records of the batch (e^{(a-1) D_a} is jointly convex): the laws are
    Q = M(S) and P = (1-q) Q + q P', P' = M(S with the record), X = dP'/dQ. Removed: expand
    E_Q[(1-q+qX)^a]; E_Q X^l = e^{(l-1) D_l(P'||Q)}, and 1 for l = 0, 1. Added:
    E_Q f(X), f(X) = (1 + q(X-1))^(1-a), and E_Q X = 1. By Taylor f(X) - 1 + (a-1) q (X-1) is
    (X-1)^2 R(X), R falls with X since f'' does, and g_s(X) over (X-1)^2 falls for the same reason.
    So it is at most (X-1)^2 R(x) for X >= x, and below x at most R(0) g_s(X) (1-x)^2/g_s(x); both
    terms are >= 0, E_Q (X-1)^2 = e^{D_2(P'||Q)} - 1 and E_Q g_s(X) = e^{s D_{s+1}(Q||P')} - 1. And
    f is convex, which gives 1-q + q E_Q X^(1-a) = 1-q + q e^{(a-1) D_a(Q||P')}. QED
Conditions: secret Poisson sampling; a record added or removed, for the release and for its sample.
Validity: upper bound.
Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), Section 3.3, and Zhu, Wang 2019, Theorem 5,
    for the expansion; the bound for an added record as above.
Error: sums of logarithms, rounded up.
Vectors: none; held against the sampled Gaussian and sampled Laplace noise, whose divergences are
    known, in tests/unit/theorems/test_given.py.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee, TableTerm
from tightrope.process import Adjacency, DeclaredZeroConcentrated, Process, SampledRelease
from tightrope.theorems.base import Refusal, Source, foreign, other_neighbours, require
from tightrope.validate import FloatArray

NAME = "Zero-concentrated release on a Poisson sample"
SOURCE = Source("Zhu, Wang 2019; Tightrope", "the expansion; the proof on its page", "zw19")
VALIDITY = Validity.BOUND
RELATIONS = (Adjacency.ADD_OR_REMOVE,)

_SPLITS = np.linspace(0.05, 0.95, 37)[:, None]  # x
_POWERS = np.concatenate([np.arange(1.0, 33.0), np.geomspace(34.0, 1e4, 60)])  # s
_ORDERS = (*range(2, 65), *range(72, 257, 8), *range(288, 1025, 32))


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, SampledRelease) or not isinstance(
        process.release, DeclaredZeroConcentrated
    ):
        return foreign(NAME, "SampledRelease of DeclaredZeroConcentrated", process)
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, SampledRelease)
    release, rate = process.release, process.rate
    assert isinstance(release, DeclaredZeroConcentrated)
    if rate == 0.0 or release.rho == release.xi == 0.0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    whole = RenyiCurve.of(LinearTerm(release.rho, release.xi))
    table = whole if rate == 1.0 else RenyiCurve.of(_divergences(rate, release.rho, release.xi))
    return RenyiGuarantee(table, process.adjacency)


@lru_cache(maxsize=64)
def _divergences(rate: float, rho: float, xi: float) -> TableTerm:
    found = [
        max(_removed(order, rate, rho, xi), _added(order, rate, rho, xi)) / (order - 1.0)
        for order in _ORDERS
    ]
    return TableTerm(tuple(map(float, _ORDERS)), tuple(found))


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
