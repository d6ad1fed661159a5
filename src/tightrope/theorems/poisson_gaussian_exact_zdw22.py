"""One Poisson-sampled Gaussian step, exactly.

Statement: with rate q and mu = 1/noise_multiplier, the step is dominated by, and attains, the pair
    P = (1-q) N(0,1) + q N(mu,1) against Q = N(0,1) (a record is removed) and the reversed pair
    (added). T steps are dominated by T-fold products of the same ordered pair; the guarantee is
    the worse order. In f-DP: min{f, f^-1}** with f = (q G_mu + (1-q) Id)^(x T).
Conditions: Poisson sampling, secret; add-or-remove neighbours, or zero-out ones: a null record in
    the batch adds what an absent one does. The noisy sum is divided by a public constant. (Deep
    Learning with GDP, Algorithm 1, divides by the realised batch size, which breaks its own Theorem
    3: total variation 0.25 where 0.02 is claimed.)
Validity: exact; outside the reach of the numerical composition a bound: by the Renyi divergences
    of the same pair for noise above 1e5, rates below 1e-30 and more than 1e15 steps, by the number
    of steps that a record takes part in for noise below 0.05 (`kinds/participation.py`).
Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 11; Bu, Dong, Long, Su 2019
    (arXiv:1911.11607), Theorem 3.
Error: none here; the numerical composition states its own.
Vectors: sgm_delta, sgm_eps, sgm_tradeoff_point.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.participation import ParticipationGuarantee
from tightrope.guarantee.kinds.renyi import PairsTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.loss.pairs import SampledGaussianPair
from tightrope.process import NoisySGD, PoissonSampling, Process
from tightrope.theorems.base import PRESENCE, Refusal, Source, foreign, require

NAME = "Poisson-sampled Gaussian, exact"
SOURCE = Source("Zhu, Dong, Wang 2022", "Theorem 11", "zdw22")
VALIDITY = Validity.EXACT
RELATIONS = PRESENCE
_LARGEST_MU, _MOST_STEPS = 20.0, 10**15


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "noisy SGD", process)
    if not isinstance(process.sampling, PoissonSampling):
        return Refusal(
            f"{NAME} needs Poisson sampling, where records join a batch independently; got "
            f"{process.sampling}. Other schemes can lose several times more privacy: train with a "
            "Poisson sampler, or use the analysis of the scheme you run."
        )
    if process.adjacency not in RELATIONS:
        return Refusal(
            f"{NAME} needs add-or-remove or zero-out neighbours (its pair compares a record's "
            f"presence with its absence); got {process.adjacency}. Declare "
            "Adjacency.ADD_OR_REMOVE, or use the replace-one analysis.",
            "neighbours",
        )
    return None


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    closed = closed_form(process)
    if closed is not None:
        return closed
    rate, mu, steps = process.sampling.rate, process.step_mu, process.steps
    if not within_reach(rate, mu, steps):
        return renyi_bound(process, "optimal")
    orders = tuple(
        ((SampledGaussianPair(rate, mu, direction), steps),) for direction in ("remove", "add")
    )
    return LossGuarantee(orders, process.adjacency, VALIDITY, by_record=True)


def closed_form(process: NoisySGD) -> Guarantee | None:
    """The runs that need no numerical composition."""
    rate, mu, steps = process.sampling.rate, process.step_mu, process.steps
    if rate == 0.0 or steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    if mu == math.inf:  # no noise: nothing is promised
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    if rate == 1.0:
        return GaussianGuarantee(mu * math.sqrt(steps), process.adjacency, VALIDITY)
    return by_participations(process, mu) if mu > _LARGEST_MU else None


def by_participations(process: NoisySGD, mu: float) -> Guarantee:
    """A bound for any noise: how often the record takes part, not in which steps.

    mu: how far apart two batches are at most, of which one or none holds the record.
    """
    rate, steps = process.sampling.rate, process.steps
    if steps > _MOST_STEPS:  # sampling only helps
        return GaussianGuarantee(mu * math.sqrt(steps), process.adjacency, Validity.BOUND)
    # a replaced record may give way to one of gradient 0, and a record in the place of another too
    shown = 1.0 / process.noise_multiplier
    return ParticipationGuarantee(rate, mu, steps, process.adjacency, shown=shown)


def within_reach(rate: float, mu: float, steps: int) -> bool:
    """Can the numerical composition answer in double precision?"""
    return rate >= 1e-30 and 1e-5 <= mu <= _LARGEST_MU and steps <= _MOST_STEPS


def renyi_bound(process: NoisySGD, route: str) -> RenyiGuarantee:
    """The Renyi divergences of the steps, converted by the named route; holds everywhere.

    Removal is the worse order for every order of the divergence (Mironov, Talwar, Zhang 2019
    (arXiv:1908.10530), Theorem 5).
    """
    pair = SampledGaussianPair(process.sampling.rate, process.step_mu, "remove")
    curve = RenyiCurve.of(PairsTerm((((pair, 1),),))) * process.steps
    return RenyiGuarantee(curve, process.adjacency, Validity.BOUND, route)
