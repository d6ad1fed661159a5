"""Basic and advanced composition of (epsilon, delta)-DP, with amplification by sampling.

Statement: each step is (eps0, delta0)-DP as a Gaussian mechanism, (ln(1 + q (e^eps0 - 1)),
    q delta0)-DP after sampling. k steps are (k eps, k delta)-DP (basic), and for every delta' > 0
    (eps sqrt(2 k ln(1/delta')) + k eps (e^eps - 1), k delta + delta')-DP (advanced).
Conditions: Poisson sampling and add-or-remove or zero-out neighbours, or no sampling.
Validity: upper bound, far from tight: what was used before the moments accountant.
Source: Dwork, Rothblum, Vadhan 2010, Theorem III.3; survey (Boninsegna), Theorems II.3 and II.4
    (its shortcut 2 eps sqrt(2 k ln(1/delta')) for eps < 1 is false and not used).
Error: the split of delta between steps and delta' is fixed (one half each), not optimised.
Vectors: advanced_composition, subsample_eps_delta.
"""

from __future__ import annotations

import math
from functools import partial

from tightrope.guarantee.approx.simple import advanced, amplified
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian import profile
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.process import Adjacency, FullBatch, NoisySGD, PoissonSampling, Process
from tightrope.theorems.base import (
    ONE_RECORD,
    PRESENCE,
    Refusal,
    Source,
    foreign,
    other_neighbours,
    require,
)

NAME = "Basic and advanced composition"
SOURCE = Source("Dwork, Rothblum, Vadhan 2010", "Theorem III.3", "drv10")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, NoisySGD):
        return foreign(NAME, "one run of noisy SGD", process)
    if isinstance(process.sampling, FullBatch):
        return other_neighbours(NAME, process, RELATIONS)
    if not isinstance(process.sampling, PoissonSampling) or process.adjacency not in PRESENCE:
        return Refusal(
            f"{NAME} with sampling needs Poisson batches and add-or-remove or zero-out neighbours; "
            f"got {process.sampling} and {process.adjacency}.",
            "neighbours",
        )
    return None


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    if process.steps == 0 or process.sampling.rate == 0.0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    if process.noise_multiplier == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, VALIDITY)
    rate, mu, steps = process.sampling.rate, process.step_mu, process.steps
    return ProfileGuarantee.from_epsilon(
        partial(epsilon_upper, rate, mu, steps), process.adjacency, VALIDITY
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
    eps = profile.epsilon_interval(min(delta, 1.0), mu).upper
    if rate == 1.0 or math.isinf(eps):
        return eps
    return amplified(eps, 0.0, rate, Adjacency.ADD_OR_REMOVE)[0]
