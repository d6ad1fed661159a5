"""Renyi divergence of one Poisson-sampled Gaussian step (improved moments accountant).

Statement: with r(s) = 1 + q (e^(mu s - mu^2/2) - 1), D_order = ln E_{N(0,1)}[r^order]/(order - 1)
    when a record is removed (never smaller than ln E[r^(1-order)]/(order - 1) when added).
    Divergences of the steps add; the sum is converted by the optimal conversion.
Conditions: Poisson sampling, add-or-remove neighbours, noise_multiplier > 0.
Validity: the divergence is exact, its conversion to (epsilon, delta) an upper bound.
Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530v1), Section 3; conversion: Three Variants
    (Asoodeh et al. 2021), Theorem 3, in its two-sided form.
Error: stated by the quadrature (guarantee/loss/renyi.py), both sides.
Vectors: rdp_sgm_integer, rdp_sgm_fractional.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.process import NoisySGD, Process
from tightrope.theorems import poisson_gaussian_exact_zdw22 as exact
from tightrope.theorems.base import Refusal, Source, require

NAME = "Improved moments accountant"
SOURCE = Source("Mironov, Talwar, Zhang 2019; Asoodeh et al. 2021", "Section 3; Theorem 3", "mtz19")
VALIDITY = Validity.BOUND
RELATIONS = exact.RELATIONS


def applies(process: Process) -> Refusal | None:
    reason = exact.applies(process)
    return reason if reason is None else reason.renamed(exact.NAME, NAME)


def guarantee(process: NoisySGD) -> Guarantee:
    require(applies(process))
    return renyi_guarantee(process, route="optimal")


def renyi_guarantee(process: NoisySGD, route: str) -> Guarantee:
    """The same divergences, converted by the named route."""
    return exact.closed_form(process) or exact.renyi_bound(process, route)
