"""The best of a secret Poisson number of private trials.

Statement: if one trial (a result and its score) is (a, r)-Renyi DP and (e, d)-DP with exp(e) <=
    1 + 1/(a-1), the best of Poisson(m) trials is (a, g)-Renyi DP with
        g = ln( exp(-m) + m exp((a-1)(r + m d)) ) / (a-1).
Conditions: trials independent and identically distributed, each mu-Gaussian DP with its score; the
    number of trials and the trials not chosen stay secret.
Validity: upper bound.
Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorem 6; the proof, with the term of no trial
    at all, is in tightrope.guarantee.selection.
Error: rounding of the formula, and that of the conversion.
Vectors: none; held against exact laws in tests/unit/estimators/test_private_search.py.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.selection import selection_guarantee
from tightrope.process import Process
from tightrope.process.selection import PoissonSelection
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Selection among a secret Poisson number of trials"
SOURCE = Source("Papernot, Steinke 2022", "Theorem 6", "ps22")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD


def applies(process: Process) -> Refusal | None:
    if isinstance(process, PoissonSelection):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "PoissonSelection", process)


def guarantee(process: PoissonSelection) -> Guarantee:
    require(applies(process))
    trial = GaussianGuarantee(process.trial_mu, process.adjacency)
    return selection_guarantee(trial, process.mean_trials)
