"""Amplification by iteration for any noise whose shifts have known Renyi divergence.

Statement: R_a(noise, x) = sup over |shift| <= x of D_a(noise + shift || noise). For every a_t >= 0
    with z_t = c_t z_{t-1} + s_t - a_t >= 0 and z_T = 0 the last state of a contractive iteration
    satisfies D_a <= sum_t R_a(noise_t, a_t).
        Gaussian, l2:  R_a(x) = a x^2 / (2 sigma^2)
        Laplace, l1:   R_a(x) = ln( a/(2a-1) e^{(a-1)x/b} + (a-1)/(2a-1) e^{-a x/b} ) / (a-1)
    (the Laplace form is convex in x with R(0) = 0, so one coordinate is the worst in l1).
Conditions: maps Lipschitz in the norm of the noise, replace-one neighbours, last state only.
Validity: upper bound. The shifts are those of the convex minorant, optimal for Gaussian noise and,
    for equal scales and c_t = 1, for every noise; composition (a_t = s_t) is tried too.
Source: Feldman et al. 2018 (arXiv:1808.06651), Definition 10, Lemmas 20 and 21, Theorem 22.
    Gaussian noise has the stronger `hidden_hull`.
Error: sums of positive terms, raised by 1e-12 plus the rounding bound of `numerics.hull`.
Vectors: optimal_shift (Gaussian); tests/golden/hidden.json (Laplace).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.numerics.hull import least_cost_shifts, least_window_cost, rounding
from tightrope.process import Process
from tightrope.process.convex import ContractiveIteration, IterationNoise
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_steps import columns, refusal
from tightrope.validate import FloatArray

NAME = "Amplification by iteration, any noise (Renyi)"
SOURCE = Source("Feldman et al. 2018", "Theorem 22", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED

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


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (ContractiveIteration,))
    if reason is not None:
        return reason
    assert isinstance(process, ContractiveIteration)
    if min(process.noise_scales) == 0.0:
        return Refusal(
            f"{NAME} needs noise in every step; merge noiseless steps with the next noisy one."
        )
    return None


def guarantee(process: ContractiveIteration) -> Guarantee:
    require(applies(process))
    term = ShiftTerm(
        tuple(_choices(process)), process.noise, 1e-12 + rounding(len(columns(process)[0]))
    )
    return RenyiGuarantee(RenyiCurve.of(term), process.adjacency, VALIDITY)


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
