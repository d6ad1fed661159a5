"""The best of a secret Poisson number of private trials, by their privacy profile.

Statement: if one trial (a result and its score) is mu-Gaussian DP with the profile d(eps), the best
    of Poisson(m) trials has, for eps >= 0,
        delta(eps) <= m exp(-m) d(eps - m T(1)) + int_0^1 m^2 exp(-m p) d(eps - m T(p)) dp,
    where T(p) is the largest of Phi(Phi^-1(u) + mu) - u over 0 <= u <= p.
Proof: break ties by an independent uniform number; leaving it out afterwards is post-processing.
    Let Q and Q' be the laws of a trial on two neighbours, p(y) and p'(y) the probabilities of an
    outcome better than y. Better outcomes come Poisson(m p) times, so the best one has the density
    A(y) = m Q(y) exp(-m p(y)), and no trial at all the probability exp(-m) under both. A trial is
    mu-GDP: p' <= Phi(Phi^-1(p) + mu), hence p' - p <= T(p), and
        (A - e^eps A')_+ <= m exp(-mp) (Q - e^x(p) Q')_+,   x(p) = eps - m T(p).
    x falls with p, so the integral J(p) of the last factor over the outcomes with p(y) <= p is at
    most that of (Q - e^x(p) Q')_+ over all of them, which is at most d(x(p)). Integrate exp(-mp)
    against J by parts.
Conditions: trials independent and identically distributed, each mu-Gaussian DP with its score; the
    number of trials and the trials not chosen stay secret.
Validity: upper bound.
Source: Koskela, Redberg, Wang 2024 (arXiv:2402.06137) for selection by profiles; the bound and its
    proof are as above.
Error: the integral from above, cell by cell (the weight of a cell times d at its right end); below
    2 % of delta. Rounding is taken outward.
Vectors: none; held against exact selections in tests/unit/theorems/test_selection_profile.py.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtr, ndtri

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian.profile import delta_bounds
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.process import Process
from tightrope.process.selection import PoissonSelection
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require
from tightrope.validate import FloatArray

NAME = "Selection among a secret Poisson number of trials, by their profile"
SOURCE = Source("Koskela, Redberg, Wang 2024", "selection by profiles", "krw24")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD

_CELLS, _FIRST = 2000, 1e-9  # of the integral, and where the second cell begins
_ROUNDING = 1e-12


def applies(process: Process) -> Refusal | None:
    if isinstance(process, PoissonSelection):
        return other_neighbours(NAME, process, RELATIONS)
    return foreign(NAME, "PoissonSelection", process)


def guarantee(process: PoissonSelection) -> Guarantee:
    require(applies(process))
    # by name, not as a closure: a fitted search is pickled with its guarantee
    bound = partial(_delta_upper, process.trial_mu, process.mean_trials)
    return ProfileGuarantee(bound, process.adjacency)


def _delta_upper(mu: float, mean: float, epsilon: float) -> float:
    weights, moved = _cells(mu, mean)
    found = weights @ delta_bounds(epsilon - moved, mu)[1]
    return min(1.0, float(found) * (1.0 + _ROUNDING) + mean * mean * 1e-300)


@lru_cache(maxsize=64)
def _cells(mu: float, mean: float) -> tuple[FloatArray, FloatArray]:
    """Of each cell of the integral: its weight, and how far epsilon is moved at its right end."""
    p = np.append(0.0, np.geomspace(_FIRST, 1.0, _CELLS))
    weights = np.append(-np.diff(mean * np.exp(-mean * p)), mean * math.exp(-mean))
    moved = mean * np.append(_most_moved(p[1:], mu), _most_moved(p[-1:], mu)) + _ROUNDING
    return weights, moved


def _most_moved(p: FloatArray, mu: float) -> FloatArray:
    """T(p): it rises up to Phi(-mu/2) and stays there."""
    u = np.minimum(p, ndtr(-0.5 * mu))
    return np.asarray((ndtr(ndtri(u) + mu) - u) * (1.0 + _ROUNDING))
