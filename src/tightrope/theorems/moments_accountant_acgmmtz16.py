"""The moments accountant: the same Renyi divergences with the classical conversion.

Statement: epsilon = min over orders of D_order + ln(1/delta)/(order - 1).
Conditions: those of the sampled Gaussian's Renyi divergence.
Validity: upper bound, never better than the improved moments accountant.
Source: Abadi et al. 2016 (arXiv:1607.00133v2), Theorem 2; Mironov 2017 (arXiv:1702.07476),
    Proposition 3.
Error: as for the divergences.
Vectors: thm3_eps (classical), gaussian_composition (moments_accountant).
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.process import NoisySGD, Process
from tightrope.theorems import poisson_gaussian_rdp_mtz19 as renyi
from tightrope.theorems.base import Refusal, Source, require

NAME = "Moments accountant"
SOURCE = Source("Abadi et al. 2016", "Theorem 2", "acgmmtz16")
VALIDITY = Validity.BOUND
RELATIONS = renyi.RELATIONS


def applies(process: Process) -> Refusal | None:
    reason = renyi.applies(process)
    return reason if reason is None else reason.renamed(renyi.NAME, NAME)


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    return renyi.renyi_guarantee(process, route="classical")
