"""Central limit theorem for releases of any kind: together they look like one Gaussian mechanism.

Statement: for releases with (possibly asymmetric) trade-off functions f_i, kl_i = int -log|f_i'|,
    kl~_i = int |f_i'| log|f_i'| and the variances v_i, v~_i of log|f_i'| under both laws, the
    composition tends to G_mu, mu = K/s, where K = sum (kl_i + kl~_i) and s^2 is the common limit
    of sum v_i and sum v~_i, when the largest kl and the sums of third moments vanish. Used for
    finitely many releases with s^2 = the mean of the two sums, which is exact for Gaussians.
Conditions: at least one release that is not a Gaussian step (those have the closed form of
    Theorem 5), each known through a pair of laws with finite losses.
Validity: ESTIMATE in neither direction; with few releases, or one that outweighs the others, it may
    be far off.
Source: Bu, Dong, Long, Su 2019 (arXiv:1911.11607), Theorem 7; the variance in place of the second
    moment as in Dong, Roth, Su 2019 (arXiv:1905.02383v3), Theorem 3.4.
Error: unknown for finitely many releases; `account` states the true error beside it.
Vectors: Gaussian, Laplace and randomised response in closed form, in its tests.
"""

from __future__ import annotations

import math
from typing import Any

from tightrope.guarantee.base import Components, Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.loss.loss_moments import LossMoments, moments
from tightrope.process import Process, parts_of
from tightrope.theorems import (
    declared,
    gaussian_gdp_drs19,
    noise_schedule_exact,
    poisson_gaussian_exact_zdw22,
    sampled_gaussian_clt_bdls19,
    sampled_gaussian_replace_drs19,
    single_releases_exact,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, require

NAME = "Central limit theorem, any releases"
SOURCE = Source("Bu, Dong, Long, Su 2019", "Theorem 7", "bdls19")
VALIDITY = Validity.ESTIMATE
RELATIONS = ONE_RECORD
_WHY = "a limit for many releases of which none stands out; its error here is not bounded"
_PAIRS: tuple[Any, ...] = (
    poisson_gaussian_exact_zdw22,
    gaussian_gdp_drs19,
    single_releases_exact,
    declared,
    sampled_gaussian_replace_drs19,
    noise_schedule_exact,
)


def applies(process: Process) -> Refusal | None:
    parts = parts_of(process)
    if not parts or all(sampled_gaussian_clt_bdls19.applies(part) is None for part in parts):
        return Refusal(
            f"{NAME} applies to releases besides Gaussian steps; got none (see Theorem 5).",
            "foreign",
        )
    for part in parts:
        components = _components(part)
        if components is None:
            return Refusal(
                f"{NAME} applies to releases known through a pair of output laws; got "
                f"{type(part).__name__}.",
                "foreign",
            )
        if not all(math.isfinite(moments(pair).variance_p) for pair, _ in components):
            return Refusal(
                f"{NAME} needs losses with a finite variance; got {type(part).__name__}, which "
                "has a positive delta of its own, or next to no noise."
            )
    return None


def guarantee(process: Process) -> Estimate:
    require(applies(process))
    found: list[tuple[LossMoments, int]] = []
    for part, times in parts_of(process).items():
        found += [(moments(pair), times * n) for pair, n in _components(part) or ()]
    adjacency = next(iter(parts_of(process))).adjacency
    return Estimate(GaussianGuarantee(limit_mu(found), adjacency), _WHY)


def limit_mu(found: list[tuple[LossMoments, int]]) -> float:
    """K/s of the theorem."""
    k = math.fsum(n * (m.mean_p - m.mean_q) for m, n in found)
    s = math.sqrt(math.fsum(0.5 * n * (m.variance_p + m.variance_q) for m, n in found))
    return k / s if s > 0.0 else 0.0


def _components(part: Process) -> Components | None:
    """The pairs of one order of the neighbours; K and s are the same for the other."""
    theorem = next((theorem for theorem in _PAIRS if theorem.applies(part) is None), None)
    if theorem is None:
        return None
    known: Guarantee = theorem.guarantee(part)
    orders = known.directions()
    return orders[0] if orders else None
