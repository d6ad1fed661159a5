"""The lower end of shuffled batches: below the bound, above the Poisson number, and simulated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.process import Adjacency, NoisySGD, PoissonSampling, ShuffledSampling
from tightrope.report.account_view import account_view
from tightrope.theorems.epochs import largest_sum_test, least_epsilon

REPLACED = Adjacency.REPLACE_ONE


def shuffled(batches: int, noise: float, epochs: int, who: Adjacency = Adjacency.ADD_OR_REMOVE):
    return NoisySGD(ShuffledSampling(batches), noise, epochs * batches, who)


@pytest.mark.parametrize("who", list(Adjacency))
@pytest.mark.parametrize(
    ("batches", "noise", "epochs"), [(234, 1.1, 1), (50, 0.5, 1), (20, 2.0, 9)]
)
def test_between_poisson_and_the_bound(batches, noise, epochs, who) -> None:
    run = shuffled(batches, noise, epochs, who)
    least = least_epsilon(run, 1e-5)
    poisson = account(NoisySGD(PoissonSampling(1 / batches), noise, batches * epochs))
    assert poisson.epsilon(1e-5).upper < least <= account(run).epsilon(1e-5).upper


def test_the_mnist_setting() -> None:
    assert least_epsilon(shuffled(234, 1.1, 60), 1e-5) == pytest.approx(6.8688, abs=1e-3)
    assert least_epsilon(shuffled(234, 1.1, 60, REPLACED), 1e-5) == pytest.approx(14.1997, abs=1e-3)


def test_chances_are_those_of_the_largest_sum() -> None:
    """40,000 draws: the five deviations have a false alarm in two million."""
    rng, draws = np.random.default_rng(0), 40_000
    batches, mu, c = 6, 0.8, 1.9
    pair = largest_sum_test(batches, (2 * mu, mu), c)
    high = pair.masses[-1]
    chances = (high, high * math.exp(-pair.losses[-1]))
    for shift, chance in zip((2 * mu, mu), chances, strict=True):
        sums = rng.standard_normal((draws, batches))
        sums[np.arange(draws), rng.integers(batches, size=draws)] += shift
        seen = float(np.mean(sums.max(axis=1) > c))
        assert abs(seen - chance) < 5 * math.sqrt(chance * (1 - chance) / draws)


def test_nothing_is_said_of_other_batches() -> None:
    assert least_epsilon(NoisySGD(PoissonSampling(0.1), 1.0, 10), 1e-5) == 0.0
    assert least_epsilon(shuffled(1, 1.0, 5), 1e-5) == 0.0
    assert least_epsilon(NoisySGD(ShuffledSampling(10), 1.0, 9), 1e-5) == 0.0


def test_the_account_says_it() -> None:
    answer = account_view(account(shuffled(50, 1.0, 2)), 1e-5)["answer"]
    assert 0.0 < answer["epsilon"]["lower"] < answer["epsilon"]["upper"]
    assert "the truth is at least" in answer["words"]


def test_noise_next_to_nothing_has_a_lower_end_too() -> None:
    run = NoisySGD(ShuffledSampling(10), 1e-300, 10)
    found = account_view(account(run), 1e-5)["answer"]["epsilon"]
    assert found["lower"] <= (math.inf if found["upper"] == "infinity" else found["upper"])
