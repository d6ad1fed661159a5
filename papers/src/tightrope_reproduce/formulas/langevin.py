"""The survey's Langevin bound of full batches, as a theorem that `account` can be given.

    account(process, (*ANALYSES, Analysis("langevin", HiddenLangevin)))

`hidden_full_batch`, of the package itself, is never worse.
"""

from __future__ import annotations

import math
from typing import Any, final

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.process.convex import ConvexLoss, NoisyGradientDescent
from tightrope.theorems.base import Refusal, Source
from tightrope.theorems.last_iterate.steps import Contractive, step_mu

__all__ = ["HiddenLangevin", "rho"]


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
