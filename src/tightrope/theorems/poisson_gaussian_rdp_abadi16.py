"""The approximation rho = q^2/((1-q) s^2) of the first moments accountant.

Statement: D_order is about order * q^2/((1-q) s^2), s the noise multiplier: the leading term of
    Abadi et al.'s Lemma 3, whose positive remainder O(q^3 order^3/s^3) is dropped.
Conditions: Poisson sampling, add-or-remove neighbours, s >= 1, q < 1/(16 s), and whole numbers
    order - 1 <= s^2 ln(1/(q s)). Outside them it is false: at q = 0.003, s = 0.6 (Three Variants,
    Fig. 5) the true divergence is 2.7 to 21,000 times larger.
Validity: estimate (a remainder is dropped), though about twice the exact value where it holds.
Source: Abadi et al. 2016 (arXiv:1607.00133v2), Lemma 3; as used in A Better Bound and Three
    Variants, Section IV-B.
Error: unproved; the dropped remainder.
Vectors: rdp_abadi_lemma3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.guarantee.base import Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.process import NoisySGD, Process
from tightrope.theorems import poisson_gaussian_exact_zdw22 as exact
from tightrope.theorems.base import Refusal, Source, require
from tightrope.validate import FloatArray

NAME = "Leading-term moments (Abadi)"
SOURCE = Source("Abadi et al. 2016", "Lemma 3, remainder dropped", "acgmmtz16")
VALIDITY = Validity.ESTIMATE
RELATIONS = exact.RELATIONS
_WHY = "the remainder O(q^3 order^3 / noise^3) of Lemma 3 is dropped"


@final
@dataclass(frozen=True)
class LeadingTerm:
    """order * q^2/((1-q) s^2) at the whole orders that Lemma 3 covers, unknown (inf) elsewhere."""

    rate: float
    noise_multiplier: float

    @property
    def largest_order(self) -> int:
        q, s = self.rate, self.noise_multiplier
        return 1 + math.floor(s * s * math.log(1.0 / (q * s)))

    def upper(self, orders: FloatArray) -> FloatArray:
        whole = np.ceil(orders)  # divergences grow with the order
        rho = self.rate**2 / ((1.0 - self.rate) * self.noise_multiplier**2)
        return np.where(whole <= self.largest_order, whole * rho, np.inf)


def applies(process: Process) -> Refusal | None:
    reason = exact.applies(process)
    if reason is not None:
        return reason.renamed(exact.NAME, NAME)
    assert isinstance(process, NoisySGD)
    q, s = process.sampling.rate, process.noise_multiplier
    if s < 1.0 or q * s >= 1.0 / 16.0:
        return Refusal(
            f"{NAME} needs noise_multiplier >= 1 and rate < 1/(16 noise_multiplier); got rate = "
            f"{q:g} and noise_multiplier = {s:g}, where it can understate the divergence a "
            "thousandfold. Use the exact analysis."
        )
    return None


def guarantee(process: NoisySGD) -> Estimate:
    require(applies(process))
    if process.sampling.rate == 0.0 or process.steps == 0:
        return Estimate(GaussianGuarantee(0.0, process.adjacency), _WHY)
    term = LeadingTerm(process.sampling.rate, process.noise_multiplier)
    curve = RenyiCurve.of(term) * process.steps
    return Estimate(RenyiGuarantee(curve, process.adjacency, route="lemma1"), _WHY)
