"""Last iterates as Langevin diffusions, whose divergence follows an equation in time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.process.convex import ConvexLoss, NoisyGradientDescent, SubsampledSGD
from tightrope.theorems.base import (
    Refusal,
    Source,
)
from tightrope.theorems.last_iterate.steps import (
    Contractive,
    contraction,
    step_mu,
)
from tightrope.validate import FloatArray


@final
class HiddenLangevin(Contractive):
    """Noisy gradient descent as Langevin diffusion, last iterate (Renyi).

    Statement: lambda-strongly convex, beta-smooth mean loss, T full-batch steps: D_a <= a rho with
            rho = (2 / (lambda eta sigma^2)) (1 - e^{-lambda eta T/2}),
        1/sigma = mu_1 = 2 L / (records * noise_std).
    Conditions: strong convexity, step_size < 1 / smoothness, start drawn from N(point, (eta
        noise_std^2/lambda) I) (projected), replace-one neighbours, last iterate only, no clipping.
    Validity: upper bound; twice the exact value in the limit and worse than composition until about
        3.2 / (lambda eta) steps. Kept because the survey states it; `hidden_full_batch` is never
        worse.
    Source: Chourasia, Ye, Shokri 2021; Boninsegna's survey, Theorem VII.1 and equation (6). In the
        diffusion's convention the step adds sqrt(2 eta) N(0, s^2 I) and rho = S^2/(lambda s^2 n^2)
        (...); with s^2 = eta noise_std^2/2 that is the form above. Printed slips: Algorithm 3 sums
        gradients without 1/n and omits the projection; the remark after Lemma VII.1 loses the
        factor K; strong convexity (14) has a wrong sign and no square.
    Error: rho is raised by 1e-14 relative.
    Vectors: thm_VII1.
    """

    NAME = "Langevin diffusion bound for noisy gradient descent"
    SOURCE = Source("Chourasia, Ye, Shokri 2021", "survey Theorem VII.1", "cys21")
    OF = (NoisyGradientDescent,)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        reason = super().condition(process)
        if reason is not None:
            return reason
        loss = process.loss
        if loss.strong_convexity == 0.0:
            return Refusal(f"{cls.NAME} needs strong convexity; got 0. Add an l2 regulariser.")
        if process.step_size * loss.smoothness >= 1.0:
            return Refusal(
                f"{cls.NAME} needs step_size < 1 / smoothness = {1.0 / loss.smoothness:g}; got "
                f"{process.step_size:g}."
            )
        wanted = process.noise_std * math.sqrt(process.step_size / loss.strong_convexity)
        if not math.isclose(process.start_std, wanted, rel_tol=1e-9):
            return Refusal(
                f"{cls.NAME} needs a start drawn with standard deviation noise_std * "
                f"sqrt(step_size / strong_convexity) = {wanted:g}; got start_std = "
                f"{process.start_std:g}."
            )
        return None

    @classmethod
    def proved(cls, process: NoisyGradientDescent) -> Guarantee:
        assert isinstance(process.loss, ConvexLoss)
        eta_lambda = process.step_size * process.loss.strong_convexity
        slope = rho(step_mu(process), eta_lambda, process.steps) * (1.0 + 1e-14)
        return RenyiGuarantee(RenyiCurve.of(LinearTerm(slope)), process.adjacency, Validity.BOUND)


def rho(step: float, eta_lambda: float, steps: int) -> float:
    """D_a / a; `step` is the mu of one step, `eta_lambda` step size times strong convexity."""
    return 2.0 / eta_lambda * step**2 * -math.expm1(-eta_lambda * steps / 2.0)


@final
class HiddenLangevinSampled(Contractive):
    """Noisy SGD on random batches as Langevin diffusion, last iterate (Renyi recursion).

    Statement: q = batch_size / records, 1/sigma = mu_1 = 2 L / (batch_size * noise_std), c = 1 -
        eta lambda. With S = 1 at the start and, at each step,
            S <- q e^{a(a-1)/(2 sigma^2)} S + (1 - q) S^(c^2),
        the last iterate satisfies D_a <= ln S / (a-1).
    Conditions: lambda-strongly convex, beta-smooth loss, step_size < 2 / (lambda + beta), batches
        of fixed size drawn WITHOUT replacement, a public start, replace-one neighbours, last
        iterate only, no clipping.
    Validity: upper bound. It conditions on the batches, so it is linear in q, not quadratic; plain
        composition of sampled Gaussians is smaller for the first thousands of steps.
    Source: Ye, Shokri 2022; Boninsegna's survey, Theorem VII.2. Corrected: the start is S_0^0 = 1
        (the printed "S_0^j = 1 for all j" contradicts the recursion); the sampling is without
        replacement (the text says with); "amplification O(1/n^2)" is not what it delivers.
    Error: relative rounding below 4 steps 2^-52, added.
    Vectors: thm_VII2.
    """

    NAME = "Langevin recursion for noisy SGD on random batches"
    SOURCE = Source("Ye, Shokri 2022", "survey Theorem VII.2", "ys22")
    OF = (SubsampledSGD,)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        reason = super().condition(process)
        if reason is not None:
            return reason
        loss = process.loss
        if loss.strong_convexity == 0.0:
            return Refusal(f"{cls.NAME} needs strong convexity; got 0. Add an l2 regulariser.")
        largest = 2.0 / (loss.strong_convexity + loss.smoothness)
        if process.step_size >= largest:
            return Refusal(
                f"{cls.NAME} needs step_size < 2 / (strong_convexity + smoothness) = {largest:g}; "
                f"got {process.step_size:g}."
            )
        return None

    @classmethod
    def proved(cls, process: SubsampledSGD) -> Guarantee:
        factor = contraction(process.loss, process.step_size)
        term = RecursionTerm(process.rate, step_mu(process), factor, process.steps)
        return RenyiGuarantee(RenyiCurve.of(term), process.adjacency, Validity.BOUND)


_HOPELESS = 1e4  # ln S: no epsilon worth stating follows


@dataclass(frozen=True)
class RecursionTerm:
    """The Renyi curve of the last iterate."""

    rate: float
    step: float
    factor: float
    steps: int

    def upper(self, orders: FloatArray) -> FloatArray:
        log_s = self.log_moments(orders)
        return (log_s + 4.0 * self.steps * 2.0**-52 * (1.0 + log_s)) / (orders - 1.0)

    def log_moments(self, orders: FloatArray) -> FloatArray:
        """ln S at each order, within 2e-13 relative from above; inf for hopeless orders.

        The step is an increasing map, so once it sends v to at most v no later value exceeds v.
        """
        hit = 0.5 * orders * (orders - 1.0) * self.step**2
        log_s = np.zeros(np.shape(orders))
        open_orders = np.ones(np.shape(orders), bool)
        for taken in range(self.steps):
            here, rate, square = open_orders, self.rate, self.factor**2
            log_s[here] = _step(log_s[here], hit[here], rate, square)
            if taken % 64 == 63:
                above = log_s * (1.0 + 1e-13)
                settled = here & (_step(np.where(here, above, 0.0), hit, rate, square) <= above)
                hopeless = here & (log_s > _HOPELESS)
                log_s[settled], log_s[hopeless] = above[settled], np.inf
                open_orders = here & ~settled & ~hopeless
                if not open_orders.any():
                    break
        return log_s


def _step(log_s: FloatArray, hit: FloatArray, rate: float, square: float) -> FloatArray:
    """ln(q e^(hit + ln S) + (1-q) e^(square ln S)), accurate for small and for large logarithms."""
    up, down = hit + log_s, square * log_s
    top = np.maximum(up, down)
    small = np.minimum(up, 1.0), np.minimum(down, 1.0)
    with np.errstate(divide="ignore"):
        large = top + np.log(rate * np.exp(up - top) + (1.0 - rate) * np.exp(down - top))
    near = np.log1p(rate * np.expm1(small[0]) + (1.0 - rate) * np.expm1(small[1]))
    return np.where(top < 1.0, near, large)
