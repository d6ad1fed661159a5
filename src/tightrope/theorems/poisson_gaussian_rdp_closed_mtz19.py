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

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.process import NoisySGD, Process
from tightrope.theorems import poisson_gaussian_exact_zdw22 as exact
from tightrope.theorems.base import Refusal, Source, require
from tightrope.validate import FloatArray

NAME = "Closed-form Renyi bound"
SOURCE = Source("Mironov, Talwar, Zhang 2019", "Theorem 11", "mtz19")
VALIDITY = Validity.BOUND
RELATIONS = exact.RELATIONS


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


def applies(process: Process) -> Refusal | None:
    reason = exact.applies(process)
    if reason is not None:
        return reason.renamed(exact.NAME, NAME)
    assert isinstance(process, NoisySGD)
    if process.sampling.rate > 0.2 or process.noise_multiplier < 4.0:
        return Refusal(
            f"{NAME} needs rate <= 1/5 and noise_multiplier >= 4; got rate = "
            f"{process.sampling.rate:g} and noise_multiplier = {process.noise_multiplier:g}. "
            "Use the exact Renyi divergence instead; it needs no such condition."
        )
    return None


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    if process.sampling.rate == 0.0 or process.steps == 0:
        return GaussianGuarantee(0.0, process.adjacency, VALIDITY)
    term = ClosedFormTerm(process.sampling.rate, process.noise_multiplier)
    return RenyiGuarantee(RenyiCurve.of(term) * process.steps, process.adjacency, VALIDITY)
