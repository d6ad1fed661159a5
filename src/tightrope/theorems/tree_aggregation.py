"""The noisy sums of a binary tree of batches.

Statement: with L leaves a record is in at most 1 + floor(log2 L) released nodes, all above one
    leaf; the release of all of them is the Gaussian mechanism with the sensitivity sqrt of that
    number (twice it where a record is replaced), whatever of it is read off.
Proof: of the nodes that hold a leaf there is one of each size 1, 2, 4, ...; a node of size 2^i is
    released once its 2^i leaves are there, so 2^i <= L. One record moves the vector of these sums
    by one norm each, at right angles; the first leaf is in all of them. Nodes may be asked for
    adaptively (Dong, Roth, Su 2019, Corollary 3.3 for Gaussian noise).
Conditions: every record is in one leaf, fixed in advance; removing it leaves the others where they
    are (its place stays empty), and replacing it keeps the leaf.
Validity: exact.
Source: Dwork et al. 2010; Chan, Shi, Song 2011; Kairouz et al. 2021 (arXiv:2103.00039), Section 3.
Error: none.
Vectors: none; counted by brute force in the tests.
"""

from __future__ import annotations

import math

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Process, TreeAggregation
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Tree aggregation"
SOURCE = Source("Kairouz et al. 2021", "Section 3", "kmstx21")
VALIDITY = Validity.EXACT
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if isinstance(process, TreeAggregation):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "TreeAggregation", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, TreeAggregation)
    if process.noise_multiplier == 0.0:
        return GaussianGuarantee(math.inf, process.adjacency, Validity.BOUND)
    mu = process.adjacency.moved * math.sqrt(process.depth) / process.noise_multiplier
    return GaussianGuarantee(mu * (1.0 + 1e-15), process.adjacency, VALIDITY)
