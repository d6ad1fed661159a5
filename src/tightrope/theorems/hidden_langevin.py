"""Noisy gradient descent as Langevin diffusion, last iterate (Renyi).

Statement: lambda-strongly convex, beta-smooth mean loss, T full-batch steps: D_a <= a rho with
        rho = (2 / (lambda eta sigma^2)) (1 - e^{-lambda eta T/2}),
    1/sigma = mu_1 = 2 L / (records * noise_std).
Conditions: strong convexity, step_size < 1 / smoothness, start drawn from N(point, (eta
    noise_std^2/lambda) I) (projected), replace-one neighbours, last iterate only, no clipping.
Validity: upper bound; twice the exact value in the limit and worse than composition until about
    3.2 / (lambda eta) steps. Kept because the survey states it; `hidden_full_batch` is never worse.
Source: Chourasia, Ye, Shokri 2021; Boninsegna's survey, Theorem VII.1 and equation (6). In the
    diffusion's convention the step adds sqrt(2 eta) N(0, s^2 I) and rho = S^2/(lambda s^2 n^2)
    (...); with s^2 = eta noise_std^2/2 that is the form above. Printed slips: Algorithm 3 sums
    gradients without 1/n and omits the projection; the remark after Lemma VII.1 loses the factor K;
    strong convexity (14) has a wrong sign and no square.
Error: rho is raised by 1e-14 relative.
Vectors: thm_VII1.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.process import Process
from tightrope.process.convex import ConvexLoss, NoisyGradientDescent
from tightrope.theorems.base import REPLACED, Refusal, Source, require
from tightrope.theorems.hidden_steps import convexity_refusal, refusal, step_mu

NAME = "Langevin diffusion bound for noisy gradient descent"
SOURCE = Source("Chourasia, Ye, Shokri 2021", "survey Theorem VII.1", "cys21")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def rho_log_sobolev(
    sensitivity: float,
    records: int,
    constant: float,
    deviation: float,
    step_size: float,
    steps: int,
) -> float:
    """D_a / a where all laws on the way satisfy a log-Sobolev inequality with this constant.

    (S^2/(2 c s^4 n^2)) (1 - e^{-s^2 c eta K}) in the diffusion's convention (s = `deviation`), the
    survey's form before strong convexity is used; lambda-strong convexity gives c = lambda/(2 s^2).
    """
    rate = deviation**2 * constant
    scale = sensitivity**2 / (2.0 * rate * deviation**2 * records**2)
    return -scale * math.expm1(-rate * step_size * steps)


def rho(step: float, eta_lambda: float, steps: int) -> float:
    """D_a / a; `step` is the mu of one step, `eta_lambda` step size times strong convexity."""
    return 2.0 / eta_lambda * step**2 * -math.expm1(-eta_lambda * steps / 2.0)


def applies(process: Process) -> Refusal | None:
    reason = refusal(NAME, process, (NoisyGradientDescent,)) or convexity_refusal(NAME, process)
    if reason is not None:
        return reason
    assert isinstance(process, NoisyGradientDescent)
    loss = process.loss
    assert isinstance(loss, ConvexLoss)
    if loss.strong_convexity == 0.0:
        return Refusal(f"{NAME} needs strong convexity; got 0. Add an l2 regulariser.")
    if process.step_size * loss.smoothness >= 1.0:
        return Refusal(
            f"{NAME} needs step_size < 1 / smoothness = {1.0 / loss.smoothness:g}; got "
            f"{process.step_size:g}."
        )
    wanted = process.noise_std * math.sqrt(process.step_size / loss.strong_convexity)
    if not math.isclose(process.start_std, wanted, rel_tol=1e-9):
        return Refusal(
            f"{NAME} needs a start drawn with standard deviation noise_std * sqrt(step_size / "
            f"strong_convexity) = {wanted:g}; got start_std = {process.start_std:g}."
        )
    return None


def guarantee(process: NoisyGradientDescent) -> Guarantee:
    require(applies(process))
    assert isinstance(process.loss, ConvexLoss)
    eta_lambda = process.step_size * process.loss.strong_convexity
    slope = rho(step_mu(process), eta_lambda, process.steps) * (1.0 + 1e-14)
    return RenyiGuarantee(RenyiCurve.of(LinearTerm(slope)), process.adjacency, VALIDITY)
