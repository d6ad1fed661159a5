"""Central limit theorems: estimates for many steps or releases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
from scipy.special import ndtr

from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.pairs import AbstractLossPair, DiscretePair
from tightrope.numerics.quadrature import gauss_legendre
from tightrope.process import (
    Adjacency,
    DeclaredGaussianDP,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Process,
    parts_of,
)
from tightrope.theorems.base import (
    ONE_RECORD,
    Estimated,
    Refusal,
    Source,
    other_neighbours,
)
from tightrope.theorems.composition import NoiseScheduleExact
from tightrope.theorems.releases import Declared, GaussianGdpDrs19, SingleReleasesExact
from tightrope.theorems.sampling import PoissonGaussianExactZdw22, SampledGaussianReplaceDrs19
from tightrope.validate import FloatArray


@final
class SampledGaussianCltBdls19(Estimated):
    """Central limit theorem: many sampled steps look like one Gaussian mechanism.

    Statement: if rate * sqrt(steps) -> nu, the composed trade-off function tends to G_mu with
        mu = nu sqrt(e^(1/s^2) - 1), s the noise multiplier; used at finite steps as
        mu = rate sqrt(steps (e^(1/s^2) - 1)). For replace-one neighbours (symmetrised steps)
        mu = sqrt(2) rate sqrt(steps (e^(m^2) Phi(3m/2) + 3 Phi(-m/2) - 2)), m = 2/s. mu^2 adds over
        different steps.
    Conditions: Poisson sampling (add-or-remove), fixed-size or Poisson sampling (replace-one), full
        batches (where it is exact), also with scheduled noise; declared mu-GDP.
    Validity: ESTIMATE in neither direction. It claims too much privacy in eight of the nine rows of
        the paper's own tables, by up to 2.14 in epsilon; never calibrate with it.
    Source: Bu, Dong, Long, Su 2019 (arXiv:1911.11607), Theorem 5 (its printed T inside mu is
        wrong); Dong, Roth, Su 2019 (arXiv:1905.02383v3), Corollary 5.4.
    Error: unknown at finite steps; `account` states the true error beside it (`estimate_error`).
    Vectors: clt_mu.
    """

    NAME = "Central limit theorem (GDP)"
    SOURCE = Source("Bu, Dong, Long, Su 2019", "Theorem 5", "bdls19")
    RELATIONS = ONE_RECORD

    @classmethod
    def applies(cls, process: Process) -> Refusal | None:
        if isinstance(process, (GaussianMechanism, DeclaredGaussianDP)):
            return other_neighbours(cls.NAME, process, cls.RELATIONS)
        if isinstance(process, NoiseSchedule):
            return cls.applies(NoisySGD(process.sampling, 1.0, 1, process.adjacency))
        if not isinstance(process, NoisySGD):
            return Refusal(
                f"{cls.NAME} is stated here for (sampled) Gaussian steps; got "
                f"{type(process).__name__}.",
                "foreign",
            )
        if isinstance(process.sampling, (PoissonSampling, FullBatch)):
            return other_neighbours(cls.NAME, process, cls.RELATIONS)
        if isinstance(process.sampling, FixedSizeSampling):
            if process.adjacency is Adjacency.REPLACE_ONE:
                return None
            return Refusal(
                f"{cls.NAME} with fixed-size batches needs replace-one neighbours; got "
                f"{process.adjacency}.",
                "neighbours",
            )
        return Refusal(
            f"{cls.NAME} needs batches drawn afresh for every step; got {process.sampling}."
        )

    @classmethod
    def proved(cls, process: Process) -> Estimate:  # type: ignore[override]
        return Estimate(GaussianGuarantee(clt_mu(process), process.adjacency), _WHY)


_WHY = "a limit for many steps of small rate; its error at this setting is not bounded"


def clt_mu(process: Process) -> float:
    """The limit's parameter."""
    if isinstance(process, DeclaredGaussianDP):
        return float(process.mu)
    if isinstance(process, GaussianMechanism):
        noise = float(process.noise_multiplier)
        return 1.0 / noise if noise > 0 else math.inf
    if isinstance(process, NoiseSchedule):
        noises, counts = np.unique(np.array(process.noise_multipliers), return_counts=True)
        parts = [
            clt_mu(NoisySGD(process.sampling, float(noise), int(count), process.adjacency))
            for noise, count in zip(noises, counts, strict=True)
        ]
        return math.hypot(*parts)
    assert isinstance(process, NoisySGD)
    m, rate, steps = process.step_mu, process.sampling.rate, process.steps
    if rate == 0.0 or steps == 0:
        return 0.0
    if rate == 1.0 or m == math.inf:
        return float(m * math.sqrt(steps))
    if process.adjacency is not Adjacency.REPLACE_ONE:
        return float(rate * math.sqrt(steps) * _sqrt_expm1(m * m))
    if m * m > 700.0:
        return math.inf
    chi = math.exp(m * m) * ndtr(1.5 * m) + 3.0 * ndtr(-0.5 * m) - 2.0
    return float(rate * math.sqrt(2.0 * steps) * math.sqrt(max(chi, 0.0)))


