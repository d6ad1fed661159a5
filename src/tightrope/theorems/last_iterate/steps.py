"""What the theorems about the last iterate share: contraction, step sensitivity, refusals.

A gradient step w -> w - eta grad f(w) of a function whose Hessian has eigenvalues in [m, beta] is
Lipschitz with constant max(|1 - eta m|, |1 - eta beta|) (Feldman et al. 2018, Proposition 18, for
m = 0: at most 1 iff eta <= 2/beta). The printed proof uses a mean-value point of a vector map,
which need not exist; the Hessian averaged along the segment gives the same constant. Projection on
a convex set is 1-Lipschitz (Proposition 17), so projecting first changes nothing.

Replacing one record moves a batch's mean gradient by at most 2 lipschitz / batch_size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tightrope.process import Released
from tightrope.process.convex import (
    ClippedLoss,
    ContractiveIteration,
    ConvexLoss,
    CyclicSGD,
    LossConstants,
    NoisyGradientDescent,
    SmoothLoss,
    SubsampledSGD,
)
from tightrope.theorems.base import (
    REPLACED,
    Proved,
    Refusal,
    foreign,
)
from tightrope.validate import FloatArray


def contraction(loss: LossConstants, step_size: float) -> float:
    """Lipschitz constant of a gradient step; inf where none is known."""
    if isinstance(loss, ClippedLoss):
        return math.inf
    if isinstance(loss, SmoothLoss):
        return 1.0 + step_size * loss.smoothness
    curvatures = (loss.strong_convexity, loss.smoothness)
    factor = max(abs(1.0 - step_size * curvature) for curvature in curvatures)
    # one ulp up: a larger constant is always true, a smaller one need not be
    return min(1.0, math.nextafter(factor, 2.0)) if factor < 1.0 else factor


def batch_of(process: Any) -> int:
    """How many records' gradients are averaged in one step."""
    if isinstance(process, NoisyGradientDescent):
        return process.records
    return process.batch_size if isinstance(process, (CyclicSGD, SubsampledSGD)) else 1


def step_mu(process: Any) -> float:
    """Gaussian-DP parameter of one step that uses the record: 2 L / (batch * noise_std)."""
    return float(2.0 * process.loss.lipschitz / (batch_of(process) * process.noise_std))


class LastIterate(Proved):
    """A theorem about methods that release their last iterate only, whatever the loss."""

    RELATIONS = REPLACED

    @classmethod
    def applies(cls, process: Any) -> Refusal | None:
        if not isinstance(process, cls.OF):
            wanted = " or ".join(kind.__name__ for kind in cls.OF)
            return foreign(cls.NAME, wanted, process)
        if process.adjacency not in cls.RELATIONS:
            return Refusal(
                f"{cls.NAME} compares datasets of one public size, so it needs replace-one "
                f"neighbours; got {process.adjacency}. Declare Adjacency.REPLACE_ONE.",
                "neighbours",
            )
        if process.released is not Released.LAST_ITERATE:
            return Refusal(
                f"{cls.NAME} needs every iterate but the last to stay secret; this process "
                f"releases {process.released}. Release the last iterate only, or use composition."
            )
        return cls.condition(process)


class Contractive(LastIterate):
    """One whose gradient steps do not expand distances: convex smooth losses, small steps."""

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        return convexity_refusal(cls.NAME, process)


def convexity_refusal(name: str, process: Any) -> Refusal | None:
    """Convex, smooth, step size at most 2 / smoothness: then gradient steps do not expand."""
    loss = process.loss
    if isinstance(loss, ClippedLoss):
        return Refusal(
            f"{name} needs gradient steps that do not expand distances; gradients clipped to norm "
            f"{loss.lipschitz:g} promise nothing of the kind. If the clipped gradient is that of a "
            "convex smooth function (as for generalised linear models), describe it by ConvexLoss."
        )
    if not isinstance(loss, ConvexLoss):
        return Refusal(f"{name} needs a loss convex for every record; got {type(loss).__name__}.")
    if math.isinf(loss.smoothness):
        return Refusal(
            f"{name} needs a smooth loss, since a gradient step across a kink expands distances; "
            "got smoothness = inf. Smooth the loss first (docs/hidden_state.md, Planning)."
        )
    if process.step_size * loss.smoothness > 2.0:
        return Refusal(
            f"{name} needs step_size <= 2 / smoothness = {2.0 / loss.smoothness:g}, above which a "
            f"gradient step expands distances; got step_size = {process.step_size:g}."
        )
    return None


def columns(process: Any, last: int | None = None) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sensitivities, contractions and noise scales of the (last) steps, in units of the iterate."""
    if isinstance(process, ContractiveIteration):
        rows = (process.sensitivities, process.contractions, process.noise_scales)
        return np.array(rows[0]), np.array(rows[1]), np.array(rows[2])
    noise = process.step_size * process.noise_std
    pushes = noise * step_mu(process) * _uses(process, last)
    factor = contraction(process.loss, process.step_size)
    return pushes, np.full(len(pushes), factor), np.full(len(pushes), noise)


def _uses(process: NoisyGradientDescent | CyclicSGD, last: int | None) -> FloatArray:
    """1 for each of the (last) steps that uses the record, 0 for the others."""
    if isinstance(process, NoisyGradientDescent):
        return np.ones(min(process.steps, last or process.steps))
    period = process.batches_per_epoch
    steps = min(period * process.epochs, last or period * process.epochs)
    position = process.index or period  # a later batch has less noise after it: the last is worst
    uses = np.zeros(steps)
    uses[(steps - 1 - (period - position)) % period :: period] = 1.0
    return uses
