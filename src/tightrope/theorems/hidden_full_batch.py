"""Noisy gradient descent on the whole dataset, last iterate: privacy loss that converges.

Statement: c < 1 the Lipschitz constant of a step and mu_1 = 2 L / (records * noise_std): after t
    steps the last iterate is mu-GDP with
        mu^2 = mu_1^2 (1 + c)/(1 - c) (1 - c^t)/(1 + c^t),
    never more than mu_1^2 (1 + c)/(1 - c) however long one trains; mu_1^2 t for c = 1.
Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
    gradient is that of such a loss), replace-one neighbours, last iterate only, any common start.
Validity: upper bound, attained by quadratic losses where step_size <= 2 / (strong_convexity +
    smoothness).
Source: Bok, Su, Altschuler 2024, strongly convex NoisyGD. About half of the limit
    of Chourasia, Ye, Shokri 2021 (the survey's Theorem VII.1), and never worse than composition.
Error: closed form; mu is raised by 1e-14 relative.
Vectors: noisygd_strongly_convex_gdp, thm_VII1 (exact).
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Process
from tightrope.process.convex import NoisyGradientDescent
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu

NAME = "Last iterate of noisy gradient descent"
SOURCE = Source("Bok, Su, Altschuler 2024", "strongly convex NoisyGD", "bsa24")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def squared_mu(factor: float, steps: int) -> float:
    """mu^2 over the squared mu of one step."""
    if factor == 1.0:
        return float(steps)
    power = factor**steps
    lost = -math.expm1(steps * math.log(factor)) if factor > 0.0 else 1.0  # 1 - c^t
    return (1.0 + factor) / (1.0 - factor) * lost / (1.0 + power)


def applies(process: Process) -> Refusal | None:
    return refusal(NAME, process, (NoisyGradientDescent,)) or convexity_refusal(NAME, process)


def guarantee(process: NoisyGradientDescent) -> Guarantee:
    require(applies(process))
    square = squared_mu(contraction(process.loss, process.step_size), process.steps)
    mu = step_mu(process) * math.sqrt(square) * (1.0 + 1e-14)
    return GaussianGuarantee(mu, process.adjacency, VALIDITY)
