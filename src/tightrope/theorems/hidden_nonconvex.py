"""Projected noisy gradient methods on smooth losses that need not be convex, last iterate.

Statement: a gradient step is Lipschitz with constant c = 1 + eta beta. With projection on a set of
    diameter D, mu^2 is the least cost of shifts over the last nu steps, started at distance D, for
    the best nu.
Conditions: smooth loss with bounded gradients, projection on a bounded convex set, replace-one
    neighbours, last iterate only.
Validity: upper bound; useful where D / (eta noise_std) is of order one.
Source: Feldman et al. 2018, Theorem 22, with expanding maps. A closed form (one chord over the
    window) is not used: with c > 1 that chord can pass above the points, which no choice of shifts
    allows, and is then too small (c = 1.5, nu = 2, D << eta g).
Error: mu is raised by the rounding bound of `numerics.hull`.
Vectors: optimal_shift (c = 1.1, z0 = 1).
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Process
from tightrope.process.convex import CyclicSGD, NoisyGradientDescent, SmoothLoss
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_projected import diameter_refusal, squared_mu
from tightrope.theorems.hidden_steps import refusal

NAME = "Last iterate, smooth non-convex loss on a bounded set"
SOURCE = Source("Feldman et al. 2018", "Theorem 22 with expanding maps", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (NoisyGradientDescent, CyclicSGD))
    reason = reason or diameter_refusal(NAME, process)
    if reason is not None:
        return reason
    assert isinstance(process, (NoisyGradientDescent, CyclicSGD))
    if not isinstance(process.loss, SmoothLoss):
        return Refusal(
            f"{NAME} needs a bound on the Hessian, as SmoothLoss states it; got "
            f"{type(process.loss).__name__}. Convex losses have a better theorem."
        )
    return None


def guarantee(process: NoisyGradientDescent | CyclicSGD) -> Guarantee:
    require(applies(process))
    return GaussianGuarantee(math.sqrt(squared_mu(process)), process.adjacency, VALIDITY)
