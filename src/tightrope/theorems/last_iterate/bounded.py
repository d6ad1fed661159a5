"""Last iterates on a bounded set, with any noise, and without convexity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.numerics.hull import least_cost_shifts, least_window_cost, rounding
from tightrope.process.convex import (
    ContractiveIteration,
    ConvexLoss,
    CyclicSGD,
    IterationNoise,
    NoisyGradientDescent,
    SkipSGD,
    SmoothLoss,
    StopSGD,
    SubsampledSGD,
)
from tightrope.theorems.base import (
    Refusal,
    Source,
)
from tightrope.theorems.last_iterate.descent import cyclic_squared_mu
from tightrope.theorems.last_iterate.steps import (
    LastIterate,
    columns,
    contraction,
    convexity_refusal,
    step_mu,
)
from tightrope.validate import FloatArray


class Bounded(LastIterate):
    """One whose iterates are projected on a bounded set."""

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        if process.diameter is not None:
            return None
        return Refusal(
            f"{cls.NAME} needs every iterate projected on a bounded convex set; this process has "
            "diameter = None. Project on a ball and state its diameter (twice its radius)."
        )


@final
class HiddenProjected(Bounded):
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
    Error: mu is raised by the rounding bound of `numerics.hull`; windows longer than 2^20 steps are
        not tried (each window alone is a valid bound).
    Vectors: noisygd_projected_gdp.
    """

    NAME = "Last iterate of projected gradient descent"
    SOURCE = Source("Bok, Su, Altschuler 2024", "projected NoisyGD and NoisyCGD", "bsa24")
    OF = (NoisyGradientDescent, CyclicSGD)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        return super().condition(process) or convexity_refusal(cls.NAME, process)

    @classmethod
    def proved(cls, process: NoisyGradientDescent | CyclicSGD) -> Guarantee:
        return GaussianGuarantee(
            math.sqrt(projected_squared_mu(process)), process.adjacency, Validity.BOUND
        )


_LONGEST_WINDOW = 2**20


def projected_squared_mu(process: NoisyGradientDescent | CyclicSGD) -> float:
    """mu^2 of the best window, rounded up. The last batch of an epoch is the worst (see docs)."""
    assert process.diameter is not None
    pushes, factors, scales = columns(process, last=_LONGEST_WINDOW)
    window = least_window_cost(pushes, factors, scales, process.diameter)
    return window.cost * (1.0 + rounding(window.length))


@final
class HiddenHockeyStick(Bounded):
    """Hockey-stick contraction: common noisy steps on a bounded set multiply delta.

    Statement: a map whose values lie within a set of diameter R, followed by N(0, (eta noise_std)^2
        I), multiplies every E_g, g >= 1, by at most theta_eps(R) = delta(eps; R / (eta noise_std)),
        eps = ln g. A record last used j + i steps before the end therefore has
            delta(eps) <= delta(eps; mu_j) theta_eps(R)^i,
        mu_j the Gaussian parameter of the iterate j steps after the last use; R = c D for a
        c-Lipschitz step, R = D + 2 eta L for any clipped loss. The best split of the remaining
        steps is taken.
    Conditions: cyclic SGD, projection on a set of diameter D, replace-one neighbours, last iterate
        only; any loss with bounded gradients.
    Validity: upper bound; decays exponentially in the number of later steps.
    Source: Asoodeh, Diaz, Calmon 2020. (Proof: the positive part of mu - g nu has mass E and the
        negative one E + g - 1 >= g E; coupling them costs at most sup E_g(K_x || K_y) each.) The
        multi-pass recursion of Asoodeh, Diaz 2023 is not used: with several epochs everything up to
        the last use is bounded by Gaussian DP first.
    Error: delta is raised by 1e-12 relative beyond the profile's own bound.
    Vectors: hockey_stick_contraction_pnsgd.
    """

    NAME = "Hockey-stick contraction of the steps after the last use"
    SOURCE = Source("Asoodeh, Diaz, Calmon 2020", "contraction coefficient of E_gamma", "adc20")
    OF = (CyclicSGD,)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        reason = super().condition(process)
        if reason is None and isinstance(process.loss, ConvexLoss):
            return convexity_refusal(cls.NAME, process)
        return reason

    @classmethod
    def proved(cls, process: CyclicSGD) -> Guarantee:
        later = process.batches_per_epoch - (process.index or process.batches_per_epoch)
        mus, left = _splits(process, later)
        contracted = ContractionProfile(mus, left, range_ratio(process))
        return ProfileGuarantee(contracted, process.adjacency, Validity.BOUND)


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


