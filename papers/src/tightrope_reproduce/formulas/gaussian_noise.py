"""Noise of the Gaussian mechanism: the analytic calibration and the classical formula.

Statement: noise of standard deviation sigma on a query of L2 sensitivity S has mu = S/sigma; the
    classical formula sigma = S sqrt(2 ln(1.25/delta))/eps is (eps, delta)-DP for 0 < eps < 1.
Conditions: the classical formula is proved for eps < 1 only and is false from about 7.4 on, so it
    refuses eps >= 1.
Source: Balle and Wang 2018 (arXiv:1805.06530); Dwork and Roth 2014, Theorem A.1.
Vectors: gaussian_sigma in tests/golden/tradeoff.json.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply
from tightrope.guarantee.gaussian import mu_bounds
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_positive, check_real

__all__ = ["analytic_noise", "classical_noise"]

_UP = 1.0 + 4.0 * ULP


def analytic_noise(epsilon: ArrayLike, delta: ArrayLike, sensitivity: float = 1.0) -> Any:
    """The smallest sigma for (epsilon, delta), verified and rounded up; inf for delta = 0."""
    sensitivity = check_positive(sensitivity, "sensitivity")
    mu = np.asarray(mu_bounds(epsilon, delta)[0])
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
