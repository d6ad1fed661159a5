"""Any clipped loss on a bounded set, last iterate: the last step's noise alone hides everything.

Statement: before its noise the last iterate lies in a set of diameter at most D + 2 eta L whatever
    the data, so it is mu-GDP with mu = (D + 2 eta L) / (eta noise_std) after any number of steps.
Conditions: every per-record gradient has norm <= L (clipping suffices; nothing else is asked of the
    loss), projection on a set of diameter D before each step, replace-one neighbours, last iterate
    only.
Validity: upper bound; useful where D / (eta noise_std) is of order one.
Source: the last step of Feldman et al. 2018, Theorem 22, with z = D.
Error: three roundings; mu is raised by 1e-15 relative.
Vectors: none printed; checked against one-step arithmetic in tests/golden/hidden.json.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Process
from tightrope.process.convex import (
    ConvexLoss,
    CyclicSGD,
    NoisyGradientDescent,
    SkipSGD,
    StopSGD,
    SubsampledSGD,
)
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_projected import diameter_refusal
from tightrope.theorems.hidden_steps import refusal

NAME = "Last step on a bounded set, any clipped loss"
SOURCE = Source("Feldman et al. 2018", "Theorem 22, last step", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_KINDS = (NoisyGradientDescent, CyclicSGD, SkipSGD, StopSGD, SubsampledSGD)


def mu(diameter: float, step_size: float, lipschitz: float, noise_std: float) -> float:
    """(D + 2 eta L) / (eta noise_std), rounded up."""
    return (diameter + 2.0 * step_size * lipschitz) / (step_size * noise_std) * (1.0 + 1e-15)


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, _KINDS) or diameter_refusal(NAME, process)
    if reason is not None:
        return reason
    assert isinstance(process, _KINDS)
    if isinstance(process.loss, ConvexLoss):
        return Refusal(
            f"{NAME} needs a bound on the whole gradient; ConvexLoss bounds only the part that "
            "depends on the record. The theorems about convex losses are stronger here anyway."
        )
    return None


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, _KINDS) and process.diameter is not None
    value = mu(process.diameter, process.step_size, process.loss.lipschitz, process.noise_std)
    return GaussianGuarantee(value, process.adjacency, VALIDITY)
