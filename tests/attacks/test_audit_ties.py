"""Hole K3: the one-run audit broke ties by the position in the list, which may know the coins.

Constant scores with the absent canaries listed first "proved" epsilon 5.38. The sibling: many runs
whose scores come sorted, where the first half chose the threshold and the second half measured.

Statistical checks run TRIALS audits at confidence 95 %. If exactly 5 % were wrong, more than LIMIT
would be with probability below 1e-6; the seeds are fixed, so a pass stays a pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from tightrope import GaussianMechanism
from tightrope.audit import audit_folder, audit_many_runs, audit_one_run, save_audit
from tightrope.audit.one_run import count_correct
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee

TRIALS = 300
LIMIT = int(binom.isf(1e-6, TRIALS, 0.05))
# how a list may be ordered by somebody who knows the coins
ORDERS = {
    "absent first": lambda coins: np.argsort(coins, kind="stable"),
    "present first": lambda coins: np.argsort(~coins, kind="stable"),
    "present outside": lambda coins: np.roll(np.argsort(coins, kind="stable"), len(coins) // 4),
    "as drawn": lambda coins: np.arange(len(coins)),
}


Order = Callable[[np.ndarray], np.ndarray]
in_every_order = pytest.mark.parametrize("ordered", ORDERS.values(), ids=ORDERS.keys())


@in_every_order
def test_constant_scores_prove_nothing(ordered: Order, tmp_path: Path) -> None:
    coins = np.random.default_rng(0).random(1000) < 0.5
    coins = coins[ordered(coins)]
    found = audit_one_run(np.zeros(1000), coins, delta=1e-5)
    assert found.epsilon_lower == 0.0 and found.mu_lower == 0.0
    assert not found.contradicts(GaussianGuarantee(0.01))
    save_audit(tmp_path, {"none": np.zeros(1000)}, coins, GaussianMechanism(9.0), delta=1e-5)
    assert audit_folder(tmp_path).audit.epsilon_lower == 0.0


@in_every_order
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_sorted_randomised_response_stays_below_its_epsilon(ordered: Order, epsilon: float) -> None:
    generator, wrong = np.random.default_rng(1), 0
    for _ in range(TRIALS):
        coins = generator.random(200) < 0.5
        coins = coins[ordered(coins)]
        kept = generator.random(200) < 1.0 / (1.0 + math.exp(-epsilon))
        found = audit_one_run(np.where(kept, coins, ~coins) * 1.0, coins, delta=0.0)
        wrong += found.epsilon_lower > epsilon
    assert wrong <= LIMIT


@in_every_order
@pytest.mark.parametrize("levels", [2, 4])
def test_few_distinct_scores_stay_below_the_truth(ordered: Order, levels: int) -> None:
    """The Gaussian mechanism, rounded to a few values: no less private than before."""
    from tightrope.audit.one_run import lines_of

    generator, mu, delta = np.random.default_rng(2), 1.0, 1e-3
    truth, wrong, wrong_mu, refuted = GaussianGuarantee(mu), 0, 0, 0
    most, lines = truth.epsilon(delta).upper, lines_of(truth, delta)
    for _ in range(TRIALS):
        coins = generator.random(100) < 0.5
        coins = coins[ordered(coins)]
        scores = np.digitize(coins * mu + generator.normal(size=100), np.linspace(0, 1, levels - 1))
        found = audit_one_run(scores, coins, delta=delta)
        wrong += found.epsilon_lower > most
        wrong_mu += found.mu_lower > mu
        refuted += any(test.refutes(lines) for test in found.evidence)
    assert max(wrong, wrong_mu, refuted) <= LIMIT


def test_no_order_of_equal_scores_has_fewer_right_guesses() -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        coins, scores = generator.random(6) < 0.5, generator.integers(0, 3, 6).astype(float)
        for guesses in range(1, 7):
            orders = [
                np.array(p) for p in itertools.permutations(range(6)) if _sorted(scores[list(p)])
            ]
            low, high = guesses // 2, guesses - guesses // 2
            least = min(
                int(np.sum(coins[order[6 - high :]]) + np.sum(~coins[order[:low]]))
                for order in orders
            )
            assert count_correct(scores, coins, guesses) == least


def _sorted(values: np.ndarray) -> bool:
    return bool(np.all(np.diff(values) >= 0))


def test_infinite_and_signed_zero_scores_are_ties_too() -> None:
    coins = np.arange(40) >= 20
    for scores in (np.where(coins, 0.0, -0.0), np.full(40, math.inf), np.full(40, -math.inf)):
        assert audit_one_run(scores, coins, delta=1e-5).epsilon_lower == 0.0


@pytest.mark.parametrize("way", ["present up, absent down", "both up", "as drawn"])
def test_sorted_scores_of_many_runs_stay_below_the_truth(way: str) -> None:
    generator, mu, delta = np.random.default_rng(4), 0.5, 1e-3
    truth, wrong, wrong_mu = GaussianGuarantee(mu).epsilon(delta).upper, 0, 0
    for trial in range(TRIALS):
        present, absent = generator.normal(size=40) + mu, generator.normal(size=40)
        if way != "as drawn":
            present, absent = np.sort(present), np.sort(absent)
        if way == "present up, absent down":
            absent = absent[::-1]
        found = audit_many_runs(present, absent, delta=delta, seed=trial)
        wrong += found.epsilon_lower > truth
        wrong_mu += found.mu_lower > mu
    assert max(wrong, wrong_mu) <= LIMIT


def test_constant_scores_of_many_runs_prove_nothing() -> None:
    found = audit_many_runs(np.ones(50), np.ones(50), delta=1e-5)
    assert found.epsilon_lower == 0.0 and found.mu_lower == 0.0
