"""Public records at the end of the pass hide all private ones before them.

Feldman et al. 2018, Corollary 31: with m public records last, every private record is followed by m
common noisy steps, so noise_std = 2 L / (sqrt(m+1) mu(epsilon, delta)) suffices. The printed noise
2 L sqrt(ln(1.25/delta)/m)/epsilon misses a factor 2 under the root: its true delta is 1.4 to 3.5
times the claimed one.
"""

from __future__ import annotations

import math

from tightrope.guarantee import gaussian as profile
from tightrope.process.convex import ConvexLoss
from tightrope.theorems.last_iterate.sampled import used_probability
from tightrope.validate import check_count, check_epsilon
from tightrope_reproduce.plan.outcome import ConvexPlan
from tightrope_reproduce.plan.per_person import check_positive_delta, skip_plan

__all__ = ["public_last"]


def public_last(
    loss: ConvexLoss,
    *,
    private_records: int,
    public_records: int,
    dimension: int,
    radius: float,
    epsilon: float,
    delta: float,
    smoothing_dimension: int | None = None,
) -> ConvexPlan:
    """One pass over the private, then the public records: (epsilon, delta) for the private ones."""
    private = check_count(private_records, "private_records", low=1)
    public = check_count(public_records, "public_records")
    used = used_probability(private + public, private)
    budget = min(check_positive_delta(delta) / used * (1.0 - 1e-11), 1.0 - 1e-9)
    mu = float(profile.mu_bounds(check_epsilon(epsilon), budget)[0])
    noise = 2.0 * loss.lipschitz / (mu * math.sqrt(public + 1.0)) * (1.0 + 1e-12)
    return skip_plan(
        loss,
        noise,
        private + public,
        private,
        dimension,
        radius,
        epsilon,
        delta,
        smoothing_dimension,
    )
