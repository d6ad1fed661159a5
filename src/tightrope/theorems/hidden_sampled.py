"""Noisy SGD on secret random batches, last iterate: sampling and iteration together.

Statement: q = batch_size / records, mu_1 = 2 L / (batch_size * noise_std), c the Lipschitz constant
    of a step, z the largest distance of the two runs nu steps before the end: the projection's
    diameter or eta noise_std mu_1 (1 + c + ... + c^(T-nu-1)), whichever is smaller. For every nu
    and 0 < theta < 1 the last iterate is f-DP with
        f = G( z c^nu / (eta noise_std sqrt(theta (1 + c^2 + ... + c^(2 nu - 2)))) )
            x  C_q(G( 2 mu_1 / sqrt(1 - theta) ))^nu.
Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
    gradient is that of such a loss), batches of fixed size without replacement, secret; replace-one
    neighbours; last iterate only.
Validity: upper bound (proof in docs/theorems/hidden_sampled.md).
Source: Altschuler, Talwar 2022 (noise splitting); Bok, Su, Altschuler 2024, projected and strongly
    convex NoisySGD. For the strongly convex case the paper has G(2 sqrt(2) mu_1
    (c^(t-tau+1) - c^t)/(1-c)) and one step with an extra sqrt(2); the form here is proved directly
    and is smaller. The factor 2 over plain composition is real: the two runs see the record's
    gradient at different points.
Error: that of the numerical composition; nu and theta are chosen by a proxy, any choice is valid.
Vectors: none printed; limits against hidden_projected and composition in tests.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.profile import FixedSizeGaussianPair, GaussianPair
from tightrope.process import Process
from tightrope.process.convex import SubsampledSGD
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_cyclic import geometric_sum
from tightrope.theorems.hidden_full_batch import squared_mu
from tightrope.theorems.hidden_steps import contraction, convexity_refusal, refusal, step_mu
from tightrope.validate import FloatArray

NAME = "Last iterate of noisy SGD on random batches"
SOURCE = Source("Altschuler, Talwar 2022; Bok, Su, Altschuler 2024", "NoisySGD", "at22")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

_LARGEST_MU, _SMALLEST_MU = 8.0, 1e-5  # of a step, that the composition answers for
_SHARES = np.array([0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])


def gap_mu(process: SubsampledSGD, window: ArrayLike) -> FloatArray:
    """Parameter of the Gaussian that hides the distance at the window's start, for theta = 1."""
    factor = contraction(process.loss, process.step_size)
    noise = process.step_size * process.noise_std
    window = np.asarray(window, dtype=np.float64)
    gap = noise * step_mu(process) * np.asarray(geometric_sum(factor, process.steps - window))
    if process.diameter is not None:
        gap = np.minimum(gap, process.diameter)
    length = np.asarray(geometric_sum(factor * factor, window))
    return np.asarray(gap * factor**window / (noise * np.sqrt(length)))


def best_window(process: SubsampledSGD) -> tuple[int, float]:
    """nu and theta that minimise the central-limit variance of the bound (a choice, no claim)."""
    windows = np.unique(np.geomspace(1, process.steps, 400).astype(int))
    inner = 2.0 * step_mu(process) / np.sqrt(1.0 - _SHARES)
    with np.errstate(over="ignore"):
        per_step = np.exp(inner**2) * ndtr(1.5 * inner) + 3.0 * ndtr(-0.5 * inner) - 2.0
        spread = 2.0 * process.rate**2 * windows[:, None] * per_step[None, :]
        total = gap_mu(process, windows)[:, None] ** 2 / _SHARES[None, :] + spread
    row, column = np.unravel_index(int(np.argmin(total)), total.shape)
    return int(windows[row]), float(_SHARES[column])


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (SubsampledSGD,)) or convexity_refusal(NAME, process)
    if reason is None and step_mu(process) > _LARGEST_MU:
        return Refusal(
            f"{NAME} needs noise of at least a quarter of what a record moves; got mu = "
            f"{step_mu(process):g} for a step. Composition gives the answer."
        )
    return reason


def guarantee(process: SubsampledSGD) -> Guarantee:
    require(applies(process))
    if process.batch_size == process.records:  # no batch without the record: nothing is sampled
        square = squared_mu(contraction(process.loss, process.step_size), process.steps)
        mu = step_mu(process) * math.sqrt(square) * (1.0 + 1e-14)
        return GaussianGuarantee(mu, process.adjacency, VALIDITY)
    window, share = best_window(process)
    gap = float(gap_mu(process, window)) / math.sqrt(share) * (1.0 + 1e-12)
    step = 2.0 * step_mu(process) / math.sqrt(1.0 - share) * (1.0 + 1e-14)
    step = max(step, _SMALLEST_MU)  # less noise than there is
    parts: tuple[Any, ...] = ((FixedSizeGaussianPair(process.rate, step), window),)
    if gap > 0.0:
        parts = ((GaussianPair(gap), 1), *parts)
    return LossGuarantee((parts,), process.adjacency, VALIDITY)
