"""The exponential mechanism, by its bounded range.

Statement: a release whose log-likelihood ratios between neighbours span at most e (they lie in
    [t - e, t] for some t) has delta(x) <= (E^(1/2) - X^(1/2))^2/(E - 1), E = e^e, X = e^x,
    |x| <= e; so it is dominated by the pair whose loss has the density proportional to e^(l/2) on
    [-e, e]. The exponential mechanism of parameter epsilon spans at most epsilon.
Proof: the extreme laws of a ratio in [t - e, t] have two values: t with probability p under P, and
    t - e. Q has mass 1, so p = (E - T)/(E - 1), T = e^t, and delta(x) = p (1 - X/T) for
    t - e <= x <= t; this is largest at T = (E X)^(1/2), where it is the bound. Then
    P(L > x) = delta(x) - delta'(x) = (E - (E X)^(1/2))/(E - 1) gives the density. The exponential
    mechanism has ln P(y)/Q(y) = epsilon (u(y) - u'(y))/(2 s) + constant, which spans epsilon.
Conditions: every score moves by at most its sensitivity s between neighbours.
Validity: upper bound; the profile of one release is attained, at each x by some scores (two
    candidates whose scores move against each other). Composed adaptively, as Zhu, Dong and Wang
    2022 (Theorem 10) allow, it stays a bound; scores fixed in advance lose less (Dong, Durfee,
    Rogers 2020, Section 4).
Source: Dong, Durfee, Rogers 2020 (arXiv:1909.13830), Lemma 3.4 and Theorem 3.
Error: none here; the numerical composition states its own.
Vectors: bounded_range.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import BoundedRangePair
from tightrope.process import ExponentialMechanism, Process
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Exponential mechanism, bounded range"
SOURCE = Source("Dong, Durfee, Rogers 2020", "Lemma 3.4", "ddr20")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if isinstance(process, ExponentialMechanism):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "ExponentialMechanism", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, ExponentialMechanism)
    if process.epsilon == 0.0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    orders = (((BoundedRangePair(process.epsilon), 1),),)
    return LossGuarantee(orders, process.adjacency, VALIDITY, attained=orders)
