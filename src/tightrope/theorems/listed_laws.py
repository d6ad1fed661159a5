"""Releases of finitely many outcomes whose two laws are listed.

Statement: with the probabilities p_i and q_i of outcome i on two neighbours, the loss is
    ln(p_i/q_i) with probability p_i, infinite where q_i = 0; the other order of the neighbours
    exchanges p and q. On a Poisson sample of rate r, (1-r) q_i + r p_i stands for p_i.
    Of discrete Gaussian noise that is drawn again until |k| <= B, moved by s: loss
    s (s - 2k)/(2 sigma^2), and infinite for the s smallest k, which the moved noise never takes.
Conditions: of a declared pair, that it dominates the release on all neighbours; Tightrope cannot
    check it. Cut noise: one whole number of integer sensitivity, and the noise of every data set
    cut around its own number. Sampled: a record is added or removed, the sample is secret, and p is
    the law with the record.
Proof: of sampling: condition on the other records of the sample (the hockey stick is jointly
    convex); the law without the record is dominated by q, that with it by (1-r) q + r p.
Validity: upper bound for what is declared; exact for cut noise.
Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Section 3 (dominating pairs), Theorem 11
    (sampled); Bu et al. 2019 (arXiv:1911.11607), Proposition A.1 (sampling of any f).
Error: logarithms and sums of masses, charged by the pair.
Vectors: none; compared with sums in fractions, tests/unit/theorems/test_listed_laws.py.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import DiscretePair
from tightrope.process import (
    Adjacency,
    CutDiscreteGaussianMechanism,
    DeclaredPair,
    Process,
    SampledRelease,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require
from tightrope.validate import FloatArray

NAME = "Listed laws of the outcomes"
SOURCE = Source("Zhu, Dong, Wang 2022", "Section 3", "zdw22")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if isinstance(process, DeclaredPair | CutDiscreteGaussianMechanism):
        return other_neighbours(NAME, process, RELATIONS)
    if isinstance(process, SampledRelease) and isinstance(process.release, DeclaredPair):
        return other_neighbours(NAME, process, (Adjacency.ADD_OR_REMOVE,))
    return foreign(NAME, "DeclaredPair, a sample of it or CutDiscreteGaussianMechanism", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
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
        return GaussianGuarantee(0.0, release.adjacency, VALIDITY)
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
    return LossGuarantee((((pair, 1),),), process.adjacency, VALIDITY)
