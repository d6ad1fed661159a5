"""Theorem 5, in the only form that is a guarantee: (109).

Statement: T releases with unit sensitivity are (eps, delta)-DP if the noise has variance at least
    s^2 = (order T/2)/(eps + (ln delta - ln zeta)/(order - 1)),  order = 2 L/eps,  L = ln(1/delta).
Conditions: eps < 2 L (so that order > 1), order <= 1/delta, and a positive denominator. Otherwise
    the theorem says nothing and `noise_multiplier` raises DoesNotApply.
Validity: bound. The leading terms printed as Theorem 5 drop an O() that hides a factor T/eps^2;
    they fall below the true minimum at (eps, delta) = (0.01, 1e-5), so they are not offered.
Source: Theorem 5 and (109) of arXiv:2008.06529.
Error: rounded upwards by 32 ulp after a denominator rounded downwards.
Vectors: thm5_sigma2 (eq109) in tests/golden/renyi.json.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.errors import DoesNotApply
from tightrope.guarantee.renyi.closed_forms import log_zeta
from tightrope.guarantee.renyi.kernel import rounded_down
from tightrope.numerics.rounding import ULP
from tightrope.validate import check_positive
from tightrope_reproduce.formulas.moments_accountant import checked_inner_delta

__all__ = ["noise_multiplier", "applies"]


def applies(epsilon: float, delta: float) -> str | None:
    """None where (109) is a guarantee, otherwise the reason why not."""
    eps, d = check_positive(epsilon, "epsilon"), checked_inner_delta(delta)
    order = 2.0 * -math.log(d) / eps
    advice = "Calibrate with Gaussian DP instead: it is exact and has no such condition."
    if order <= 1.0:
        return (
            f"Theorem 5 needs epsilon < 2 ln(1/delta) = {-2.0 * math.log(d):.4g}; got {eps:.4g}. "
            f"Its order 2 ln(1/delta)/epsilon must exceed 1. {advice}"
        )
    if order > 1.0 / d:
        return (
            f"Theorem 5 needs 2 delta ln(1/delta) <= epsilon; got epsilon={eps:.4g}, "
            f"delta={d:.4g}. Its order {order:.4g} must not exceed 1/delta. {advice}"
        )
    if _denominator(eps, d, order) <= 0.0:
        return (
            f"The denominator of (109) is not positive at epsilon={eps:.4g}, delta={d:.4g}, so no "
            f"amount of noise follows from it. {advice}"
        )
    return None


def noise_multiplier(epsilon: float, delta: float, steps: float) -> float:
    """The noise that (109) asks for."""
    reason = applies(epsilon, delta)
    if reason is not None:
        raise DoesNotApply(reason)
    eps, d, t = float(epsilon), float(delta), check_positive(steps, "steps")
    order = 2.0 * -math.log(d) / eps
    return math.sqrt(0.5 * order * t / _denominator(eps, d, order)) * (1.0 + 32.0 * ULP)


def _denominator(eps: float, delta: float, order: float) -> float:
    z = np.asarray(order - 1.0)
    gain = (math.log(delta) - log_zeta(z)) / z
    return float(rounded_down(eps + gain, eps, math.log(delta) / z, log_zeta(z) / z))
