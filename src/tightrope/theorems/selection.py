"""The best of a secret number of private trials."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, final

import numpy as np
from scipy.special import ndtr, ndtri

from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.compose import compose
from tightrope.guarantee.gaussian import delta_bounds
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee
from tightrope.guarantee.selection import binomial_selection, selection_guarantee
from tightrope.process import NegativeBinomialSelection, Process, RepeatAndSelect, parts_of
from tightrope.process.selection import PoissonSelection, mean_trials
from tightrope.theorems.base import (
    ONE_RECORD,
    Proved,
    Refusal,
    Source,
    Theorem,
)
from tightrope.theorems.discrete_gaussian import DiscreteGaussianVectorTheorem
from tightrope.theorems.listed_laws import ListedLaws
from tightrope.theorems.releases import (
    Declared,
    ExponentialMechanismDdr20,
    GaussianGdpDrs19,
    PermuteAndFlipTheorem,
    SingleReleasesExact,
)
from tightrope.theorems.sampled_releases import PoissonReleasesExact
from tightrope.theorems.sampling import PoissonGaussianExactZdw22, PoissonReplaceOneExact
from tightrope.validate import FloatArray


@final
class PoissonSelectionPs22(Proved):
    """The best of a secret Poisson number of private trials.

    Statement: if one trial (a result and its score) is (a, r)-Renyi DP and (e, d)-DP with exp(e) <=
        1 + 1/(a-1), the best of Poisson(m) trials is (a, g)-Renyi DP with
            g = ln( exp(-m) + m exp((a-1)(r + m d)) ) / (a-1).
    Conditions: trials independent and identically distributed, each mu-Gaussian DP with its score;
        the number of trials and the trials not chosen stay secret.
    Validity: upper bound.
    Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorem 6; the proof, with the term of no
        trial at all, is in tightrope.guarantee.selection.
    Error: rounding of the formula, and that of the conversion.
    Vectors: none; held against exact laws in tests/unit/estimators/test_private_search.py.
    """

    NAME = "Selection among a secret Poisson number of trials"
    SOURCE = Source("Papernot, Steinke 2022", "Theorem 6", "ps22")
    RELATIONS = ONE_RECORD
    OF = (PoissonSelection,)

    @classmethod
    def proved(cls, process: PoissonSelection) -> Guarantee:
        trial = GaussianGuarantee(process.trial_mu, process.adjacency)
        return selection_guarantee(trial, process.mean_trials)


@final
class PoissonSelectionProfile(Proved):
    """The best of a secret Poisson number of private trials, by their privacy profile.

    Statement: if one trial (a result and its score) is mu-Gaussian DP with the profile d(eps), the
        best of Poisson(m) trials has, for eps >= 0,
            delta(eps) <= m exp(-m) d(eps - m T(1)) + int_0^1 m^2 exp(-m p) d(eps - m T(p)) dp,
        where T(p) is the largest of Phi(Phi^-1(u) + mu) - u over 0 <= u <= p.
    Proof: break ties by an independent uniform number; leaving it out afterwards is
        post-processing. Let Q and Q' be the laws of a trial on two neighbours, p(y) and p'(y) the
        probabilities of an outcome better than y. Better outcomes come Poisson(m p) times, so the
        best one has the density A(y) = m Q(y) exp(-m p(y)), and no trial at all the probability
        exp(-m) under both. A trial is mu-GDP: p' <= Phi(Phi^-1(p) + mu), hence p' - p <= T(p), and
            (A - e^eps A')_+ <= m exp(-mp) (Q - e^x(p) Q')_+,   x(p) = eps - m T(p).
        x falls with p, so the integral J(p) of the last factor over the outcomes with p(y) <= p is
        at most that of (Q - e^x(p) Q')_+ over all of them, which is at most d(x(p)). Integrate
        exp(-mp) against J by parts.
    Conditions: trials independent and identically distributed, each mu-Gaussian DP with its score;
        the number of trials and the trials not chosen stay secret.
    Validity: upper bound.
    Source: Koskela, Redberg, Wang 2024 (arXiv:2402.06137) for selection by profiles; the bound and
        its proof are as above.
    Error: the integral from above, cell by cell (the weight of a cell times d at its right end);
        below 2 % of delta. Rounding is taken outward.
    Vectors: none; held against exact selections in tests/unit/theorems/test_selection_profile.py.
    """

    NAME = "Selection among a secret Poisson number of trials, by their profile"
    SOURCE = Source("Koskela, Redberg, Wang 2024", "selection by profiles", "krw24")
    RELATIONS = ONE_RECORD
    OF = (PoissonSelection,)

    @classmethod
    def proved(cls, process: PoissonSelection) -> Guarantee:
        # by name, not as a closure: a fitted search is pickled with its guarantee
        bound = partial(_delta_upper, process.trial_mu, process.mean_trials)
        return ProfileGuarantee(bound, process.adjacency)


_CELLS, _FIRST = 2000, 1e-9  # of the integral, and where the second cell begins
_ROUNDING = 1e-12


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


@final
class NegativeBinomialSelectionPs22(Proved):
    """The best of a secret number of private trials, which has a truncated negative binomial law.

    Statement: one trial is (a, g(a))-Renyi DP for every order a. K trials are run, K from the
        truncated negative binomial law (shape, gamma) of mean m, and the best is released. The
        release is (a, G)-Renyi DP with, for every order b > 1,
            G = g(a) + (1 + shape) ( (1 - 1/b) g(b) + ln(1/gamma)/b ) + ln(m)/(a-1).
        A pure epsilon-DP trial gives (2 + shape) epsilon in the limit: 3 epsilon for the geometric
        law (shape 1; Liu and Talwar 2019), 2 epsilon for the logarithmic one (shape 0).
    Proof: A release y has the law Q(y) times the mean of f' over the step of q, the probability of
        an outcome no better, at y (f the generating function of K); by convexity of x^a y^(1-a) the
        divergence gains at most the maximum of f'(q)^a f'(q')^(1-a). Here f'(q) = m
        (gamma/p)^(1+shape) with p = 1 - (1-gamma) q, the probability of a randomised event, in
        [gamma, 1]. Renyi DP of order b gives p' <= (p e^g(b))^(1-1/b), so p'^(a-1) p^-a is at most
        e^((a-1)(1-1/b) g(b)) gamma^(-1-(a-1)/b).
    Conditions: trials independent and identically distributed, each mu-Gaussian DP with its score;
        the number of trials and the trials not chosen stay secret.
    Validity: upper bound.
    Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorem 2 and Definition 1.
    Error: rounding of the formula, and that of the conversion; gamma is rounded down and its mean
        taken for m, which raises the bound.
    Vectors: none; held against exact selections in tests/unit/search/test_selection.py.
    """

    NAME = "Selection among a secret negative binomial number of trials"
    SOURCE = Source("Papernot, Steinke 2022", "Theorem 2", "ps22")
    RELATIONS = ONE_RECORD
    OF = (NegativeBinomialSelection,)

    @classmethod
    def proved(cls, process: NegativeBinomialSelection) -> Guarantee:
        trial = GaussianGuarantee(process.trial_mu, process.adjacency)
        gamma = process.gamma
        mean = max(process.mean_trials, mean_trials(process.shape, gamma)) * (1.0 + 1e-12)
        return binomial_selection(trial, mean, process.shape, gamma)


@final
class RepeatAndSelectTheorem(Proved):
    """The best of a secret number of runs of any release whose Renyi divergences are known.

    Statement: one trial (a result and its score) is (a, r(a))-Renyi DP for every order a, and (e,
        d)-DP with exp(e) <= 1 + 1/(a-1). The best of Poisson(m) trials is (a, g)-Renyi DP with
            g = ln( exp(-m) + m exp((a-1)(r(a) + m d)) ) / (a-1),
        and the best of K trials, K from the truncated negative binomial law (shape, gamma) of mean
        m, with, for every order b > 1,
            g = r(a) + (1 + shape) ( (1 - 1/b) r(b) + ln(1/gamma)/b ) + ln(m)/(a-1).
    Conditions: trials independent and identically distributed, the score part of the release that
        is accounted for; the number of trials and the trials not chosen stay secret.
    Validity: upper bound.
    Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorems 2 and 6; proofs as on the pages of
        selection among Gaussian trials, which use nothing else of a trial.
    Error: rounding of the formula, and that of the conversion.
    Vectors: none; held against exact selections in tests/unit/theorems/test_given.py.
    """

    NAME = "Selection among a secret number of trials of any kind"
    SOURCE = Source("Papernot, Steinke 2022", "Theorems 2 and 6", "ps22")
    RELATIONS = ONE_RECORD
    OF = (RepeatAndSelect,)

    @classmethod
    def condition(cls, process: RepeatAndSelect) -> Refusal | None:
        unknown = [part for part in parts_of(process.trial) if _theorem(part) is None]
        if not unknown:
            return None
        return Refusal(
            f"{cls.NAME} needs trials of single releases, or of steps on Poisson or full batches; "
            f"got {unknown[0]!r:.200}. Declare what is proved about it (DeclaredRenyi)."
        )

    @classmethod
    def proved(cls, process: RepeatAndSelect) -> Guarantee:
        parts = parts_of(process.trial)
        trial = compose([_theorem(part).guarantee(part) for part in parts], list(parts.values()))
        if process.shape is None:
            return selection_guarantee(trial, process.mean_trials)
        gamma = process.law.gamma
        mean = max(process.mean_trials, mean_trials(process.shape, gamma)) * (1.0 + 1e-12)
        return binomial_selection(trial, mean, process.shape, gamma)


_TRIALS: tuple[Theorem, ...] = (
    GaussianGdpDrs19,
    SingleReleasesExact,
    Declared,
    ListedLaws,
    PoissonGaussianExactZdw22,
    PoissonReplaceOneExact,
    ExponentialMechanismDdr20,
    PermuteAndFlipTheorem,
    PoissonReleasesExact,
    DiscreteGaussianVectorTheorem,
)


def _theorem(part: Process) -> Any:
    return next((theorem for theorem in _TRIALS if theorem.applies(part) is None), None)
