"""Last iterates of gradient descent: full batches, cyclic ones, any contractive map."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.numerics.hull import least_cost, least_window_cost, rounding
from tightrope.process import Process
from tightrope.process.convex import (
    ContractiveIteration,
    CyclicSGD,
    IterationNoise,
    LocalGradient,
    NoisyGradientDescent,
    SkipSGD,
    StopSGD,
)
from tightrope.theorems.base import (
    REPLACED,
    Proved,
    Refusal,
    Source,
)
from tightrope.theorems.last_iterate.steps import (
    Contractive,
    LastIterate,
    columns,
    contraction,
    step_mu,
)
from tightrope.validate import FloatArray


@final
class HiddenFullBatch(Contractive):
    """Noisy gradient descent on the whole dataset, last iterate: privacy loss that converges.

    Statement: c < 1 the Lipschitz constant of a step and mu_1 = 2 L / (records * noise_std): after
        t steps the last iterate is mu-GDP with
            mu^2 = mu_1^2 (1 + c)/(1 - c) (1 - c^t)/(1 + c^t),
        never more than mu_1^2 (1 + c)/(1 - c) however long one trains; mu_1^2 t for c = 1.
    Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
        gradient is that of such a loss), replace-one neighbours, last iterate only, any common
        start.
    Validity: upper bound, attained by quadratic losses where step_size <= 2 / (strong_convexity +
        smoothness).
    Source: Bok, Su, Altschuler 2024, strongly convex NoisyGD. About half of the limit of Chourasia,
        Ye, Shokri 2021 (the survey's Theorem VII.1), and never worse than composition.
    Error: closed form; mu is raised by 1e-14 relative.
    Vectors: noisygd_strongly_convex_gdp, thm_VII1 (exact).
    """

    NAME = "Last iterate of noisy gradient descent"
    SOURCE = Source("Bok, Su, Altschuler 2024", "strongly convex NoisyGD", "bsa24")
    OF = (NoisyGradientDescent,)

    @classmethod
    def proved(cls, process: NoisyGradientDescent) -> Guarantee:
        square = full_batch_squared_mu(contraction(process.loss, process.step_size), process.steps)
        mu = step_mu(process) * math.sqrt(square) * (1.0 + 1e-14)
        return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)


def full_batch_squared_mu(factor: float, steps: int) -> float:
    """mu^2 over the squared mu of one step."""
    if factor == 1.0:
        return float(steps)
    power = factor**steps
    lost = -math.expm1(steps * math.log(factor)) if factor > 0.0 else 1.0  # 1 - c^t
    return (1.0 + factor) / (1.0 - factor) * lost / (1.0 + power)


@final
class HiddenCyclic(Contractive):
    """SGD over fixed batches in fixed order, last iterate: noise after a record's use protects it.

    Statement: l batches, E epochs, batch k holds the record; c <= 1 the Lipschitz constant of a
        step, mu_1 = 2 L / (batch * noise_std). With q(n) = (1 - c^n)/(1 - c), r(n) = (1 -
        c^2n)/(1 - c^2) (both n at c = 1) and j = l - k + 1 the last iterate is mu-GDP, mu^2 =
        mu_1^2 times
            rise^2/r(l(E-1)) + c^(2j-2)/r(j),       rise = c^(l-1) q(l(E-1))/q(l),
        or (c^j rise + c^(j-1))^2 / r(l(E-1) + j) where the slopes rise/r(l(E-1)) >= c^(2j-1)/r(j):
        the two or one segments of the optimal shifts. For c = 1: mu^2 = mu_1^2 [(E-1)/l + 1/j].
        The dataset's guarantee is that of the worst batch, k = l.
    Conditions: convex smooth loss for every record, step_size <= 2 / smoothness, no clipping
        (unless the clipped gradient is that of such a loss), replace-one neighbours, last iterate
        only.
    Validity: upper bound; attained by linear losses for c = 1, E = 1 and the first batch (k = 1):
        with them all noise of the pass adds up, so later batches lose mu_1^2/l, less than the
        bound.
    Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 23 (batch 1, E = 1) and Theorem 35;
        Boninsegna's survey, VI-A (batches of size B); Bok, Su, Altschuler 2024 (c < 1). Corrected:
        survey VI-A prints s_t with its two cases swapped, T - kappa + 1 for Q - kappa + 1, and a
        final bound alpha K / (2 sigma^2 Q^2) that is too small by up to the number of batches Q
        (the last batch of one epoch: factor Q). Theorem 35 is stated for E = l and holds for every
        E. The papers conclude Renyi DP; the same shifts give Gaussian DP, which is stronger.
    Error: closed form; mu is raised by 1e-14 relative plus 2^-50 for each epoch.
    Vectors: pnsgd_index, pnmsgd_multi_epoch, fixed_batch_004, noisycgd_strongly_convex_gdp.
    """

    NAME = "Last iterate of cyclic SGD"
    SOURCE = Source(
        "Feldman et al. 2018; Bok, Su, Altschuler 2024", "Theorems 23, 35; cyclic", "fmtt18"
    )
    OF = (CyclicSGD,)

    @classmethod
    def proved(cls, process: CyclicSGD) -> Guarantee:
        position = process.index or process.batches_per_epoch
        return GaussianGuarantee(
            float(_cyclic_mu(process, position)), process.adjacency, Validity.BOUND
        )

    @classmethod
    def mu_curve(cls, process: CyclicSGD) -> FloatArray:
        """mu for the records of batch 1, 2, ...: later batches are less protected."""
        if (reason := cls.applies(process)) is not None:
            raise DoesNotApply(reason)
        return np.asarray(_cyclic_mu(process, np.arange(1, process.batches_per_epoch + 1)))


_LEAST_SQUARE = 1e-280  # powers of c below this are rounded up to it


def cyclic_squared_mu(factor: float, batches: int, epochs: int, position: ArrayLike) -> Any:
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


def geometric_sum(factor: float, count: ArrayLike) -> Any:
    """1 + factor + ... + factor^(count-1)."""
    count = np.asarray(count, dtype=np.float64)
    if factor == 1.0:
        return count[()]
    if factor == 0.0:
        return np.minimum(count, 1.0)[()]
    return (np.expm1(count * math.log(factor)) / (factor - 1.0))[()]


def _cyclic_mu(process: CyclicSGD, position: ArrayLike) -> Any:
    factor = contraction(process.loss, process.step_size)
    square = cyclic_squared_mu(factor, process.batches_per_epoch, process.epochs, position)
    return step_mu(process) * np.sqrt(square) * (1.0 + 1e-14 + process.epochs * 2.0**-50)


@final
class HiddenHull(LastIterate):
    """Any contractive iteration with Gaussian noise whose last state alone is released.

    Statement: X_t = psi_t(X_{t-1}) + N(0, sigma_t^2 I), psi_t Lipschitz with constant c_t, and
        |psi_t - psi'_t| <= s_t between neighbours. For every a_t >= 0 with z_t = c_t z_{t-1} +
        s_t - a_t >= 0, z_0 = the distance of the starts and z_T = 0, the last state is mu-GDP with
        mu^2 = sum_t (a_t / sigma_t)^2. The least such mu^2 is the cost of a greatest convex
        minorant. Where every state is projected on a set of diameter D, any time may be taken as
        the start with z = D; the best is used.
    Conditions: Gaussian noise in l2; replace-one neighbours; only the last state is released.
    Validity: upper bound; attained when the maps are scalings by c_t plus pushes in one direction
        and the minorant has one segment.
    Source: Feldman, Mironov, Talwar, Thakurta 2018 (arXiv:1808.06651), Theorem 22 with Lemmas 20
        and 21, in Renyi form for c_t = 1; Bok, Su, Altschuler 2024, shifted interpolation, for
        Gaussian DP. Printed slips corrected here: the a_t must be >= 0, not "reals"; the induction
        needs psi'(X'_t), not psi'(X'_{t+1}); the informal Theorem 1 lacks a square on |x_0 - x'_0|.
    Error: mu is raised by the rounding bound of `numerics.hull`.
    Vectors: optimal_shift.
    """

    NAME = "Last iterate by shifted interpolation (optimal shifts)"
    SOURCE = Source(
        "Feldman et al. 2018; Bok, Su, Altschuler 2024", "Theorem 22; Section 3", "bsa24"
    )
    OF = (ContractiveIteration,)

    @classmethod
    def condition(cls, process: ContractiveIteration) -> Refusal | None:
        if process.noise is IterationNoise.GAUSSIAN:
            return None
        return Refusal(f"{cls.NAME} is about Gaussian noise; got {process.noise}.")

    @classmethod
    def proved(cls, process: ContractiveIteration) -> Guarantee:
        return GaussianGuarantee(
            math.sqrt(hull_squared_mu(process)), process.adjacency, Validity.BOUND
        )


def hull_squared_mu(process: ContractiveIteration) -> float:
    """The least sum of (a_t / sigma_t)^2, rounded up; of any process with Gaussian columns."""
    pushes, factors, scales = columns(process)
    cost = least_cost(pushes, factors, scales, getattr(process, "start_distance", 0.0))
    if process.diameter is not None:
        cost = min(cost, least_window_cost(pushes, factors, scales, process.diameter).cost)
    return cost * (1.0 + rounding(len(pushes)))


@final
class HiddenComposition(Proved):
    """Noisy gradient methods in a public order with every iterate seen: plain composition.

    Statement: a step that uses the record is a Gaussian mechanism of parameter mu_1 = 2 L /
        (batch * noise_std); used in k steps the record is protected by sqrt(k) mu_1-GDP, whatever
        is released.
    Conditions: gradients whose record-dependent part has norm <= L; replace-one neighbours.
        Convexity, smoothness and secrecy of the iterates are not needed: this is the fallback.
    Validity: upper bound for the last iterate, exact when every iterate is released.
    Source: Dong, Roth, Su 2019 (arXiv:1905.02383), Corollary 3.3.
    Error: mu is raised by 1e-14 relative.
    Vectors: thm_VII1 (composition).
    """

    NAME = "Composition of noisy gradient steps"
    SOURCE = Source("Dong, Roth, Su 2019", "Corollary 3.3", "drs19")
    RELATIONS = REPLACED
    OF = (NoisyGradientDescent, CyclicSGD, SkipSGD, StopSGD, ContractiveIteration)

    @classmethod
    def condition(cls, process: Process) -> Refusal | None:
        if isinstance(process, ContractiveIteration):
            if process.noise is not IterationNoise.GAUSSIAN:
                return Refusal(f"{cls.NAME} is about Gaussian noise; got {process.noise}.")
            if process.start_distance > 0.0:
                return Refusal(
                    f"{cls.NAME} needs a common start; got start_distance "
                    f"{process.start_distance:g}."
                )
        return None

    @classmethod
    def proved(cls, process: Process) -> Guarantee:
        mu = math.sqrt(composed_squared_mu(process)) * (1.0 + 1e-14)
        return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)


def composed_squared_mu(process: Process) -> float:
    if isinstance(process, ContractiveIteration):
        steps = zip(process.sensitivities, process.noise_scales, strict=True)
        return math.fsum((s / noise) ** 2 if noise else math.inf for s, noise in steps if s > 0.0)
    uses = 1  # one pass uses a record at most once
    if isinstance(process, NoisyGradientDescent):
        uses = process.steps
    elif isinstance(process, CyclicSGD):
        uses = process.epochs
    return uses * step_mu(process) ** 2


@final
class HiddenLocal(Proved):
    """What one device sends: its noisy gradient, by itself (local privacy).

    Statement: a gradient of norm <= L plus N(0, noise_std^2 I) is mu-GDP with mu = 2 L / noise_std
        for any change of the device's record.
    Conditions: bounded gradients; nothing else.
    Validity: exact for the worst gradients (+L v against -L v).
    Source: Feldman et al. 2018 (arXiv:1808.06651), Lemma 27. Corrected: the printed "(eps, delta)
        for every eps > 0 with noise_std = 2 L sqrt(2 ln(1.25/delta))/eps" is proved for eps < 1
        only and false above 7.46, 8.42, 9.37 at delta = 1e-3, 1e-5, 1e-8; the exact Gaussian
        calibration is used instead everywhere.
    Error: one rounding; mu is raised by 1e-15 relative.
    Vectors: gaussian_sigma.
    """

    NAME = "Local privacy of one noisy gradient"
    SOURCE = Source("Feldman et al. 2018", "Lemma 27", "fmtt18")
    RELATIONS = REPLACED
    OF = (LocalGradient,)

    @classmethod
    def proved(cls, process: LocalGradient) -> Guarantee:
        mu = 2.0 * process.loss.lipschitz / process.noise_std * (1.0 + 1e-15)
        return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)
