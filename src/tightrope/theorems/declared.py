"""Releases whose guarantee is declared by whoever made them.

Statement: a release that is (epsilon, delta)-DP, Renyi DP, mu-GDP or zCDP for the declared
    neighbours is just that; (xi, rho)-zCDP means (order, xi + rho * order)-Renyi DP for every
    order above 1.
Conditions: the declaration is true. Tightrope cannot check it, and reports say so.
Validity: upper bound.
Source: the declaration; Bun, Steinke 2016 (arXiv:1605.02065), Definition 1.1 and 8.1 for zCDP.
Error: none.
Vectors: tradeoff_eps_delta, thm3_eps.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.kinds.renyi_curve import LinearTerm, RenyiCurve, TableTerm
from tightrope.process import (
    DeclaredApproxDP,
    DeclaredGaussianDP,
    DeclaredRenyi,
    DeclaredZeroConcentrated,
    Process,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Declared guarantee"
SOURCE = Source("the declaration", "taken at its word", "declared")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD

_DECLARED = (DeclaredApproxDP, DeclaredGaussianDP, DeclaredRenyi, DeclaredZeroConcentrated)


def applies(process: Process) -> Refusal | None:
    if isinstance(process, _DECLARED):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "declared releases", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    if isinstance(process, DeclaredApproxDP):
        return ApproxGuarantee(process.epsilon, process.delta, process.adjacency)
    if isinstance(process, DeclaredGaussianDP):
        return GaussianGuarantee(process.mu, process.adjacency)
    if isinstance(process, DeclaredRenyi):
        term: TableTerm | LinearTerm = TableTerm(process.orders, process.gammas)
    else:
        assert isinstance(process, DeclaredZeroConcentrated)
        term = LinearTerm(process.rho, process.xi)
    return RenyiGuarantee(RenyiCurve.of(term), process.adjacency)
