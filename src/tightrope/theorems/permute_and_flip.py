"""Permute-and-flip, by Laplace noise.

Statement: permute-and-flip of parameter epsilon is dominated by Laplace(0, 1) against
    Laplace(epsilon, 1).
Proof: it is report-noisy-max with exponential noise: with s_i = epsilon score_i/(2 sensitivity) and
    independent E_i of rate 1, the candidate of the largest s_i + E_i wins (Ding et al. 2021). Let A
    be a set of candidates, X = max over A of s_i + E_i, Y the same over the others, and
    p(t) = P(X + t > Y). The chance of a winner in A is p(0); a neighbour moves each s_i by at most
    epsilon/2, so its chance lies between p(-epsilon) and p(epsilon), as p rises.
    At a point y above all s_i, with a_i = e^(s_i - y), X has the density
    sum_i a_i prod_{j /= i} (1 - a_j), the chance of exactly one success of independent trials of
    chances a_i, and P(X > y) is that of at least one: a hazard rate of at most 1. (Below a point
    s_i the density is 0.) So p' = E f_X(Y - t) <= E P(X > Y - t) = p, and with X and Y exchanged
    p' <= 1 - p. Laplace noise has f(F^-1(v)) = min(v, 1 - v), so F^-1(p(t)) rises by at most t: a
    chance v becomes at most F(F^-1(v) + epsilon). That is the best that a test of Laplace(epsilon)
    against Laplace(0) reaches at this level, for every set A. QED
Conditions: every score moves by at most its sensitivity between neighbours.
Validity: upper bound; the profile of one release is attained by two candidates, of which E_1 - E_2
    is Laplace noise. Composed adaptively it stays a bound.
Source: McKenna, Sheldon 2020 (arXiv:2010.12603) for the mechanism; Ding et al. 2021
    (arXiv:2105.07260), Theorem 4 for exponential noise; the domination: the proof above.
Error: none here; the numerical composition states its own.
Vectors: none; brute force over small sets of candidates in the tests.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.pairs import LaplacePair
from tightrope.process import PermuteAndFlip, Process
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Permute-and-flip, as Laplace noise"
SOURCE = Source("McKenna, Sheldon 2020; Ding et al. 2021", "and the page's proof", "ms20")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if isinstance(process, PermuteAndFlip):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "PermuteAndFlip", process)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, PermuteAndFlip)
    if process.epsilon == 0.0:
        return GaussianGuarantee(0.0, process.adjacency, Validity.EXACT)
    orders = (((LaplacePair((1.0 - 1e-15) / process.epsilon), 1),),)
    return LossGuarantee(orders, process.adjacency, VALIDITY, attained=orders)
