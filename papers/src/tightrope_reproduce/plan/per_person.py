"""Per-person privacy: every device is locally private, early ones far more against the analyst.

Feldman et al. 2018, Theorem 30 (and Corollary 34 where the loss has kinks): Skip-PNSGD with noise
for a local budget (epsilon, delta); the record at index t of n enjoys the parameter of a pass with
n - t later noisy steps. "Follows directly from Theorem 23" is not so in Renyi form (it fails once
epsilon/sqrt(n-t+1) > 0.45); it is true through Gaussian DP, which is what is used here. The printed
step size "sqrt(8 R)/..." reads sqrt(8) R.
"""

from __future__ import annotations

import math

from tightrope.guarantee import gaussian as profile
from tightrope.process.convex import ConvexLoss, SkipSGD
from tightrope.validate import check_count, check_delta, check_epsilon, check_positive
from tightrope_reproduce.plan.outcome import ConvexPlan
from tightrope_reproduce.plan.smoothing import mean_norm, scale_for_step, smoothed
from tightrope_reproduce.plan.utility import best_step

__all__ = ["per_person", "skip_plan"]


def per_person(
    loss: ConvexLoss,
    *,
    records: int,
    dimension: int,
    radius: float,
    epsilon: float,
    delta: float,
    smoothing_dimension: int | None = None,
) -> ConvexPlan:
    """One pass in which what each device sends is (epsilon, delta)-private by itself.

    `radius` is that of the ball projected on; `loss.lipschitz` must bound whole gradients. A loss
    with smoothness = inf is smoothed; `smoothing_dimension` is 1 for generalised linear models
    (default: `dimension`).
    """
    mu = float(profile.mu_bounds(check_epsilon(epsilon), check_positive_delta(delta))[0])
    noise = 2.0 * loss.lipschitz / mu * (1.0 + 1e-12)  # a margin, so that the plan verifies
    return skip_plan(
        loss, noise, records, records, dimension, radius, epsilon, delta, smoothing_dimension
    )


def skip_plan(
    loss: ConvexLoss,
    noise: float,
    records: int,
    private_records: int,
    dimension: int,
    radius: float,
    epsilon: float,
    delta: float,
    smoothing_dimension: int | None,
) -> ConvexPlan:
    """Skip-PNSGD with this noise and the step size of the least excess-loss bound."""
    records = check_count(records, "records", low=1)
    radius = check_positive(radius, "radius")
    second = loss.lipschitz**2 + check_count(dimension, "dimension", low=1) * noise**2
    averaged = records // 2 + 1  # the iterates after ceil(n/2) .. n steps
    kinked, scale = math.isinf(loss.smoothness), 0.0
    if kinked:  # the error, linear in the step size, acts like more gradient variance
        smoothing_dimension = smoothing_dimension or dimension
        second += (
            2.0
            * loss.lipschitz
            * scale_for_step(loss.lipschitz, 1.0)
            * mean_norm(smoothing_dimension)
        )
    largest = math.inf if kinked or loss.smoothness == 0.0 else 2.0 / loss.smoothness
    choice = best_step(2.0 * radius, second, averaged, steps=averaged, largest=largest)
    if kinked:
        assert smoothing_dimension is not None
        scale = scale_for_step(loss.lipschitz, choice.step_size)
        loss = smoothed(loss, scale, smoothing_dimension).loss
    process = SkipSGD(
        loss=loss,
        step_size=choice.step_size,
        noise_std=noise,
        records=records,
        diameter=2.0 * radius,
    )
    # on the ball no weights are worse than the best by more than L times its diameter
    excess = min(choice.excess_loss, 2.0 * radius * loss.lipschitz)
    return ConvexPlan(process, epsilon, delta, excess, private_records, 1, scale)


def check_positive_delta(delta: float) -> float:
    check_delta(delta)
    return float(check_positive(delta, "delta"))
