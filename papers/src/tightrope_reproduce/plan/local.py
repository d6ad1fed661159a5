"""Local privacy alone: one pass with a secret end, each gradient private by itself.

Feldman et al. 2018, Theorem 29: Stop-PNSGD with noise for a local budget (epsilon, delta). The
printed noise 2 L sqrt(2 ln(1.25/delta))/epsilon is proved for epsilon < 1 and false from about 7.5
on (Lemma 27); here the Gaussian profile decides, which asks for less wherever the formula holds.
Smoothness is not needed for what a device sends; where the loss has it, the secret end protects the
released weights further, and `plan.guarantee()` says by how much.
"""

from __future__ import annotations

import math

from tightrope.guarantee import gaussian as profile
from tightrope.process.convex import ConvexLoss, StopSGD
from tightrope.validate import check_count, check_epsilon, check_positive
from tightrope_reproduce.plan.outcome import ConvexPlan
from tightrope_reproduce.plan.per_person import check_positive_delta
from tightrope_reproduce.plan.utility import best_step

__all__ = ["local_pass", "printed_noise"]


def local_pass(
    loss: ConvexLoss, *, records: int, dimension: int, radius: float, epsilon: float, delta: float
) -> ConvexPlan:
    """Stop-PNSGD in which what each device sends is (epsilon, delta)-private by itself."""
    mu = float(profile.mu_bounds(check_epsilon(epsilon), check_positive_delta(delta))[0])
    noise = 2.0 * loss.lipschitz / mu * (1.0 + 1e-12)  # a margin, so that the plan verifies
    records = check_count(records, "records", low=1)
    second = loss.lipschitz**2 + check_count(dimension, "dimension", low=1) * noise**2
    distance = 2.0 * check_positive(radius, "radius")
    rough = loss.smoothness == 0.0 or math.isinf(loss.smoothness)
    largest = math.inf if rough else 2.0 / loss.smoothness
    choice = best_step(distance, second, records, steps=records + 1, largest=largest)
    process = StopSGD(
        loss=loss,
        step_size=choice.step_size,
        noise_std=noise,
        records=records,
        diameter=distance,
    )
    excess = min(choice.excess_loss, distance * loss.lipschitz)
    return ConvexPlan(process, epsilon, delta, excess, records)


def printed_noise(lipschitz: float, epsilon: float, delta: float) -> float:
    """Lemma 27 and Theorem 29 as printed, for comparison."""
    return 2.0 * lipschitz * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
