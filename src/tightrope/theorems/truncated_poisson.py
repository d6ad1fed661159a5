"""Poisson batches that are cut to a largest size.

Statement: every record joins a batch with probability q; of a batch of more than B a uniform subset
    of B is kept. n counts the records of the data set that holds the record in question. With
    tau = P(Bin(n-1, q) >= B) and p = P(Bin(n, q) > B) B / (n tau), a step is dominated by the
    public mixture of
        (1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2), with probability 1 - tau, and
        (1-p) N(0, s^2) + p N(2, s^2) against N(0, s^2), with probability tau,
    and by the two pairs turned round (added). Where a record is replaced, the parts are the exact
    pair of Poisson batches and that of fixed-size batches of rate p, C_p(G_{2/s}); where it is
    zeroed, Poisson's pair as above and the latter: a null record that is drawn takes a place too.
    For groups that are added or removed, q takes the place of p in every link of the chain.
Proof: give away whether the others alone fill the batch; that does not depend on the record. If
    they do not, nothing is cut, and the step is a Poisson step. If m >= B others were drawn, the
    record is kept with probability q B/(m + 1), and then it takes the place of one other; the kept
    others are a uniform subset whatever m is, so only the mean p of that probability counts, which
    is E[q B/(m + 1); m >= B]/tau = P(Bin(n, q) > B) B/(n tau). Couple the kept others with and
    without the record so that they differ in the one who gives way: two sums of clipped gradients,
    at most 2 apart, and joint convexity gives the second pair. Steps compose because each is
    dominated at every epsilon (Zhu, Dong, Wang 2022, Theorem 10).
    Groups: the data sets in between have n' < n records, a smaller tau and a larger p, which is at
    most q. With q in its place the second pair dominates the first, so the mixture rises with tau,
    and that of n dominates all links.
Conditions: secret sampling and cutting; n is public; the noisy sum is divided by a public constant.
Validity: upper bound. The lower ends are attained by data whose other gradients are 0: plain
    Poisson steps of rate (1-tau) q + tau p.
Source: Ganesh et al. 2025 (arXiv:2508.15089) for the mixture; the order of the pairs as above.
Error: tau and p in 50-digit decimals; the numerical composition states its own. Outside of its
    reach the bound is that of plain Poisson steps at half the noise, which dominate both parts.
Vectors: truncated_poisson.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    Direction,
    FixedSizeGaussianPair,
    GaussianMixturePair,
    PublicMixturePair,
    SampledGaussianPair,
)
from tightrope.numerics.binomial_tail import binomial_tail
from tightrope.process import (
    Adjacency,
    NoisySGD,
    PoissonSampling,
    Process,
    TruncatedPoissonSampling,
)
from tightrope.theorems import (
    poisson_gaussian_exact_zdw22,
    poisson_replace_one_exact,
    sampled_gaussian_replace_drs19,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Poisson batches cut at a largest size"
SOURCE = Source("Ganesh et al. 2025", "public mixture of two sampled Gaussians", "g25")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD

_DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
_NEARLY_ALL = 1.0 - 2.0**-53  # weighs 1e-15 at most where it stands for 1: see `cut`
_SMALLEST, _UP = 1e-300, 1.0 + 4e-15


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "noisy SGD", process)
    if not isinstance(process.sampling, TruncatedPoissonSampling):
        return Refusal(f"{NAME} needs TruncatedPoissonSampling; got {process.sampling}.", "foreign")
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, NoisySGD)
    sampling = _sampling(process)
    rate, mu, steps = sampling.join_rate, process.step_mu, process.steps
    if rate == 0.0 or steps == 0 or sampling.largest_batch == 0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    if mu == math.inf:  # no noise: nothing is promised
        return GaussianGuarantee(math.inf, process.adjacency, VALIDITY)
    tau, kept = cut(rate, sampling.largest_batch, sampling.dataset_size)
    if tau == 0.0:  # there is never anything to cut
        return _poisson(replace(process, sampling=PoissonSampling(rate)))
    coarse = _half_noise(process)
    if not poisson_gaussian_exact_zdw22.within_reach(kept, 2.0 * mu, steps):
        return coarse
    orders = tuple(((pair, steps),) for pair in _pairs(process, tau, kept))
    return LossGuarantee(
        orders, process.adjacency, VALIDITY, otherwise=coarse, attained=_attained(process)
    )


def _sampling(process: NoisySGD) -> TruncatedPoissonSampling:
    assert isinstance(process.sampling, TruncatedPoissonSampling)
    return process.sampling


def cut(rate: float, largest: int, records: int) -> tuple[float, float]:
    """tau, at most 1 - 1e-15, and p rounded up; tau = 0 only where a batch cannot be too large.

    Every delta of the second pair grows at least as fast as p (it is convex in p, and 0 at p = 0),
    so that p (1 + 4e-15) makes up for a tau that is 1e-15 too small.
    """
    if records <= largest:
        return 0.0, rate
    if rate == 1.0:
        return 1.0 - 1e-15, min(largest / records * _UP, 1.0)
    others = binomial_tail(records - 1, rate, largest)
    kept = binomial_tail(records, rate, largest + 1) * largest / (records * others)
    return min(max(float(others), _SMALLEST), 1.0 - 1e-15), min(float(kept) * _UP, 1.0)


def _pairs(process: NoisySGD, tau: float, kept: float) -> list[AbstractLossPair]:
    rate, mu = min(_sampling(process).join_rate, _NEARLY_ALL), 1.0 / process.noise_multiplier
    if process.adjacency is Adjacency.ADD_OR_REMOVE:
        return [
            PublicMixturePair(
                tau, SampledGaussianPair(rate, mu, d), SampledGaussianPair(kept, 2.0 * mu, d)
            )
            for d in _DIRECTIONS
        ]
    full = FixedSizeGaussianPair(kept, 2.0 * mu)
    if _sampling(process).join_rate == 1.0:  # all are drawn, and the others alone fill the batch
        return [full]
    if process.adjacency is Adjacency.REPLACE_ONE:
        return [PublicMixturePair(tau, GaussianMixturePair(rate, mu, 1, 1), full)]
    return [PublicMixturePair(tau, SampledGaussianPair(rate, mu, d), full) for d in _DIRECTIONS]


def _attained(process: NoisySGD) -> tuple[Components, ...]:
    """The other gradients are 0: only whether the record is kept counts, rounded down."""
    rate, mu = process.sampling.rate * (1.0 - 4e-15), 1.0 / process.noise_multiplier
    if process.adjacency is Adjacency.REPLACE_ONE:
        return (((GaussianMixturePair(rate, mu, 1, 1), process.steps),),)
    return tuple(((SampledGaussianPair(rate, mu, d), process.steps),) for d in _DIRECTIONS)


def _poisson(process: NoisySGD) -> Guarantee:
    if process.adjacency is Adjacency.REPLACE_ONE:
        return poisson_replace_one_exact.guarantee(process)
    return poisson_gaussian_exact_zdw22.guarantee(process)


def _half_noise(process: NoisySGD) -> Guarantee:
    """Poisson steps whose record moves the sum by twice as much, or C_q(G_{2/s})."""
    if process.adjacency is not Adjacency.ADD_OR_REMOVE:
        plain = replace(
            process,
            sampling=PoissonSampling(_sampling(process).join_rate),
            adjacency=Adjacency.REPLACE_ONE,  # of a null record too: it takes a place
        )
        found: Any = _as_bound(sampled_gaussian_replace_drs19.guarantee(plain))
        return replace(found, adjacency=process.adjacency)  # type: ignore[no-any-return]
    noise, sampling = process.noise_multiplier / 2.0, PoissonSampling(_sampling(process).join_rate)
    return _as_bound(_poisson(replace(process, sampling=sampling, noise_multiplier=noise)))


def _as_bound(found: Guarantee) -> Guarantee:
    """What is proved of the steps that stand in for the cut ones; not of groups of records."""
    bound = found.as_bound()
    return replace(bound, by_record=False) if isinstance(bound, LossGuarantee) else bound
