"""Projected noisy gradient methods, last iterate: only the last steps count.

Statement: with projection on a set of diameter D before each step, mu^2 is the least cost of
    shifts over the last nu steps, started at distance D, for the best nu. For full batches and
    c = 1 that is min over nu of (D + nu eta g)^2 / (nu eta^2 noise_std^2), about 4 D g / (eta
    noise_std^2) whatever the number of steps, g = 2 L / records.
Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
    gradient is that of such a loss), projection on a bounded set, replace-one neighbours, last
    iterate only.
Validity: upper bound.
Source: Bok, Su, Altschuler 2024, projected NoisyGD and NoisyCGD, who print 3 D g/eta + g^2
    ceil(D/(eta g)); the minimum over nu is never larger. Altschuler, Talwar 2022.
Error: mu is raised by the rounding bound of `numerics.hull`; windows longer than 2^20 steps are not
    tried (each window alone is a valid bound).
Vectors: noisygd_projected_gdp.
"""

from __future__ import annotations

import math
from typing import Any

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.numerics.hull import least_window_cost, rounding
from tightrope.process import Process
from tightrope.process.convex import CyclicSGD, NoisyGradientDescent
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_steps import columns, convexity_refusal, refusal

NAME = "Last iterate of projected gradient descent"
SOURCE = Source("Bok, Su, Altschuler 2024", "projected NoisyGD and NoisyCGD", "bsa24")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_LONGEST_WINDOW = 2**20


def squared_mu(process: NoisyGradientDescent | CyclicSGD) -> float:
    """mu^2 of the best window, rounded up. The last batch of an epoch is the worst (see docs)."""
    assert process.diameter is not None
    pushes, factors, scales = columns(process, last=_LONGEST_WINDOW)
    window = least_window_cost(pushes, factors, scales, process.diameter)
    return window.cost * (1.0 + rounding(window.length))


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (NoisyGradientDescent, CyclicSGD))
    return reason or diameter_refusal(NAME, process) or convexity_refusal(NAME, process)


def diameter_refusal(name: str, process: Any) -> Refusal | None:
    if process.diameter is None:
        return Refusal(
            f"{name} needs every iterate projected on a bounded convex set; this process has "
            "diameter = None. Project on a ball and state its diameter (twice its radius)."
        )
    return None


def guarantee(process: NoisyGradientDescent | CyclicSGD) -> Guarantee:
    require(applies(process))
    return GaussianGuarantee(math.sqrt(squared_mu(process)), process.adjacency, VALIDITY)
