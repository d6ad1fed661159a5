"""Private selection: the best of a secret random number of private trials.

Statement. Let one trial (a model and its noisy score) be (a, r)-Renyi DP and (e, d)-DP with
    exp(e) <= 1 + 1/(a-1). Draw K from the Poisson law of mean m, run K trials, release the one with
    the best score (nothing if K = 0). The release is (a, g)-Renyi DP with
        g = ln( exp(-m) + m exp((a-1)(r + m d)) ) / (a-1).
Proof. Order the outcomes by score; let Q be the law of a trial, q its probability of an outcome no
    better than y, f(s) = exp(m (s-1)) the generating function of K. The release has the law
    A(y) = integral of f' over the step of q at y = Q(y) times the mean of f' over that step.
    x^a y^(1-a) is convex, so A^a A'^(1-a) <= Q^a Q'^(1-a) times the mean over the step of
    f'(s)^a f'(s')^(1-a) = m exp(m (a s - (a-1) s' - 1)), with s, s' the probabilities of one
    randomised event under Q, Q'. For its complement p, p': a s - (a-1) s' - 1 = (a-1) p' - a p, and
    p' <= exp(e) p + d with (a-1) exp(e) <= a makes that at most (a-1) d. Summing over y gives
    m exp((a-1)(r + m d)); K = 0 adds exp(-m).
    For K from the truncated negative binomial law see `negative_binomial_selection_ps22`.
Validity: upper bound.
Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorem 6; the term of K = 0 is kept here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.gaussian import delta_bounds
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee, known_renyi
from tightrope.numerics.roots import crossing
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_positive

# Orders b over which the middle term of `binomial_selection` is minimised: all of them are valid.
_ORDERS = np.concatenate([np.linspace(1.05, 10.0, 60), np.geomspace(11.0, 2000.0, 40)])
_ROUNDING = 1e-12


def selected_renyi(
    order: FloatArray, renyi: FloatArray, failure: FloatArray, mean_trials: float
) -> FloatArray:
    """g of the statement, for a trial with these Renyi divergences and failure probabilities."""
    grown = math.log(mean_trials) + (order - 1.0) * (renyi + mean_trials * failure)
    return np.asarray(np.logaddexp(-mean_trials, grown) / (order - 1.0))


@final
@dataclass(frozen=True)
class _PoissonSelected:
    """The Renyi curve of a selection among trials."""

    trial: Guarantee
    mean_trials: float

    def upper(self, orders: FloatArray) -> FloatArray:
        levels = np.log1p(1.0 / (orders - 1.0)) * (1.0 - 1e-12)
        divergences = np.array([known_renyi(self.trial, order) for order in orders.tolist()])
        if isinstance(self.trial, GaussianGuarantee):  # all levels at once
            failures = np.asarray(delta_bounds(levels, self.trial.mu)[1])
        else:
            failures = np.array([self.trial.delta(level).upper for level in levels.tolist()])
        return selected_renyi(orders, divergences, failures, self.mean_trials)


def selection_guarantee(trial: Guarantee, mean_trials: float) -> RenyiGuarantee:
    """The guarantee of releasing the best of Poisson(mean_trials) trials."""
    mean = float(check_positive(mean_trials, "mean_trials"))
    curve = RenyiCurve.of(_PoissonSelected(trial, mean))
    return RenyiGuarantee(curve, trial.adjacency, Validity.BOUND)


@final
@dataclass(frozen=True)
class _BinomialSelected:
    """The Renyi curve where the number of trials has a truncated negative binomial law."""

    trial: Guarantee
    extra: float
    log_mean: float

    def upper(self, orders: FloatArray) -> FloatArray:
        own = np.array([known_renyi(self.trial, order) for order in np.ravel(orders).tolist()])
        added = self.extra + self.log_mean / (orders - 1.0)
        return (own.reshape(np.shape(orders)) + added) * (1.0 + _ROUNDING)


def binomial_selection(trial: Guarantee, mean: float, shape: float, gamma: float) -> RenyiGuarantee:
    """The guarantee of releasing the best of K trials, K of this law."""
    cost = [(1.0 - 1.0 / b) * known_renyi(trial, b) - math.log(gamma) / b for b in _ORDERS.tolist()]
    extra = float((1.0 + shape) * min(cost) * (1.0 + _ROUNDING))
    curve = RenyiCurve.of(_BinomialSelected(trial, extra, max(math.log(mean), 0.0)))
    return RenyiGuarantee(curve, trial.adjacency, Validity.BOUND)


def trial_mu(epsilon: float, delta: float, mean_trials: float, adjacency: Adjacency) -> float:
    """A mu such that selecting among mu-GDP trials is (epsilon, delta)-DP.

    Found with a closed-form conversion, so a few per cent below the largest such mu.
    """

    def excess(inverse: float) -> float:
        trial = GaussianGuarantee(1.0 / inverse, adjacency)
        quick = replace(selection_guarantee(trial, mean_trials), route="lemma1")
        return quick.epsilon(delta).upper - epsilon

    found = crossing(excess, 10.0 / epsilon, smallest=1e-3, largest=1e6, tolerance=1e-3)
    return 1.0 / float(found.below)
