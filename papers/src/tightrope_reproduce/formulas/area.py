"""Areas of privacy regions: the set between a trade-off function and the diagonal.

Statement: the region {(t, b): f(t) <= b <= 1 - t} of a trade-off function f has area 1/2 - int f.
    (eps, delta)-DP: 1/2 - (1-delta)^2/(1+e^eps).   mu-Gaussian DP: 1/2 - Phi(-mu/sqrt 2).
    f convex: the midpoint rule bounds int f from below, the trapezoid rule from above.
Conditions: f convex and non-increasing on [0, 1] with f(t) <= 1 - t.
Validity: exact (closed forms); enclosure (`of_tradeoff`).
Source: derived here (used for Fig. 9 of arXiv:2008.06529).
Error: closed forms to 8 ulp. `of_tradeoff` refines its mesh until the two rules differ by at most
    `tolerance`, or raises NotCertified.
Vectors: tests/unit/reproduce/test_renyi_formulas.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.renyi.kernel import checked_epsilon
from tightrope.guarantee.renyi.regions import type_ii
from tightrope.numerics.arrays import Enclosure, flat, shaped
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray, check_delta, check_non_negative, check_positive

__all__ = ["of_approx", "of_gaussian", "of_renyi", "of_tradeoff"]

# bounds (lower, upper) of the trade-off function at an array of type I errors
Tradeoff = Callable[[FloatArray], tuple[Any, Any]]
_COARSEST, _FINEST = 8, 17  # 2^8 to 2^17 cells


def of_approx(epsilon: Any, delta: Any = 0.0) -> Any:
    """Area of the region of (epsilon, delta)-DP."""
    (eps, d), shape = flat(checked_epsilon(epsilon), check_delta(delta))
    return shaped(0.5 - (1.0 - d) ** 2 * expit(-eps), shape)


def of_gaussian(mu: Any) -> Any:
    """Area of the region of mu-Gaussian DP."""
    (m,), shape = flat(check_non_negative(mu, "mu"))
    return shaped(0.5 - ndtr(-m / np.sqrt(2.0)), shape)


def of_renyi(order: float, gamma: float, *, tolerance: float = 1e-6) -> Enclosure:
    """Area of the region of (order, gamma)-Renyi DP (Lemma 4)."""
    return of_tradeoff(lambda t: type_ii(order, gamma, t), tolerance=tolerance)


def of_tradeoff(tradeoff: Tradeoff, *, tolerance: float = 1e-6) -> Enclosure:
    """Enclosure of the area of the region of a convex trade-off function."""
    tolerance = check_positive(tolerance, "tolerance")
    for doublings in range(_COARSEST, _FINEST + 1):
        under = _under(tradeoff, 2**doublings)
        if under.upper - under.lower <= tolerance:
            return Enclosure(0.5 - under.upper, 0.5 - under.lower)
    raise NotCertified(
        f"The area is known to {under.upper - under.lower:.1e} only, not to {tolerance:.1e}. "
        "Ask for less, or integrate a smoother trade-off function."
    )


def _under(tradeoff: Tradeoff, cells: int) -> Enclosure:
    """Midpoint and trapezoid rules on a mesh that is fine near both ends."""
    ends = np.sin(0.5 * np.pi * np.linspace(0.0, 1.0, cells + 1)) ** 2
    widths = np.diff(ends)
    below = np.asarray(tradeoff(0.5 * (ends[1:] + ends[:-1]))[0])
    above = np.asarray(tradeoff(ends)[1])
    rounding = 4.0 * ULP * cells
    low = float(np.sum(widths * below)) - rounding
    high = float(np.sum(widths * 0.5 * (above[1:] + above[:-1]))) + rounding
    return Enclosure(low, high)
