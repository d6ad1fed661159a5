"""Hockey-stick contraction: common noisy steps on a bounded set multiply delta.

Statement: a map whose values lie within a set of diameter R, followed by N(0, (eta noise_std)^2 I),
    multiplies every E_g, g >= 1, by at most theta_eps(R) = delta(eps; R / (eta noise_std)), eps =
    ln g. A record last used j + i steps before the end therefore has
        delta(eps) <= delta(eps; mu_j) theta_eps(R)^i,
    mu_j the Gaussian parameter of the iterate j steps after the last use; R = c D for a c-Lipschitz
    step, R = D + 2 eta L for any clipped loss. The best split of the remaining steps is taken.
Conditions: cyclic SGD, projection on a set of diameter D, replace-one neighbours, last iterate
    only; any loss with bounded gradients.
Validity: upper bound; decays exponentially in the number of later steps.
Source: Asoodeh, Diaz, Calmon 2020. (Proof: the positive part of mu - g nu has mass E
    and the negative one E + g - 1 >= g E; coupling them costs at most sup E_g(K_x || K_y) each.)
    The multi-pass recursion of Asoodeh, Diaz 2023 is not used: with several epochs everything up to
    the last use is bounded by Gaussian DP first.
Error: delta is raised by 1e-12 relative beyond the profile's own bound.
Vectors: hockey_stick_contraction_pnsgd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian import profile
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.process import Process
from tightrope.process.convex import ConvexLoss, CyclicSGD
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_cyclic import squared_mu
from tightrope.theorems.hidden_projected import diameter_refusal
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu

NAME = "Hockey-stick contraction of the steps after the last use"
SOURCE = Source("Asoodeh, Diaz, Calmon 2020", "contraction coefficient of E_gamma", "adc20")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_SPLITS = 64


@dataclass(frozen=True)
class ContractionProfile:
    """min over the splits of delta(eps; mu_j) theta_eps(ratio)^i."""

    mus: tuple[float, ...]
    later_steps: tuple[int, ...]
    ratio: float

    def __call__(self, epsilon: float) -> float:
        logs = np.asarray(profile.log_delta_bounds(epsilon, np.array(self.mus))[1])
        shrink = float(profile.log_delta_bounds(epsilon, self.ratio)[1])
        # 0 * (-inf): no later step, nothing to multiply
        powers = np.array([i * shrink if i else 0.0 for i in self.later_steps])
        return min(1.0, math.exp(float(np.min(logs + powers))) * (1.0 + 1e-12))


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (CyclicSGD,)) or diameter_refusal(NAME, process)
    if reason is not None:
        return reason
    assert isinstance(process, CyclicSGD)
    if isinstance(process.loss, ConvexLoss):
        return convexity_refusal(NAME, process)
    return None


def range_ratio(process: CyclicSGD) -> float:
    """Diameter of a step's values over its noise."""
    assert process.diameter is not None
    factor = contraction(process.loss, process.step_size)
    moved = process.diameter + 2.0 * process.step_size * process.loss.lipschitz
    reach = factor * process.diameter
    if not isinstance(process.loss, ConvexLoss):
        reach = min(reach, moved)
    return reach / (process.step_size * process.noise_std) * (1.0 + 1e-15)


def guarantee(process: CyclicSGD) -> Guarantee:
    require(applies(process))
    later = process.batches_per_epoch - (process.index or process.batches_per_epoch)
    mus, left = _splits(process, later)
    contracted = ContractionProfile(mus, left, range_ratio(process))
    return ProfileGuarantee(contracted, process.adjacency, VALIDITY)


def _splits(process: CyclicSGD, later: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """mu_j and the steps left after it, for some j between 0 and `later`."""
    step = step_mu(process) * (1.0 + 1e-13 + process.epochs * 2.0**-50)
    if not isinstance(process.loss, ConvexLoss):
        return (step * math.sqrt(process.epochs),), (later,)
    factor = contraction(process.loss, process.step_size)
    waits = np.unique(np.geomspace(1, later + 1, _SPLITS).astype(int)) - 1
    period = process.batches_per_epoch
    squares = squared_mu(factor, period, process.epochs, period - waits)
    return tuple((step * np.sqrt(squares)).tolist()), tuple((later - waits).tolist())
