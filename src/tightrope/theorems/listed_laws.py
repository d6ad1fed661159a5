"""Releases whose outcomes have listed laws, and mixtures of Gaussians."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import final

import numpy as np
from scipy.special import logsumexp, ndtr

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.profile import pair_above
from tightrope.guarantee.loss.pairs import DiscretePair
from tightrope.process import (
    Adjacency,
    CutDiscreteGaussianMechanism,
    DeclaredPair,
    MixtureOfGaussians,
    Process,
    SampledRelease,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    PRESENCE,
    Proved,
    Refusal,
    Source,
    foreign,
    other_neighbours,
)
from tightrope.validate import FloatArray


@final
class ListedLaws(Proved):
    """Releases of finitely many outcomes whose two laws are listed.

    Statement: with the probabilities p_i and q_i of outcome i on two neighbours, the loss is
        ln(p_i/q_i) with probability p_i, infinite where q_i = 0; the other order of the neighbours
        exchanges p and q. On a Poisson sample of rate r, (1-r) q_i + r p_i stands for p_i. Of
        discrete Gaussian noise that is drawn again until |k| <= B, moved by s: loss s (s - 2k)/(2
        sigma^2), and infinite for the s smallest k, which the moved noise never takes.
    Conditions: of a declared pair, that it dominates the release on all neighbours; Tightrope
        cannot check it. Cut noise: one whole number of integer sensitivity, and the noise of every
        data set cut around its own number. Sampled: a record is added or removed, the sample is
        secret, and p is the law with the record.
    Proof: of sampling: condition on the other records of the sample (the hockey stick is jointly
        convex); the law without the record is dominated by q, that with it by (1-r) q + r p.
    Validity: upper bound for what is declared; exact for cut noise.
    Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Section 3 (dominating pairs), Theorem 11
        (sampled); Bu et al. 2019 (arXiv:1911.11607), Proposition A.1 (sampling of any f).
    Error: logarithms and sums of masses, charged by the pair.
    Vectors: none; compared with sums in fractions, tests/unit/theorems/test_listed_laws.py.
    """

    NAME = "Listed laws of the outcomes"
    SOURCE = Source("Zhu, Dong, Wang 2022", "Section 3", "zdw22")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (DeclaredPair, CutDiscreteGaussianMechanism, SampledRelease)
    ABOUT = "DeclaredPair, a sample of it or CutDiscreteGaussianMechanism"

    @classmethod
    def condition(cls, process: Process) -> Refusal | None:
        if not isinstance(process, SampledRelease):
            return None
        if not isinstance(process.release, DeclaredPair):
            return foreign(cls.NAME, cls.ABOUT, process)
        return other_neighbours(cls.NAME, process, (Adjacency.ADD_OR_REMOVE,))

    @classmethod
    def proved(cls, process: Process) -> Guarantee:
        if isinstance(process, DeclaredPair):
            return _declared(process)
        if isinstance(process, SampledRelease):
            assert isinstance(process.release, DeclaredPair)
            return _sampled(process.release, process.rate)
        assert isinstance(process, CutDiscreteGaussianMechanism)
        return _cut_gaussian(process)


def _declared(process: DeclaredPair) -> Guarantee:
    p, q = np.array(process.first), np.array(process.second)
    both = (p > 0.0) & (q > 0.0)
    if not bool(np.any(both)):
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    pair = DiscretePair(
        tuple(_logs_of_ratios(p[both], q[both]).tolist()),
        tuple(p[both].tolist()),
        infinite_mass=min(math.fsum(p[q == 0.0].tolist()), 1.0),
        only_under_q=min(math.fsum(q[p == 0.0].tolist()), 1.0),
    )
    orders = (((pair, 1),), ((pair.reversed(), 1),))
    return LossGuarantee(orders, process.adjacency, Validity.BOUND)


def _sampled(release: DeclaredPair, rate: float) -> Guarantee:
    if rate == 1.0:
        return _declared(release)
    if rate == 0.0:
        return GaussianGuarantee(0.0, release.adjacency, Validity.EXACT)
    p, q = np.array(release.first), np.array(release.second)
    with np.errstate(all="ignore"):
        ratio = p / q
    there = np.isfinite(ratio)  # a ratio that is no double counts as an infinite loss
    alone = math.fsum(p[~there].tolist())
    p, q = p[there], q[there]
    change = rate * ((p - q) / q)  # of the ratio of the laws, from 1
    far = np.log((1.0 - rate) + rate * ratio[there])
    losses = np.where(np.abs(change) <= 0.5, np.log1p(np.maximum(change, -0.5)), far)
    pair = DiscretePair(
        tuple(losses.tolist()),
        tuple(((1.0 - rate) * q + rate * p).tolist()),
        infinite_mass=min(rate * alone, 1.0),
        loss_units=32.0,
    )
    orders = (((pair, 1),), ((pair.reversed(), 1),))
    return LossGuarantee(orders, release.adjacency, Validity.BOUND)


def _logs_of_ratios(p: FloatArray, q: FloatArray) -> FloatArray:
    """ln(p/q), right to a few units of its own size, also where p and q are close."""
    close = (p <= 2.0 * q) & (q <= 2.0 * p)  # then p - q is exact
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.where(close, np.log1p((p - q) / q), np.log(p) - np.log(q)))


def _cut_gaussian(process: CutDiscreteGaussianMechanism) -> Guarantee:
    sigma, bound, moved = process.sigma, process.bound, process.sensitivity
    if moved > 2 * bound:  # no outcome is common to both
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    k = np.arange(-bound, bound + 1, dtype=np.float64)
    weights = np.exp(-0.5 * (k / sigma) ** 2)
    masses = weights / math.fsum(weights.tolist())
    losses = moved * (moved - 2.0 * k[moved:]) / (2.0 * sigma * sigma)
    given = min(math.fsum(masses[:moved].tolist()), 1.0)
    pair = DiscretePair(
        tuple(losses.tolist()), tuple(masses[moved:].tolist()), given, given, loss_units=16.0
    )
    return LossGuarantee((((pair, 1),),), process.adjacency, Validity.EXACT)


@final
class MixtureOfGaussiansTheorem(Proved):
    """Gaussian noise on a sum that a record moves by a random amount, with any weights.

    Statement: if a record moves the sum by c_i with probability p_i, c_i >= 0, one release is
        dominated by P = sum_i p_i N(c_i, s^2) against Q = N(0, s^2) (removed, zeroed) and by the
        pair turned round (added). The likelihood ratio rises, so that delta(eps) is P(x > t) -
        e^eps Q(x > t) at the t with ln P/Q = eps, and Q(x < t) - e^eps P(x < t) at the t with ln
        P/Q = -eps.
    Conditions: the amount is drawn afresh, independently of everything else, and kept secret; a
        null record adds what an absent one does.
    Validity: upper bound: t is put between two numbers, each term is taken where it is worse, and
        the least pair on a grid that is nowhere below this profile is composed, each order on its
        own.
    Source: Choquette-Choo, Ganesh, Steinke, Thakurta 2023 (arXiv:2310.15526), Lemma 4.4 (vectors
        are dominated by their lengths); Doroshenko et al. 2022 (arXiv:2207.04380) for the grid.
    Error: the grid's, about a thousandth of epsilon, and 1e-14 of delta for each release. A record
        that can move the sum by more than 20 deviations counts as one that does.
    Vectors: none; held against integrals, and against the exact accountant where the weights are
        those of sampling, in tests/unit/theorems/test_given.py.
    """

    NAME = "Mixture of Gaussians"
    SOURCE = Source("Choquette-Choo et al. 2023", "Lemma 4.4", "cgst23")
    RELATIONS = PRESENCE
    OF = (MixtureOfGaussians,)

    @classmethod
    def proved(cls, process: MixtureOfGaussians) -> Guarantee:
        known = [
            (c, p) for c, p in zip(process.sensitivities, process.chances, strict=True) if p > 0.0
        ]
        whole = math.fsum(p for _, p in known)
        mu = np.array([c / process.noise_std * (1.0 + 1e-15) for c, _ in known])
        p = np.array([p / whole for _, p in known])
        if mu.max() == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
        if mu.max() > _LARGEST_MU:
            return GaussianGuarantee(float(mu.max()), process.adjacency)
        removed, added = _pairs(tuple(mu.tolist()), tuple(p.tolist()))
        orders = (((removed, 1),), ((added, 1),))
        return LossGuarantee(orders, process.adjacency, Validity.BOUND)


_LARGEST_MU, _LARGEST_LOSS = 20.0, 500.0
_UNITS, _FEW, _HALVINGS = 5e-16, 16.0, 80
_FARTHEST = 60.0  # deviations beyond the largest move: less than 1e-780 is there
_POINTS, _FAINTEST = 4000, 1e-25  # of the grid, and delta at its end


@lru_cache(maxsize=256)
def _pairs(mus: tuple[float, ...], chances: tuple[float, ...]) -> tuple[DiscretePair, DiscretePair]:
    """The least pairs on a grid that are nowhere below the profiles."""
    mu, p = np.array(mus), np.array(chances)
    top = 1.0
    while max(_deltas(mu, p, np.array([top]))[:, 0]) > _FAINTEST and top < _LARGEST_LOSS:
        top *= 2.0
    scale = min(float(p @ (mu > 0.0)) * min(float(mu.max()), 1.0), top)  # of most losses
    scale = max(scale, 1e-6 * top)  # closer points are apart by rounding only
    grid = scale * np.sinh(np.linspace(0.0, math.asinh(top / scale), _POINTS))
    removed, added = (
        dict(zip(grid.tolist(), deltas, strict=True)).__getitem__
        for deltas in _deltas(mu, p, grid).tolist()
    )
    return pair_above(removed, added, grid), pair_above(added, removed, grid)


def _deltas(mu: FloatArray, p: FloatArray, epsilons: FloatArray) -> FloatArray:
    """Upper bounds on delta(eps), eps >= 0, of a record removed and added."""
    factor = np.exp(epsilons)
    low, high = _where(mu, p, epsilons)
    removed = _below(mu - low[:, None], 1.0) @ p - factor * _below(-high, -1.0)
    low, high = _where(mu, p, -epsilons)
    added = _below(high, 1.0) - factor * (_below(low[:, None] - mu, -1.0) @ p)
    return np.clip(np.stack([removed, added]) + 1e-300, 0.0, 1.0)


def _below(z: FloatArray, way: float) -> FloatArray:
    """P(N(0, 1) < z) with the rounding of what is done with it, and of z, in one direction."""
    size = np.where(np.isfinite(z), z, 0.0)
    return np.asarray(ndtr(z) * (1.0 + way * _UNITS * (_FEW + size * size)))


def _where(mu: FloatArray, p: FloatArray, levels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Below and above the t with ln P/Q = level; an end of the line where it is not reached."""
    reach = _FARTHEST + float(mu.max())
    low, high = np.full(levels.shape, -reach), np.full(levels.shape, reach)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = _loss(mu, p, middle) < levels
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    slack = 1e-14 * (1.0 + np.abs(levels) + reach * float(mu.max()))  # rounding of a loss
    ends = []
    for end, way in ((low, -1.0), (high, 1.0)):
        room = 1e-13 * (1.0 + np.abs(end))
        for _ in range(_HALVINGS):
            short = (way * (_loss(mu, p, end) - levels) < slack) & (np.abs(end) < reach)
            if not bool(np.any(short)):
                break
            end, room = np.where(short, np.clip(end + way * room, -reach, reach), end), 2.0 * room
        ends.append(np.where(way * end >= reach, way * math.inf, end))
    return ends[0], ends[1]


def _loss(mu: FloatArray, p: FloatArray, t: FloatArray) -> FloatArray:
    return np.asarray(logsumexp(mu * t[:, None] - 0.5 * mu * mu, b=p, axis=1))