def _sqrt_expm1(square: float) -> float:
    return math.sqrt(math.expm1(square)) if square < 700.0 else math.exp(min(square / 2, 709.0))


@final
class AsymmetricCltBdls19(Estimated):
    """Central limit theorem for any releases: together they look like one Gaussian mechanism.

    Statement: for releases with (possibly asymmetric) trade-off functions f_i, kl_i = int
        -log|f_i'|, kl~_i = int |f_i'| log|f_i'| and the variances v_i, v~_i of log|f_i'| under both
        laws, the composition tends to G_mu, mu = K/s, where K = sum (kl_i + kl~_i) and s^2 is the
        common limit of sum v_i and sum v~_i, when the largest kl and the sums of third moments
        vanish. Used for finitely many releases with s^2 = the mean of the two sums, which is exact
        for Gaussians.
    Conditions: at least one release that is not a Gaussian step (those have the closed form of
        Theorem 5), each known through a pair of laws with finite losses.
    Validity: ESTIMATE in neither direction; with few releases, or one that outweighs the others, it
        may be far off.
    Source: Bu, Dong, Long, Su 2019 (arXiv:1911.11607), Theorem 7; the variance in place of the
        second moment as in Dong, Roth, Su 2019 (arXiv:1905.02383v3), Theorem 3.4.
    Error: unknown for finitely many releases; `account` states the true error beside it.
    Vectors: Gaussian, Laplace and randomised response in closed form, in its tests.
    """

    NAME = "Central limit theorem, any releases"
    SOURCE = Source("Bu, Dong, Long, Su 2019", "Theorem 7", "bdls19")
    RELATIONS = ONE_RECORD

    @classmethod
    def applies(cls, process: Process) -> Refusal | None:
        parts = parts_of(process)
        if not parts or all(SampledGaussianCltBdls19.applies(part) is None for part in parts):
            return Refusal(
                f"{cls.NAME} applies to releases besides Gaussian steps; got none (see Theorem 5).",
                "foreign",
            )
        for part in parts:
            components = _components(part)
            if components is None:
                return Refusal(
                    f"{cls.NAME} applies to releases known through a pair of output laws; got "
                    f"{type(part).__name__}.",
                    "foreign",
                )
            if not all(math.isfinite(moments(pair).variance_p) for pair, _ in components):
                return Refusal(
                    f"{cls.NAME} needs losses with a finite variance; got {type(part).__name__}, "
                    "which has a positive delta of its own, or next to no noise."
                )
        return None

    @classmethod
    def proved(cls, process: Process) -> Estimate:  # type: ignore[override]
        found: list[tuple[LossMoments, int]] = []
        for part, times in parts_of(process).items():
            found += [(moments(pair), times * n) for pair, n in _components(part) or ()]
        adjacency = next(iter(parts_of(process))).adjacency
        return Estimate(GaussianGuarantee(limit_mu(found), adjacency), _WHY_ANY)


_WHY_ANY = "a limit for many releases of which none stands out; its error here is not bounded"


_PAIRED: tuple[Any, ...] = (
    PoissonGaussianExactZdw22,
    GaussianGdpDrs19,
    SingleReleasesExact,
    Declared,
    SampledGaussianReplaceDrs19,
    NoiseScheduleExact,
)


