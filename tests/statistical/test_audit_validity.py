"""Audits of mechanisms with known privacy: the lower bound exceeds the truth no more than stated.

Each check runs 1,000 audits at confidence 95 %. If exactly 5 % were wrong, more than LIMIT would be
with probability below 1e-6; the seeds are fixed, so a pass stays a pass.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.audit import audit_many_runs, audit_one_run
from tightrope.audit.many_runs import rates_of
from tightrope.audit.training_attack import log_likelihood_ratio
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee

TRIALS = 1000
LIMIT = int(binom.isf(1e-6, TRIALS, 0.05))


def one_run_scores(
    mechanism: str, strength: float, canaries: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(TRIALS, canaries) scores and coins of canaries that do not disturb each other."""
    generator = np.random.default_rng(seed)
    bits = generator.random((TRIALS, canaries)) < 0.5
    if mechanism == "gaussian":
        return bits * strength + generator.normal(size=bits.shape), bits
    kept = generator.random(bits.shape) < 1 / (1 + math.exp(-strength))  # randomised response
    # answers of a coin of their own break the ties
    return np.where(kept, bits, ~bits) + 0.1 * generator.random(bits.shape), bits


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_one_run_on_the_gaussian_mechanism(mu: float) -> None:
    delta, truth = 1e-3, GaussianGuarantee(mu).epsilon(1e-3).upper
    scores, bits = one_run_scores("gaussian", mu, 60, seed=1)
    audits = [audit_one_run(s, b, delta=delta) for s, b in zip(scores, bits, strict=True)]
    assert sum(a.epsilon_lower > truth for a in audits) <= LIMIT
    assert sum(a.mu_lower > mu for a in audits) <= LIMIT
    if mu > 1:  # and it is not empty
        assert np.median([a.epsilon_lower for a in audits]) > 0.3


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_run_on_randomised_response_at_its_own_epsilon(epsilon: float) -> None:
    """The bound is tight here: the guesses of all canaries are exactly binomial."""
    scores, bits = one_run_scores("response", epsilon, 80, seed=2)
    wrong = sum(
        audit_one_run(s, b, delta=0.0, guessed=(1.0,)).epsilon_lower > epsilon
        for s, b in zip(np.round(scores), bits, strict=True)
    )
    assert wrong <= LIMIT


def test_one_run_is_not_vacuous_on_randomised_response() -> None:
    scores, bits = one_run_scores("response", 2.0, 2000, seed=3)
    assert audit_one_run(np.round(scores[0]), bits[0], delta=0.0).epsilon_lower > 1.6


def test_one_run_when_canaries_leak_all_together() -> None:
    """(0, 0.03)-DP: everything is published with chance 0.03, else nothing. Fully dependent."""
    generator, delta, wrong = np.random.default_rng(4), 0.03, 0
    bits = generator.random((TRIALS, 40)) < 0.5
    leaked = generator.random(TRIALS) < delta
    scores = np.where(leaked[:, None], bits, 0.0) + 0.1 * generator.random(bits.shape)
    for row, coins in zip(scores, bits, strict=True):
        wrong += audit_one_run(row, coins, delta=delta).epsilon_lower > 0.0
    assert leaked.sum() > 15 and wrong <= LIMIT


def sampled_releases(
    steps: int, rate: float, noise: float, replaced: bool, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(TRIALS, steps, canaries) releases of canaries in a run with Poisson batches, and coins."""
    generator, canaries = np.random.default_rng(seed), 60
    bits = generator.random((TRIALS, canaries)) < 0.5
    drawn = generator.random((TRIALS, steps, canaries)) < rate
    shift = np.where(bits, 1.0, -1.0 if replaced else 0.0)[:, None, :]
    return drawn * shift + noise * generator.normal(size=drawn.shape), bits


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_one_run_on_noisy_sgd_by_its_likelihood(noise: float) -> None:
    """The best attack there is on Poisson-sampled steps, against the exact accountant's epsilon."""
    steps, rate, delta = 10, 0.2, 1e-3
    truth = account(NoisySGD(PoissonSampling(rate), noise, steps)).epsilon(delta).upper
    releases, bits = sampled_releases(steps, rate, noise, replaced=False, seed=8)
    found = [
        audit_one_run(log_likelihood_ratio(x, rate, noise), b, delta=delta).epsilon_lower
        for x, b in zip(releases, bits, strict=True)
    ]
    assert sum(bound > truth for bound in found) <= LIMIT
    if noise < 1.0:
        assert np.median(found) > 0.3


def test_one_run_when_records_are_replaced() -> None:
    """Full batches: 2/noise per step, Gaussian DP of mu = 2 sqrt(steps)/noise."""
    steps, noise, delta = 4, 4.0, 1e-3
    truth = GaussianGuarantee(2.0 * steps**0.5 / noise)
    releases, bits = sampled_releases(steps, 1.0, noise, replaced=True, seed=9)
    found = [
        audit_one_run(log_likelihood_ratio(x, 1.0, noise, replaced=True), b, delta=delta)
        for x, b in zip(releases, bits, strict=True)
    ]
    assert sum(a.epsilon_lower > truth.epsilon(delta).upper for a in found) <= LIMIT
    assert sum(a.mu_lower > truth.mu for a in found) <= LIMIT


def test_many_runs_on_the_gaussian_mechanism() -> None:
    generator, mu, delta = np.random.default_rng(5), 1.0, 1e-3
    truth, wrong_epsilon, wrong_mu = GaussianGuarantee(mu).epsilon(delta).upper, 0, 0
    for _ in range(TRIALS):  # the threshold is chosen anew in every audit
        found = audit_many_runs(
            generator.normal(size=40) + mu, generator.normal(size=40), delta=delta
        )
        wrong_epsilon += found.epsilon_lower > truth
        wrong_mu += found.mu_lower > mu
    assert wrong_epsilon <= LIMIT and wrong_mu <= LIMIT


def test_many_runs_at_the_worst_threshold_of_a_gaussian() -> None:
    """A fixed threshold, where mu is tight: 1,000 audits of 400 runs."""
    generator, mu = np.random.default_rng(6), 1.0
    hits = generator.binomial(200, 0.5, size=TRIALS)  # threshold at mu: TPR 1/2
    alarms = generator.binomial(200, float(1 - 0.8413447460685429), size=TRIALS)
    found = [rates_of(int(a), 200, int(h), 200, 0.95) for a, h in zip(alarms, hits, strict=True)]
    assert sum(rates.mu_lower() > mu for rates in found) <= LIMIT
    assert np.median([rates.mu_lower() for rates in found]) > 0.6


def test_many_runs_on_randomised_response() -> None:
    generator, epsilon = np.random.default_rng(7), 1.0
    keep = 1 / (1 + math.exp(-epsilon))
    hits = generator.binomial(500, keep, size=TRIALS)
    alarms = generator.binomial(500, 1 - keep, size=TRIALS)
    found = [rates_of(int(a), 500, int(h), 500, 0.95) for a, h in zip(alarms, hits, strict=True)]
    assert sum(rates.epsilon_lower(0.0) > epsilon for rates in found) <= LIMIT
    assert np.median([rates.epsilon_lower(0.0) for rates in found]) > 0.7
