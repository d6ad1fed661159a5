"""Poisson sampling of any mechanism, by its trade-off function.

Statement: if T(M(S), M(S')) >= f for S' = S with one record more, sampling each record with
    probability p first gives T >= f_p = p f + (1 - p) Id, and f_p^-1 for the other order; for both
    orders C_p(f) = min{f_p, f_p^-1}**. In masses: T(P, Q) becomes T(P, p Q + (1 - p) P).
Conditions: add-or-remove neighbours; the sample is secret; f holds for every pair of neighbours.
    One step: to compose, compose f_p and symmetrise afterwards.
Validity: exact for piecewise linear f (attained: the mechanism may reveal nothing but the record);
    otherwise a bracket, since f <= g gives C_p(f) <= C_p(g).
Source: Bu et al. 2019 (arXiv:1911.11607), (3), Proposition A.1, Lemma A.2.
Error: the width of the bracket.
Vectors: sampled_tradeoff in tests/golden/tradeoff.json.
"""

from __future__ import annotations

from tightrope.validate import check_probability
from tightrope_reproduce.tradeoff.abstract import AbstractTradeoff
from tightrope_reproduce.tradeoff.bracket import TradeoffBracket, bracket
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.hull import symmetrise

__all__ = ["one_way_sampled", "sampled"]


def one_way_sampled(
    curve: AbstractTradeoff, rate: float, resolution: int = 1024
) -> TradeoffBracket:
    """f_p = rate f + (1 - rate) Id, between two curves: what is composed."""
    p = float(check_probability(rate, "rate"))
    return bracket(curve, resolution).map(lambda f: _mixed(f, p))


def sampled(curve: AbstractTradeoff, rate: float, resolution: int = 1024) -> TradeoffBracket:
    """C_rate(f), between two curves: one sampled release, for both orders of the neighbours."""
    return one_way_sampled(curve, rate, resolution).map(symmetrise)


def _mixed(curve: DiscreteTradeoff, rate: float) -> DiscreteTradeoff:
    return DiscreteTradeoff(
        curve.p, rate * curve.q + (1.0 - rate) * curve.p, curve.rounding + 4e-16
    )
