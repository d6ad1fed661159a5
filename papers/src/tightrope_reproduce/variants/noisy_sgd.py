"""Noisy SGD as the two papers analyse it, and as it is: shared by Fig. 4, 5, 8 and 9.

The papers take each step for (order, order rho)-Renyi DP, rho = rate^2/((1-rate) noise^2), which is
the leading term of a lemma with conditions of its own (tightrope_reproduce.formulas.abadi_lemma3).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tightrope.accounting import Account, account
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee, TableTerm
from tightrope.guarantee.renyi.regions import type_ii, type_ii_of_curve
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.theorems.poisson_renyi import LeadingTerm, PoissonGaussianRdpMtz19
from tightrope_reproduce.formulas.abadi_lemma3 import claimed_renyi

__all__ = [
    "PAPERS",
    "poisson",
    "equivalent_noise",
    "admissible_orders",
    "claimed_type_ii",
    "renyi_type_ii",
]

PAPERS = "A Better Bound / Three Variants"
_ORDERS = 1.0 + np.geomspace(0.02, 200.0, 160)


def poisson(rate: float, noise_multiplier: float, steps: int) -> Account:
    """What the formula is for: Poisson batches, a record added or removed."""
    return account(NoisySGD(PoissonSampling(rate), noise_multiplier, steps))


def equivalent_noise(rate: float, noise_multiplier: float) -> float:
    """Plain Gaussian noise with the Renyi curve order * rho that the papers take for a step."""
    rho = claimed_renyi(2.0, rate, noise_multiplier) / 2.0
    return math.sqrt(0.5 / rho)


def admissible_orders(rate: float, noise_multiplier: float) -> range:
    """The whole orders of (54), where Abadi et al.'s lemma would speak if its noise were >= 1."""
    return range(2, LeadingTerm(rate, noise_multiplier).largest_order + 1)


def claimed_type_ii(rate: float, noise_multiplier: float, steps: int, type_i: Any) -> Any:
    """(54): the lower boundary of the privacy region that the paper claims."""
    boundaries = [
        type_ii(order, steps * claimed_renyi(order, rate, noise_multiplier), type_i).lower
        for order in admissible_orders(rate, noise_multiplier)
    ]
    return np.max(boundaries, axis=0)


def renyi_type_ii(rate: float, noise_multiplier: float, steps: int, type_i: Any) -> Any:
    """Corollary 1 with the true divergences, at orders between which convexity bounds them."""
    curve = RenyiCurve.of(_table(rate, noise_multiplier)) * steps
    return type_ii_of_curve(curve, type_i, highest=float(_ORDERS[-1]))


@cache
def _table(rate: float, noise_multiplier: float) -> TableTerm:
    one_step = PoissonGaussianRdpMtz19.guarantee(
        NoisySGD(PoissonSampling(rate), noise_multiplier, 1)
    )
    assert isinstance(one_step, RenyiGuarantee)
    return TableTerm(tuple(_ORDERS.tolist()), tuple(one_step.curve(_ORDERS).tolist()))