def limit_mu(found: list[tuple[LossMoments, int]]) -> float:
    """K/s of the theorem."""
    k = math.fsum(n * (m.mean_p - m.mean_q) for m, n in found)
    s = math.sqrt(math.fsum(0.5 * n * (m.variance_p + m.variance_q) for m, n in found))
    return k / s if s > 0.0 else 0.0


def _components(part: Process) -> Components | None:
    """The pairs of one order of the neighbours; K and s are the same for the other."""
    theorem = next((theorem for theorem in _PAIRED if theorem.applies(part) is None), None)
    if theorem is None:
        return None
    known: Guarantee = theorem.guarantee(part)
    orders = known.directions()
    return orders[0] if orders else None


# ---- Mean and variance of a privacy loss under both laws of a pair
# Error: integrals of tail masses on panels (Gauss-Legendre, 16 nodes), relative 1e-8 or better
# where one loss stays below 1,000; for estimates only, so no bound is proved.


_NODES, _WEIGHTS = gauss_legendre(16)
_EQUAL, _HALVINGS = 128, 34  # panels: equal ones from 1/64 of the largest loss on, halves below
_NEGLIGIBLE = -80.0  # ln of a tail mass


@final
@dataclass(frozen=True)
class LossMoments:
    """Of L = ln dP/dQ; infinite where a law puts mass at an infinite loss."""

    mean_p: float
    mean_q: float
    variance_p: float
    variance_q: float


@lru_cache(maxsize=2048)
def moments(pair: AbstractLossPair) -> LossMoments:
    with np.errstate(over="ignore", invalid="ignore"):  # squares of losses of 1e300
        first, second = _of_atoms(pair) if isinstance(pair, DiscretePair) else _of_tails(pair)
        variance = np.maximum(second - np.where(np.isinf(first), 0.0, first) ** 2, 0.0)
    return LossMoments(float(first[0]), float(first[1]), float(variance[0]), float(variance[1]))


def _of_atoms(pair: DiscretePair) -> tuple[FloatArray, FloatArray]:
    losses, under_p = np.array(pair.losses), np.array(pair.masses)
    masses = np.stack([under_p, np.exp(pair.log_masses - losses)])
    if max(pair.infinite_mass, pair.only_under_q) > 1e-12:  # +inf under P or -inf under Q
        endless = np.array([math.inf, -math.inf])
        return endless, np.full(2, math.inf)
    return masses @ losses, masses @ losses**2


def _of_tails(pair: AbstractLossPair) -> tuple[FloatArray, FloatArray]:
    """E[g(L)] = int_0^inf g'(l) P(L > l) - int_-inf^0 g'(l) P(L <= l) for g(0) = 0.

    The mean under P is that of L + e^-L - 1, under Q of L - e^L + 1: of one sign, so that nothing
    cancels where the losses are small.
    """
    first, second = np.zeros(2), np.zeros(2)
    for sign, tail in ((1.0, pair.log_survival), (-1.0, pair.log_cdf)):
        end = pair.support[1] if sign > 0 else -pair.support[0]
        if end == math.inf:
            end = 1e-9
            while max(float(log) for log in tail(sign * end)) > _NEGLIGIBLE:
                end *= 2.0
        if end <= 0.0:
            continue
        near = end / 64.0 * 0.5 ** np.arange(_HALVINGS, 0, -1)
        edges = np.concatenate([near, np.linspace(end / 64.0, end, _EQUAL + 1)])
        half = 0.5 * np.diff(edges)
        loss = (half[:, None] * (_NODES + 1.0) + edges[:-1, None]).ravel()
        weight = (half[:, None] * _WEIGHTS).ravel()
        logs = np.stack(tail(sign * loss))
        mass = np.exp(logs)
        power = sign * np.stack([-loss, loss])  # of e in g'
        small = -np.expm1(np.clip(power, -1.0, 1.0)) * mass
        first += sign * (np.where(loss < 1.0, small, mass - np.exp(logs + power)) @ weight)
        second += mass @ (2.0 * loss * weight)
    return first, second