def range_ratio(process: CyclicSGD) -> float:
    """Diameter of a step's values over its noise."""
    assert process.diameter is not None
    factor = contraction(process.loss, process.step_size)
    moved = process.diameter + 2.0 * process.step_size * process.loss.lipschitz
    reach = factor * process.diameter
    if not isinstance(process.loss, ConvexLoss):
        reach = min(reach, moved)
    return reach / (process.step_size * process.noise_std) * (1.0 + 1e-15)


def _splits(process: CyclicSGD, later: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """mu_j and the steps left after it, for some j between 0 and `later`."""
    step = step_mu(process) * (1.0 + 1e-13 + process.epochs * 2.0**-50)
    if not isinstance(process.loss, ConvexLoss):
        return (step * math.sqrt(process.epochs),), (later,)
    factor = contraction(process.loss, process.step_size)
    waits = np.unique(np.geomspace(1, later + 1, _SPLITS).astype(int)) - 1
    period = process.batches_per_epoch
    squares = cyclic_squared_mu(factor, period, process.epochs, period - waits)
    return tuple((step * np.sqrt(squares)).tolist()), tuple((later - waits).tolist())


@final
class HiddenLastStep(Bounded):
    """Any clipped loss on a bounded set, last iterate: the last step's noise hides everything.

    Statement: before its noise the last iterate lies in a set of diameter at most D + 2 eta L
        whatever the data, so it is mu-GDP with mu = (D + 2 eta L) / (eta noise_std) after any
        number of steps.
    Conditions: every per-record gradient has norm <= L (clipping suffices; nothing else is asked of
        the loss), projection on a set of diameter D before each step, replace-one neighbours, last
        iterate only.
    Validity: upper bound; useful where D / (eta noise_std) is of order one.
    Source: the last step of Feldman et al. 2018, Theorem 22, with z = D.
    Error: three roundings; mu is raised by 1e-15 relative.
    Vectors: none printed; checked against one-step arithmetic in tests/golden/hidden.json.
    """

    NAME = "Last step on a bounded set, any clipped loss"
    SOURCE = Source("Feldman et al. 2018", "Theorem 22, last step", "fmtt18")
    OF = (NoisyGradientDescent, CyclicSGD, SkipSGD, StopSGD, SubsampledSGD)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        reason = super().condition(process)
        if reason is None and isinstance(process.loss, ConvexLoss):
            return Refusal(
                f"{cls.NAME} needs a bound on the whole gradient; ConvexLoss bounds only the part "
                "that depends on the record. The theorems about convex losses are stronger here "
                "anyway."
            )
        return reason

    @classmethod
    def proved(cls, process: Any) -> Guarantee:
        value = last_step_mu(
            process.diameter, process.step_size, process.loss.lipschitz, process.noise_std
        )
        return GaussianGuarantee(value, process.adjacency, Validity.BOUND)


def last_step_mu(diameter: float, step_size: float, lipschitz: float, noise_std: float) -> float:
    """(D + 2 eta L) / (eta noise_std), rounded up."""
    return (diameter + 2.0 * step_size * lipschitz) / (step_size * noise_std) * (1.0 + 1e-15)


@final
class HiddenShiftRenyi(LastIterate):
    """Amplification by iteration for any noise whose shifts have known Renyi divergence.

    Statement: R_a(noise, x) = sup over |shift| <= x of D_a(noise + shift || noise). For every a_t
        >= 0 with z_t = c_t z_{t-1} + s_t - a_t >= 0 and z_T = 0 the last state of a contractive
        iteration satisfies D_a <= sum_t R_a(noise_t, a_t).
            Gaussian, l2:  R_a(x) = a x^2 / (2 sigma^2)
            Laplace, l1:   R_a(x) = ln( a/(2a-1) e^{(a-1)x/b} + (a-1)/(2a-1) e^{-a x/b} ) / (a-1)
        (the Laplace form is convex in x with R(0) = 0, so one coordinate is the worst in l1).
    Conditions: maps Lipschitz in the norm of the noise, replace-one neighbours, last state only.
    Validity: upper bound. The shifts are those of the convex minorant, optimal for Gaussian noise
        and, for equal scales and c_t = 1, for every noise; composition (a_t = s_t) is tried too.
    Source: Feldman et al. 2018 (arXiv:1808.06651), Definition 10, Lemmas 20 and 21, Theorem 22.
        Gaussian noise has the stronger `hidden_hull`.
    Error: sums of positive terms, raised by 1e-12 plus the rounding bound of `numerics.hull`.
    Vectors: optimal_shift (Gaussian); tests/golden/hidden.json (Laplace).
    """

    NAME = "Amplification by iteration, any noise (Renyi)"
    SOURCE = Source("Feldman et al. 2018", "Theorem 22", "fmtt18")
    OF = (ContractiveIteration,)

    @classmethod
    def condition(cls, process: ContractiveIteration) -> Refusal | None:
        if min(process.noise_scales) > 0.0:
            return None
        return Refusal(
            f"{cls.NAME} needs noise in every step; merge noiseless steps with the next noisy one."
        )

    @classmethod
    def proved(cls, process: ContractiveIteration) -> Guarantee:
        term = ShiftTerm(
            tuple(_choices(process)), process.noise, 1e-12 + rounding(len(columns(process)[0]))
        )
        return RenyiGuarantee(RenyiCurve.of(term), process.adjacency, Validity.BOUND)


ShiftDivergence = Callable[[float, FloatArray], FloatArray]


def gaussian_divergence(order: float, ratios: FloatArray) -> FloatArray:
    """R_a of Gaussian noise at shifts `ratios` times its standard deviation."""
    return 0.5 * order * ratios**2


def laplace_divergence(order: float, ratios: FloatArray) -> FloatArray:
    """R_a of Laplace noise at shifts `ratios` times its scale."""
    # a e^{(a-1)x} + (a-1) e^{-ax} = e^{(a-1)x} (2a-1 + (a-1) (e^{-(2a-1)x} - 1))
    share = (order - 1.0) / (2.0 * order - 1.0)
    rest = np.log1p(share * np.expm1(-(2.0 * order - 1.0) * ratios))
    return np.maximum(ratios + rest / (order - 1.0), 0.0)


DIVERGENCES: dict[IterationNoise, ShiftDivergence] = {
    IterationNoise.GAUSSIAN: gaussian_divergence,
    IterationNoise.LAPLACE: laplace_divergence,
}


@dataclass(frozen=True)
class ShiftTerm:
    """The least of several feasible choices of shifts, each as (ratio, how often)."""

    choices: tuple[tuple[tuple[float, float], ...], ...]
    noise: IterationNoise
    slack: float = 1e-12

    def upper(self, orders: FloatArray) -> FloatArray:
        divergence = DIVERGENCES[self.noise]
        best = np.full(np.shape(orders), np.inf)
        for choice in self.choices:
            ratios, counts = np.array(choice).T
            sums = [float(divergence(float(order), ratios) @ counts) for order in orders]
            best = np.minimum(best, sums)
        return best * (1.0 + self.slack)


def _choices(process: ContractiveIteration) -> list[tuple[tuple[float, float], ...]]:
    pushes, factors, scales = columns(process)
    found = [_counted(least_cost_shifts(pushes, factors, scales, process.start_distance), scales)]
    if process.start_distance == 0.0:
        found.append(_counted(pushes, scales))
    if process.diameter is not None:
        first = len(pushes) - least_window_cost(pushes, factors, scales, process.diameter).length
        tail = pushes[first:], factors[first:], scales[first:]
        found.append(_counted(least_cost_shifts(*tail, process.diameter), tail[2]))
    return found


def _counted(shifts: FloatArray, scales: FloatArray) -> tuple[tuple[float, float], ...]:
    """Equal shifts are stored once."""
    ratios, counts = np.unique(shifts / scales, return_counts=True)
    return tuple(zip(ratios.tolist(), counts.astype(float).tolist(), strict=True))


@final
class HiddenNonconvex(Bounded):
    """Projected noisy gradient methods on smooth losses that need not be convex, last iterate.

    Statement: a gradient step is Lipschitz with constant c = 1 + eta beta. With projection on a set
        of diameter D, mu^2 is the least cost of shifts over the last nu steps, started at distance
        D, for the best nu.
    Conditions: smooth loss with bounded gradients, projection on a bounded convex set, replace-one
        neighbours, last iterate only.
    Validity: upper bound; useful where D / (eta noise_std) is of order one.
    Source: Feldman et al. 2018, Theorem 22, with expanding maps. A closed form (one chord over the
        window) is not used: with c > 1 that chord can pass above the points, which no choice of
        shifts allows, and is then too small (c = 1.5, nu = 2, D << eta g).
    Error: mu is raised by the rounding bound of `numerics.hull`.
    Vectors: optimal_shift (c = 1.1, z0 = 1).
    """

    NAME = "Last iterate, smooth non-convex loss on a bounded set"
    SOURCE = Source("Feldman et al. 2018", "Theorem 22 with expanding maps", "fmtt18")
    OF = (NoisyGradientDescent, CyclicSGD)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        reason = super().condition(process)
        if reason is None and not isinstance(process.loss, SmoothLoss):
            return Refusal(
                f"{cls.NAME} needs a bound on the Hessian, as SmoothLoss states it; got "
                f"{type(process.loss).__name__}. Convex losses have a better theorem."
            )
        return reason

    @classmethod
    def proved(cls, process: NoisyGradientDescent | CyclicSGD) -> Guarantee:
        return GaussianGuarantee(
            math.sqrt(projected_squared_mu(process)), process.adjacency, Validity.BOUND
        )
