"""SGD over fixed batches in a fixed order, last iterate: noise after a record's use protects it.

Statement: l batches, E epochs, batch k holds the record; c <= 1 the Lipschitz constant of a step,
    mu_1 = 2 L / (batch * noise_std). With q(n) = (1 - c^n)/(1 - c), r(n) = (1 - c^2n)/(1 - c^2)
    (both n at c = 1) and j = l - k + 1 the last iterate is mu-GDP, mu^2 = mu_1^2 times
        rise^2/r(l(E-1)) + c^(2j-2)/r(j),       rise = c^(l-1) q(l(E-1))/q(l),
    or (c^j rise + c^(j-1))^2 / r(l(E-1) + j) where the slopes rise/r(l(E-1)) >= c^(2j-1)/r(j):
    the two or one segments of the optimal shifts. For c = 1: mu^2 = mu_1^2 [(E-1)/l + 1/j].
    The dataset's guarantee is that of the worst batch, k = l.
Conditions: convex smooth loss for every record, step_size <= 2 / smoothness, no clipping (unless
    the clipped gradient is that of such a loss), replace-one neighbours, last iterate only.
Validity: upper bound; attained by linear losses for c = 1, E = 1 and the first batch (k = 1): with
    them all noise of the pass adds up, so later batches lose mu_1^2/l, less than the bound.
Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 23 (batch 1, E = 1) and Theorem 35;
    Boninsegna's survey, VI-A (batches of size B); Bok, Su, Altschuler 2024 (c < 1). Corrected:
    survey VI-A prints s_t with its two cases swapped, T - kappa + 1 for Q - kappa + 1, and a final
    bound alpha K / (2 sigma^2 Q^2) that is too small by up to the number of batches Q (the last
    batch of one epoch: factor Q). Theorem 35 is stated for E = l and holds for every E. The papers
    conclude Renyi DP; the same shifts give Gaussian DP, which is stronger.
Error: closed form; mu is raised by 1e-14 relative plus 2^-50 for each epoch.
Vectors: pnsgd_index, pnmsgd_multi_epoch, fixed_batch_004, noisycgd_strongly_convex_gdp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Process
from tightrope.process.convex import CyclicSGD
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu
from tightrope.validate import FloatArray

NAME = "Last iterate of cyclic SGD"
SOURCE = Source(
    "Feldman et al. 2018; Bok, Su, Altschuler 2024", "Theorems 23, 35; cyclic", "fmtt18"
)
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_LEAST_SQUARE = 1e-280  # powers of c below this are rounded up to it


def squared_mu(factor: float, batches: int, epochs: int, position: ArrayLike) -> Any:
    """mu^2 over the squared mu of one step; `position` (1 .. batches) may be an array."""
    after = batches - np.asarray(position, dtype=np.float64) + 1.0  # noisy steps from the last use
    before = batches * (epochs - 1.0)
    rise = (
        factor ** (batches - 1.0) * geometric_sum(factor, before) / geometric_sum(factor, batches)
    )
    length = geometric_sum(factor * factor, before)
    last_rise, last_length = factor ** (after - 1.0), geometric_sum(factor * factor, after)
    apart = (rise * rise / length if before else 0.0) + last_rise**2 / last_length
    carried = factor**after
    joined = (carried * rise + last_rise) ** 2 / geometric_sum(factor * factor, before + after)
    falls = rise * last_length >= carried * last_rise * length
    square = np.where(falls & (before > 0), joined, apart)
    return (np.maximum(square, _LEAST_SQUARE) if factor > 0.0 else square)[()]


def printed_shifts(batches: int, epochs: int, position: int) -> FloatArray:
    """The papers' shifts over one step's sensitivity, for c = 1 (Theorem 35; VI-A corrected)."""
    steps = np.arange(1, batches * epochs + 1)
    last_use = batches * (epochs - 1) + position
    late = np.where(steps < last_use, 1.0 / batches, 1.0 / (batches - position + 1.0))
    return np.where(steps < position, 0.0, late)


def geometric_sum(factor: float, count: ArrayLike) -> Any:
    """1 + factor + ... + factor^(count-1)."""
    count = np.asarray(count, dtype=np.float64)
    if factor == 1.0:
        return count[()]
    if factor == 0.0:
        return np.minimum(count, 1.0)[()]
    return (np.expm1(count * math.log(factor)) / (factor - 1.0))[()]


def applies(process: Process) -> Refusal | None:
    return refusal(NAME, process, (CyclicSGD,)) or convexity_refusal(NAME, process)


def mu_curve(process: CyclicSGD) -> FloatArray:
    """mu for the records of batch 1, 2, .. batches_per_epoch: later batches are less protected."""
    require(applies(process))
    positions = np.arange(1, process.batches_per_epoch + 1)
    return np.asarray(_mu(process, positions))


def guarantee(process: CyclicSGD) -> Guarantee:
    require(applies(process))
    position = process.index or process.batches_per_epoch
    return GaussianGuarantee(float(_mu(process, position)), process.adjacency, VALIDITY)


def _mu(process: CyclicSGD, position: ArrayLike) -> Any:
    factor = contraction(process.loss, process.step_size)
    square = squared_mu(factor, process.batches_per_epoch, process.epochs, position)
    return step_mu(process) * np.sqrt(square) * (1.0 + 1e-14 + process.epochs * 2.0**-50)
