"""Composition of whole runs: basic and advanced, and schedules of noises."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, final

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.approx import advanced, amplified
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.process import (
    Adjacency,
    FullBatch,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    PRESENCE,
    Proved,
    Refusal,
    Source,
)
from tightrope.theorems.releases import GaussianGdpDrs19
from tightrope.theorems.sampling import PoissonGaussianExactZdw22, PoissonReplaceOneExact
from tightrope.validate import FloatArray


@final
class ComposedApproxDp(Proved):
    """Basic and advanced composition of (epsilon, delta)-DP, with amplification by sampling.

    Statement: each step is (eps0, delta0)-DP as a Gaussian mechanism, (ln(1 + q (e^eps0 - 1)), q
        delta0)-DP after sampling. k steps are (k eps, k delta)-DP (basic), and for every delta' > 0
        (eps sqrt(2 k ln(1/delta')) + k eps (e^eps - 1), k delta + delta')-DP (advanced).
    Conditions: Poisson sampling and add-or-remove or zero-out neighbours, or no sampling.
    Validity: upper bound, far from tight: what was used before the moments accountant.
    Source: Dwork, Rothblum, Vadhan 2010, Theorem III.3; survey (Boninsegna), Theorems II.3 and II.4
        (its shortcut 2 eps sqrt(2 k ln(1/delta')) for eps < 1 is false and not used).
    Error: the split of delta between steps and delta' is fixed (one half each), not optimised.
    Vectors: advanced_composition, subsample_eps_delta.
    """

    NAME = "Basic and advanced composition"
    SOURCE = Source("Dwork, Rothblum, Vadhan 2010", "Theorem III.3", "drv10")
    RELATIONS = ONE_RECORD

    @classmethod
    def condition(cls, process: NoisySGD) -> Refusal | None:
        if isinstance(process.sampling, FullBatch):
            return None
        if isinstance(process.sampling, PoissonSampling) and process.adjacency in PRESENCE:
            return None
        return Refusal(
            f"{cls.NAME} with sampling needs Poisson batches and add-or-remove or zero-out "
            f"neighbours; got {process.sampling} and {process.adjacency}.",
            "neighbours",
        )

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        if process.steps == 0 or process.sampling.rate == 0.0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.BOUND)
        if process.noise_multiplier == 0.0:
            return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
        rate, mu, steps = process.sampling.rate, process.step_mu, process.steps
        return ProfileGuarantee.from_epsilon(
            partial(epsilon_upper, rate, mu, steps), process.adjacency, Validity.BOUND
        )


def epsilon_upper(rate: float, mu: float, steps: int, delta: float) -> float:
    """The smaller of basic and advanced composition at this delta."""
    if delta == 0.0:
        return math.inf
    basic = steps * _step_epsilon(rate, mu, delta / (steps * rate))
    slack = 0.5 * delta
    step = _step_epsilon(rate, mu, slack / (steps * rate))
    if step > 700.0 or slack == 0.0:
        return basic
    return min(basic, advanced([(step, 0.0)], slack, [steps])[0])


def _step_epsilon(rate: float, mu: float, delta: float) -> float:
    """Epsilon of one sampled step whose Gaussian part has this delta."""
    eps = float(profile.epsilon_bounds(min(delta, 1.0), mu).upper)
    if rate == 1.0 or math.isinf(eps):
        return eps
    return amplified(eps, 0.0, rate, Adjacency.ADD_OR_REMOVE)[0]


@final
class NoiseScheduleExact(Proved):
    """Noisy SGD with a schedule of noises fixed in advance.

    Statement: the steps compose like any others: the pairs of Poisson-sampled Gaussian steps with
        the scheduled noises are multiplied, order by order of the neighbours; full batches add
        mu^2. With more than 1,000 distinct noises they are first rounded down to a grid of relative
        width 1e-3, which can only overstate the loss (less noise is a less private step).
    Conditions: Poisson sampling, or full batches. The schedule must not depend on the data;
        otherwise use a filter.
    Validity: exact up to 1,000 distinct noises, above an upper bound (about 1e-3 relative).
    Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorem 10 (composition of dominating pairs).
    Error: the rounding of the grid, on the safe side; the numerical composition states its own.
    Vectors: sgm_eps, gdp_eps (constant schedules).
    """

    NAME = "Scheduled noise, composed"
    SOURCE = Source("Zhu, Dong, Wang 2022", "Theorem 10", "zdw22")
    VALIDITY = Validity.EXACT
    RELATIONS = ONE_RECORD
    OF = (NoiseSchedule,)

    @classmethod
    def condition(cls, process: NoiseSchedule) -> Refusal | None:
        if isinstance(process.sampling, (PoissonSampling, FullBatch)):
            return None
        return Refusal(
            f"{cls.NAME} needs Poisson sampling or full batches; got {process.sampling}."
        )

    @classmethod
    def proved(cls, process: NoiseSchedule) -> Guarantee:
        noises, counts = np.unique(np.array(process.noise_multipliers), return_counts=True)
        distinct = len(noises)
        if distinct > _MANY:
            noises, counts = _rounded_down(noises, counts)
        runs = [
            NoisySGD(process.sampling, float(noise), int(count), process.adjacency)
            for noise, count in zip(noises, counts, strict=True)
        ]
        parts = [_one_step(process).guarantee(run) for run in runs]
        composed = compose(parts)
        return composed if distinct <= _MANY else composed.as_bound()


_MANY, _GRID = 1000, 1e-3


def _one_step(process: NoiseSchedule) -> Any:
    if isinstance(process.sampling, FullBatch):
        return GaussianGdpDrs19
    replaced = process.adjacency is Adjacency.REPLACE_ONE
    return PoissonReplaceOneExact if replaced else PoissonGaussianExactZdw22


def _rounded_down(noises: FloatArray, counts: Any) -> tuple[FloatArray, Any]:
    """Each noise replaced by the grid point below it; equal ones counted together."""
    with np.errstate(divide="ignore"):
        cell = np.floor(np.log(noises) / _GRID)
    below = np.minimum(np.exp(cell * _GRID), noises)
    below = np.where(noises > 0, below * (1 - 1e-12), 0.0)
    grid, place = np.unique(below, return_inverse=True)
    return grid, np.bincount(place, weights=counts).astype(np.int64)
