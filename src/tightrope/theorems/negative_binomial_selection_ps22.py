"""The best of a secret number of private trials, which has a truncated negative binomial law.

Statement: one trial is (a, g(a))-Renyi DP for every order a. K trials are run, K from the truncated
    negative binomial law (shape, gamma) of mean m, and the best is released. The release is
    (a, G)-Renyi DP with, for every order b > 1,
        G = g(a) + (1 + shape) ( (1 - 1/b) g(b) + ln(1/gamma)/b ) + ln(m)/(a-1).
    A pure epsilon-DP trial gives (2 + shape) epsilon in the limit: 3 epsilon for the geometric law
    (shape 1; Liu and Talwar 2019), 2 epsilon for the logarithmic one (shape 0).
Proof: A release y has the law Q(y) times the mean of f' over the step of q, the probability of an
    outcome no better, at y (f the generating function of K); by convexity of x^a y^(1-a) the
    divergence gains at most the maximum of f'(q)^a f'(q')^(1-a). Here f'(q) = m (gamma/p)^(1+shape)
    with p = 1 - (1-gamma) q, the probability of a randomised event, in [gamma, 1]. Renyi DP of
    order b gives p' <= (p e^g(b))^(1-1/b), so p'^(a-1) p^-a is at most
    e^((a-1)(1-1/b) g(b)) gamma^(-1-(a-1)/b).
Conditions: trials independent and identically distributed, each mu-Gaussian DP with its score; the
    number of trials and the trials not chosen stay secret.
Validity: upper bound.
Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorem 2 and Definition 1.
Error: rounding of the formula, and that of the conversion; gamma is rounded down and its mean taken
    for m, which raises the bound.
Vectors: none; held against exact selections in tests/unit/search/test_selection.py.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.selection import binomial_selection
from tightrope.process import NegativeBinomialSelection, Process
from tightrope.process.selection import mean_trials
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Selection among a secret negative binomial number of trials"
SOURCE = Source("Papernot, Steinke 2022", "Theorem 2", "ps22")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if isinstance(process, NegativeBinomialSelection):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "NegativeBinomialSelection", process)


def guarantee(process: NegativeBinomialSelection) -> Guarantee:
    require(applies(process))
    trial = GaussianGuarantee(process.trial_mu, process.adjacency)
    gamma = process.gamma
    mean = max(process.mean_trials, mean_trials(process.shape, gamma)) * (1.0 + 1e-12)
    return binomial_selection(trial, mean, process.shape, gamma)
