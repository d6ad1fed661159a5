"""Gaussian noise on Poisson batches by Renyi divergences: the moments accountants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.process import NoisySGD
from tightrope.theorems.base import (
    Estimated,
    Refusal,
    Source,
)
from tightrope.theorems.sampling import PoissonSteps, closed_form, renyi_bound
from tightrope.validate import FloatArray


@final
class PoissonGaussianRdpMtz19(PoissonSteps):
    """Renyi divergence of one Poisson-sampled Gaussian step (improved moments accountant).

    Statement: with r(s) = 1 + q (e^(mu s - mu^2/2) - 1), D_order = ln E_{N(0,1)}[r^order]/(order -
        1) when a record is removed (never smaller than ln E[r^(1-order)]/(order - 1) when added).
        Divergences of the steps add; the sum is converted by the optimal conversion.
    Conditions: Poisson sampling, add-or-remove neighbours, noise_multiplier > 0.
    Validity: the divergence is exact, its conversion to (epsilon, delta) an upper bound.
    Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530v1), Section 3; conversion: Three Variants
        (Asoodeh et al. 2021), Theorem 3, in its two-sided form.
    Error: stated by the quadrature (guarantee/loss/renyi.py), both sides.
    Vectors: rdp_sgm_integer, rdp_sgm_fractional.
    """

    NAME = "Improved moments accountant"
    SOURCE = Source(
        "Mironov, Talwar, Zhang 2019; Asoodeh et al. 2021", "Section 3; Theorem 3", "mtz19"
    )

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        return renyi_guarantee(process, route="optimal")


def renyi_guarantee(process: NoisySGD, route: str) -> Guarantee:
    """The same divergences, converted by the named route."""
    return closed_form(process) or renyi_bound(process, route)


@final
class MomentsAccountantAcgmmtz16(PoissonSteps):
    """The moments accountant: the same Renyi divergences with the classical conversion.

    Statement: epsilon = min over orders of D_order + ln(1/delta)/(order - 1).
    Conditions: those of the sampled Gaussian's Renyi divergence.
    Validity: upper bound, never better than the improved moments accountant.
    Source: Abadi et al. 2016 (arXiv:1607.00133v2), Theorem 2; Mironov 2017 (arXiv:1702.07476),
        Proposition 3.
    Error: as for the divergences.
    Vectors: thm3_eps (classical), gaussian_composition (moments_accountant).
    """

    NAME = "Moments accountant"
    SOURCE = Source("Abadi et al. 2016", "Theorem 2", "acgmmtz16")

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        return renyi_guarantee(process, route="classical")


@final
class PoissonGaussianRdpClosedMtz19(PoissonSteps):
    """A closed-form Renyi bound of the sampled Gaussian.

    Statement: D_order <= 2 q^2 order / s^2 with s the noise multiplier.
    Conditions: Poisson sampling, add-or-remove neighbours, q <= 1/5, s >= 4, and with
        L = ln(1 + 1/(q (order-1))): 1 < order <= s^2 L/2 - 2 ln s and
        order <= (s^2 L^2/2 - ln 5 - 2 ln s)/(L + ln(q order) + 1/(2 s^2)).
    Validity: upper bound, about four times the exact divergence.
    Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530v1), Theorem 11.
    Error: none.
    Vectors: rdp_mtz_closed_form.
    """

    NAME = "Closed-form Renyi bound"
    SOURCE = Source("Mironov, Talwar, Zhang 2019", "Theorem 11", "mtz19")

    @classmethod
    def condition(cls, process: NoisySGD) -> Refusal | None:
        reason = super().condition(process)
        if reason is None and (process.sampling.rate > 0.2 or process.noise_multiplier < 4.0):
            return Refusal(
                f"{cls.NAME} needs rate <= 1/5 and noise_multiplier >= 4; got rate = "
                f"{process.sampling.rate:g} and noise_multiplier = {process.noise_multiplier:g}. "
                "Use the exact Renyi divergence instead; it needs no such condition."
            )
        return reason

    @classmethod
    def proved(cls, process: NoisySGD) -> Guarantee:
        if process.sampling.rate == 0.0 or process.steps == 0:
            return GaussianGuarantee(0.0, process.adjacency, Validity.BOUND)
        term = ClosedFormTerm(process.sampling.rate, process.noise_multiplier)
        return RenyiGuarantee(
            RenyiCurve.of(term) * process.steps, process.adjacency, Validity.BOUND
        )


@final
@dataclass(frozen=True)
class ClosedFormTerm:
    """2 q^2 order / s^2 at the orders the theorem covers, unknown (inf) elsewhere."""

    rate: float
    noise_multiplier: float

    def covers(self, orders: FloatArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
        q, s = self.rate, self.noise_multiplier
        L = np.log1p(1.0 / (q * (orders - 1.0)))
        first = orders <= s * s * L / 2 - 2 * np.log(s)
        room = s * s * L * L / 2 - np.log(5.0) - 2 * np.log(s)
        second = orders * (L + np.log(q * orders) + 1 / (2 * s * s)) <= room
        return np.asarray(first & second & (orders > 1.0))

    def upper(self, orders: FloatArray) -> FloatArray:
        bound = 2.0 * (self.rate / self.noise_multiplier) ** 2 * orders
        return np.where(self.covers(orders), bound, np.inf)


@final
class PoissonGaussianRdpAbadi16(PoissonSteps, Estimated):
    """The approximation rho = q^2/((1-q) s^2) of the first moments accountant.

    Statement: D_order is about order * q^2/((1-q) s^2), s the noise multiplier: the leading term of
        Abadi et al.'s Lemma 3, whose positive remainder O(q^3 order^3/s^3) is dropped.
    Conditions: Poisson sampling, add-or-remove neighbours, s >= 1, q < 1/(16 s), and whole numbers
        order - 1 <= s^2 ln(1/(q s)). Outside them it is false: at q = 0.003, s = 0.6 (Three
        Variants, Fig. 5) the true divergence is 2.7 to 21,000 times larger.
    Validity: estimate (a remainder is dropped), though about twice the exact value where it holds.
    Source: Abadi et al. 2016 (arXiv:1607.00133v2), Lemma 3; as used in A Better Bound and Three
        Variants, Section IV-B.
    Error: unproved; the dropped remainder.
    Vectors: rdp_abadi_lemma3.
    """

    NAME = "Leading-term moments (Abadi)"
    SOURCE = Source("Abadi et al. 2016", "Lemma 3, remainder dropped", "acgmmtz16")

    @classmethod
    def condition(cls, process: NoisySGD) -> Refusal | None:
        q, s = process.sampling.rate, process.noise_multiplier
        reason = super().condition(process)
        if reason is None and (s < 1.0 or q * s >= 1.0 / 16.0):
            return Refusal(
                f"{cls.NAME} needs noise_multiplier >= 1 and rate < 1/(16 noise_multiplier); got "
                f"rate = {q:g} and noise_multiplier = {s:g}, where it can understate the "
                "divergence a thousandfold. Use the exact analysis."
            )
        return reason

    @classmethod
    def proved(cls, process: NoisySGD) -> Estimate:  # type: ignore[override]
        if process.sampling.rate == 0.0 or process.steps == 0:
            return Estimate(GaussianGuarantee(0.0, process.adjacency), _WHY)
        term = LeadingTerm(process.sampling.rate, process.noise_multiplier)
        curve = RenyiCurve.of(term) * process.steps
        return Estimate(RenyiGuarantee(curve, process.adjacency, route="lemma1"), _WHY)


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
