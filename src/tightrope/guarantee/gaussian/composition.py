"""Composition, group privacy and noise calibration of Gaussian guarantees.

Statement: mu_1-, ..., mu_k-GDP together are sqrt(mu_1^2 + ... + mu_k^2)-GDP; a group of `size`
    records has size * mu; noise of standard deviation sigma on a query of L2 sensitivity S has
    mu = S/sigma. Classical formula: sigma = S sqrt(2 ln(1.25/delta))/eps is
    (eps, delta)-DP for 0 < eps < 1.
Conditions: adaptive composition, the same neighbours in every part. The classical formula is proved
    for eps < 1 only and is false from about 7.4 on, so it refuses eps >= 1.
Validity: exact (composition, group and analytic noise of the Gaussian mechanism); the classical
    formula is a bound.
Source: Dong, Roth and Su 2019 (arXiv:1905.02383), Corollary 3.3 and Theorem 2.14; Balle and Wang
    2018 (arXiv:1805.06530); Dwork and Roth 2014, Theorem A.1.
Error: mu is the next double above the truth; noise is rounded up by a few roundings.
Vectors: gaussian_sigma in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.gaussian import profile
from tightrope.numerics.rounding import ULP, root_up, times_up
from tightrope.validate import check_count, check_positive, check_real

__all__ = ["compose_mu", "group_mu", "analytic_noise", "classical_noise"]

_UP = 1.0 + 4.0 * ULP


def compose_mu(mus: Sequence[float], counts: Sequence[int] | None = None) -> float:
    """sqrt(sum of counts * mu^2), rounded up; 0 for no parts."""
    values = [check_real(m, "mu", low=0.0, finite=False) for m in mus]
    times = [1] * len(values) if counts is None else [check_count(c, "count") for c in counts]
    if len(times) != len(values):
        raise InvalidInput(f"Give one count for each mu; got {len(times)} for {len(values)}.")
    parts = [(m, c) for m, c in zip(values, times, strict=True) if c > 0 and m > 0.0]
    if len(parts) == 1 and parts[0][1] == 1:
        return float(parts[0][0])
    largest = max((m for m, _ in parts), default=0.0)
    if largest in (0.0, math.inf):
        return largest
    guess = largest * math.sqrt(math.fsum(c * (m / largest) ** 2 for m, c in parts))
    return root_up(sum((c * Fraction(m) ** 2 for m, c in parts), Fraction(0)), guess)


def group_mu(mu: float, size: int) -> float:
    """mu of `size` records changed together, rounded up."""
    mu, size = check_real(mu, "mu", low=0.0, finite=False), check_count(size, "size", low=1)
    return times_up(mu, size)


def analytic_noise(epsilon: ArrayLike, delta: ArrayLike, sensitivity: float = 1.0) -> Any:
    """The smallest sigma for (epsilon, delta), verified and rounded up; inf for delta = 0."""
    sensitivity = check_positive(sensitivity, "sensitivity")
    mu = np.asarray(profile.mu_bounds(epsilon, delta)[0])
    with np.errstate(divide="ignore"):
        return (sensitivity / mu * _UP)[()]


def classical_noise(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """S sqrt(2 ln(1.25/delta))/eps for eps < 1; `analytic_noise` is never larger."""
    eps = check_positive(epsilon, "epsilon")
    d = check_real(delta, "delta", low=0.0, high=1.0, open_low=True)
    if eps >= 1.0:
        raise DoesNotApply(
            f"The classical Gaussian formula is proved for epsilon < 1 only (Dwork and Roth 2014, "
            f"Theorem A.1) and false for large epsilon; got {eps:g}. Use analytic_noise, which is "
            "exact for every epsilon and never larger."
        )
    return float(
        check_positive(sensitivity, "sensitivity") * math.sqrt(2.0 * math.log(1.25 / d)) / eps * _UP
    )
