"""Last iterates of sampled batches, and of passes with secretly skipped or stopped steps.

A secret public-coin mixture of runs: how its divergence follows from those of the runs.

Shared by the theorems about secretly skipped or stopped passes; not a theorem about a process.

With weights p_i and pairs (mu_i, nu_i), revealing i only helps the observer, so
    hockey stick:  E_g(mixture) <= sum_i p_i E_g(mu_i || nu_i)                  (used for profiles)
    Renyi:         D_a(mixture) <= ln( sum_i p_i e^{(a-1) D_i} ) / (a-1)        (used for RDP)
The second needs no condition; Lemma 25 of Feldman et al. 2018, (1 + c) sum_i p_i D_i for D_i <=
c/(a-1) with c <= 1, follows from it (e^x <= 1 + (1 + c) x on [0, c]) and is never smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr

from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.guarantee.loss.pairs import FixedSizeGaussianPair, GaussianPair
from tightrope.process import FixedSizeSampling, NoisySGD
from tightrope.process.convex import SkipSGD, StopSGD, SubsampledSGD
from tightrope.theorems.base import (
    REPLACED,
    Proved,
    Refusal,
    Source,
)
from tightrope.theorems.last_iterate.descent import (
    cyclic_squared_mu,
    full_batch_squared_mu,
    geometric_sum,
)
from tightrope.theorems.last_iterate.steps import (
    Contractive,
    contraction,
    step_mu,
)
from tightrope.theorems.sampling import SampledGaussianReplaceDrs19
from tightrope.validate import FloatArray

_FAR = 20.0


def profile_of_mixture(epsilon: float, mus: FloatArray, weights: FloatArray) -> float:
    """sum_i p_i delta(epsilon; mu_i), rounded up; weight missing from 1 belongs to mu = 0.

    delta grows with mu, so all mu below epsilon/20, where it is less than e^-199, count as that.
    """
    far = mus < epsilon / _FAR
    near = np.append(mus[~far], epsilon / _FAR)
    upper = np.asarray(profile.delta_bounds(epsilon, near)[1])
    shares = np.append(weights[~far], weights[far].sum())
    return min(1.0, float(upper @ shares) * (1.0 + 1e-12))


def renyi_of_mixture(
    orders: FloatArray, squared_mus: FloatArray, weights: FloatArray
) -> FloatArray:
    """ln(1 + sum_i p_i (e^{(a-1) a mu_i^2/2} - 1)) / (a-1), for weights that sum to at most 1."""
    return np.array([_renyi_at(float(a), squared_mus, weights) for a in orders])


def _renyi_at(order: float, squared_mus: FloatArray, weights: FloatArray) -> float:
    exponents = 0.5 * order * (order - 1.0) * squared_mus
    if exponents.max() < 700.0:  # accurate for small divergences
        return math.log1p(float(np.expm1(exponents) @ weights)) / (order - 1.0)
    rest = max(0.0, 1.0 - float(weights.sum()))
    terms = np.append(exponents, 0.0)
    return float(logsumexp(terms, b=np.append(weights, rest))) / (order - 1.0)


def blocks(count: int, exact: int) -> tuple[FloatArray, FloatArray]:
    """1 .. count as (first of block, size): single numbers up to `exact`, then growing blocks.

    A quantity that decreases with the number is bounded above by its value at the first of a block.
    """
    if count <= exact:
        return np.arange(1.0, count + 1.0), np.ones(count)
    tail = np.unique(np.floor(exact * np.exp(np.arange(0.0, math.log(count / exact), 0.002))))
    firsts = np.concatenate([np.arange(1.0, exact), tail])
    return firsts, np.diff(np.append(firsts, count + 1.0))


@final
class HiddenSampled(Contractive):
    """Noisy SGD on secret random batches, last iterate: sampling and iteration together.

    Statement: q = batch_size / records, mu_1 = 2 L / (batch_size * noise_std), c the Lipschitz
        constant of a step, z the largest distance of the two runs nu steps before the end: the
        projection's diameter or eta noise_std mu_1 (1 + c + ... + c^(T-nu-1)), whichever is
        smaller. For every nu and 0 < theta < 1 the last iterate is f-DP with
            f = G( z c^nu / (eta noise_std sqrt(theta (1 + c^2 + ... + c^(2 nu - 2)))) )
                x  C_q(G( 2 mu_1 / sqrt(1 - theta) ))^nu.
    Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
        gradient is that of such a loss), batches of fixed size without replacement, secret;
        replace-one neighbours; last iterate only.
    Validity: upper bound (proof in docs/theorems/hidden_sampled.md).
    Source: Altschuler, Talwar 2022 (noise splitting); Bok, Su, Altschuler 2024, projected and
        strongly convex NoisySGD. For the strongly convex case the paper has G(2 sqrt(2) mu_1
        (c^(t-tau+1) - c^t)/(1-c)) and one step with an extra sqrt(2); the form here is proved
        directly and is smaller. The factor 2 over plain composition is real: the two runs see the
        record's gradient at different points.
    Error: that of the numerical composition; nu and theta are chosen by a proxy, any choice is
        valid.
    Vectors: none printed; limits against hidden_projected and composition in tests.
    """

    NAME = "Last iterate of noisy SGD on random batches"
    SOURCE = Source("Altschuler, Talwar 2022; Bok, Su, Altschuler 2024", "NoisySGD", "at22")
    OF = (SubsampledSGD,)

    @classmethod
    def condition(cls, process: SubsampledSGD) -> Refusal | None:
        reason = super().condition(process)
        if reason is None and step_mu(process) > _LARGEST_MU:
            return Refusal(
                f"{cls.NAME} needs noise of at least a quarter of what a record moves; got mu = "
                f"{step_mu(process):g} for a step. Composition gives the answer."
            )
        return reason

    @classmethod
    def proved(cls, process: SubsampledSGD) -> Guarantee:
        if process.batch_size == process.records:  # no batch without the record: nothing is sampled
            square = full_batch_squared_mu(
                contraction(process.loss, process.step_size), process.steps
            )
            mu = step_mu(process) * math.sqrt(square) * (1.0 + 1e-14)
            return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)
        window, share = best_window(process)
        gap = float(gap_mu(process, window)) / math.sqrt(share) * (1.0 + 1e-12)
        step = 2.0 * step_mu(process) / math.sqrt(1.0 - share) * (1.0 + 1e-14)
        step = max(step, _SMALLEST_MU)  # less noise than there is
        parts: tuple[Any, ...] = ((FixedSizeGaussianPair(process.rate, step), window),)
        if gap > 0.0:
            parts = ((GaussianPair(gap), 1), *parts)
        return LossGuarantee((parts,), process.adjacency, Validity.BOUND)


_LARGEST_MU, _SMALLEST_MU = 5.0, 1e-5  # of a step, that the composition answers for
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


@final
class HiddenSampledComposition(Proved):
    """Noisy SGD on secret random batches, every iterate seen: composition of sampled Gaussians.

    Statement: with q = batch_size / records and mu_1 = 2 L / (batch_size * noise_std) each of the T
        steps is C_q(G_{mu_1})-DP; all iterates together are C_q(G_{mu_1}) composed T times.
    Conditions: uniform batches of fixed size, drawn afresh and kept secret; gradients whose
        record-dependent part has norm <= L; replace-one neighbours. No convexity: this is the
        fallback.
    Validity: upper bound.
    Source: Dong, Roth, Su 2019 (arXiv:1905.02383), Theorem 4.2.
    Error: that of the numerical composition of the dominating pair.
    Vectors: one example (q = 0.01, noise multiplier 2, 1000 steps: 2.199).
    """

    NAME = "Composition of noisy steps on random batches"
    SOURCE = Source("Dong, Roth, Su 2019", "Theorem 4.2", "drs19")
    RELATIONS = REPLACED
    OF = (SubsampledSGD,)

    @classmethod
    def proved(cls, process: SubsampledSGD) -> Guarantee:
        noise = 2.0 / step_mu(process) * (1.0 - 1e-15)  # a replaced record moves two units
        steps = NoisySGD(FixedSizeSampling(process.rate), noise, process.steps, process.adjacency)
        return SampledGaussianReplaceDrs19.guarantee(steps).as_bound()


@final
class HiddenSkip(Contractive):
    """Skip-PNSGD: one pass whose first records are skipped by a secret random number, last iterate.

    Statement: n records, t0 uniform on {0 .. floor(n/2)}, record t is used iff t0 < t, that is with
        probability p = min(t, m)/m, m = floor(n/2) + 1. With mu_t the parameter of the plain pass
        at index t (2 L / (noise_std sqrt(n + 1 - t)) for c = 1),
            delta(eps) <= p delta(eps; mu_t),     D_a <= ln(1 - p + p e^{a (a-1) mu_t^2/2}) / (a-1).
        The dataset's guarantee is that of the last record: mu_n-GDP.
    Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
        gradient is that of such a loss), replace-one neighbours, last iterate only, t0 secret.
    Validity: upper bound.
    Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 24, which prints the bound without p.
        The profile form follows from joint convexity of the hockey stick and is sharper.
    Error: delta is raised by 1e-12 relative beyond the profile's own bound.
    Vectors: skip_pnsgd_index.
    """

    NAME = "Last iterate of a pass with a secret start (Skip-PNSGD)"
    SOURCE = Source("Feldman et al. 2018", "Theorem 24", "fmtt18")
    OF = (SkipSGD,)

    @classmethod
    def proved(cls, process: SkipSGD) -> Guarantee:
        index = process.index or process.records
        factor = contraction(process.loss, process.step_size)
        square = float(cyclic_squared_mu(factor, process.records, 1, index))
        mu = step_mu(process) * math.sqrt(square) * (1.0 + 1e-14)
        probability = used_probability(process.records, index)
        if probability == 1.0:
            return GaussianGuarantee(mu, process.adjacency, Validity.BOUND)
        return ProfileGuarantee(SkipProfile(mu, probability), process.adjacency, Validity.BOUND)


def used_probability(records: int, index: int) -> float:
    """P(t0 < index)."""
    starts = records // 2 + 1
    return min(index, starts) / starts


@dataclass(frozen=True)
class SkipProfile:
    """delta(eps) = p delta(eps; mu)."""

    mu: float
    probability: float

    def __call__(self, epsilon: float) -> float:
        return profile_of_mixture(epsilon, np.array([self.mu]), np.array([self.probability]))


@final
class HiddenStop(Contractive):
    """Stop-PNSGD: one pass that stops after a secret random number of records, last iterate.

    Statement: n records, T uniform on {1 .. n}. Record t is unused if T < t and otherwise followed
        by k - 1 = T - t common noisy steps. With mu_k the parameter after k noisy steps (2 L /
        (noise_std sqrt(k)) for c = 1),
            delta(eps) <= (1/n) sum_{k=1}^{n-t+1} delta(eps; mu_k).
        The dataset's guarantee is that of the first record, t = 1.
    Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
        gradient is that of such a loss), replace-one neighbours, last iterate only, T secret.
    Validity: upper bound.
    Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 26. Corrected: the printed
        4 a L^2 ln(n)/(n sigma^2) rests on H_n <= ln n, which is false; at n = 1 it claims that one
        Gaussian step has no privacy loss at all. The mean over k is unconditional and about half of
        the corrected 4 a L^2 H_n/(n sigma^2), which needs sigma >= L sqrt(2 a (a-1)).
    Error: beyond 4096 records delta is raised by grouping numbers k within 0.2 %, on the safe side.
    Vectors: stop_pnsgd (Renyi form, in hidden_stop_renyi).
    """

    NAME = "Last iterate of a pass with a secret end (Stop-PNSGD)"
    SOURCE = Source("Feldman et al. 2018", "Theorem 26", "fmtt18")
    OF = (StopSGD,)

    @classmethod
    def proved(cls, process: StopSGD) -> Guarantee:
        factor = contraction(process.loss, process.step_size)
        profile = StopProfile(step_mu(process), factor, process.records, process.index or 1)
        return ProfileGuarantee(profile, process.adjacency, Validity.BOUND)


_EXACT_UP_TO = 4096


def stop_squared_mus(factor: float, noisy_steps: FloatArray) -> FloatArray:
    """mu_k^2 over the squared mu of one step: one use followed by k - 1 common steps."""
    last = float(noisy_steps.max())
    return np.asarray(cyclic_squared_mu(factor, int(last), 1, last - noisy_steps + 1.0))


@dataclass(frozen=True)
class StopProfile:
    """The mean of delta(eps; mu_k) over the stopping time."""

    step: float
    factor: float
    records: int
    index: int = 1

    def __call__(self, epsilon: float) -> float:
        steps, sizes = blocks(self.records - self.index + 1, _EXACT_UP_TO)
        mus = self.step * np.sqrt(stop_squared_mus(self.factor, steps)) * (1.0 + 1e-14)
        return profile_of_mixture(epsilon, mus, sizes / self.records)


@final
class HiddenStopRenyi(Contractive):
    """Stop-PNSGD in Renyi form: passes with a secret end that are composed with other releases.

    Statement: with T uniform on {1 .. n} and mu_k the parameter after k noisy steps, the last
        iterate satisfies at index t
            D_a <= (1/(a-1)) ln( (t-1)/n + (1/n) sum_{k=1}^{n-t+1} e^{a (a-1) mu_k^2/2} ).
        The dataset's guarantee is that of t = 1.
    Conditions: convex smooth loss, step_size <= 2 / smoothness, no clipping (unless the clipped
        gradient is that of such a loss), replace-one neighbours, last iterate only, T secret.
    Validity: upper bound.
    Source: Feldman et al. 2018 (arXiv:1808.06651), Theorem 26 and Lemma 25. Corrected:
        ln n in the printed 4 a L^2 ln(n)/(n sigma^2) must be H_n, and its condition on sigma is not
        needed in the form used here (`printed`, `corrected` keep the other two for comparison).
    Error: sums of positive terms, raised by 1e-12; beyond 4096 records numbers k within 0.2 % are
        grouped on the safe side.
    Vectors: stop_pnsgd.
    """

    NAME = "Last iterate of a pass with a secret end (Stop-PNSGD), Renyi"
    SOURCE = Source("Feldman et al. 2018", "Theorem 26", "fmtt18")
    OF = (StopSGD,)

    @classmethod
    def proved(cls, process: StopSGD) -> Guarantee:
        factor = contraction(process.loss, process.step_size)
        term = StopTerm(step_mu(process), factor, process.records, process.index or 1)
        return RenyiGuarantee(RenyiCurve.of(term), process.adjacency, Validity.BOUND)


@dataclass(frozen=True)
class StopTerm:
    """The Renyi curve of one run."""

    step: float
    factor: float
    records: int
    index: int = 1
    exact_up_to: int = 4096

    def upper(self, orders: FloatArray) -> FloatArray:
        steps, sizes = blocks(self.records - self.index + 1, self.exact_up_to)
        squares = self.step**2 * stop_squared_mus(self.factor, steps)
        return renyi_of_mixture(orders, squares, sizes / self.records) * (1.0 + 1e-12)
