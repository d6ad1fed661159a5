"""The noise and the coins of private convex learning, by tests with a false-alarm rate of 1e-6.

On a quadratic the law of the last iterate is an exact Gaussian, so its mean, its spread and the
true privacy between two neighbours are known in closed form.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tightrope.accounting import account
from tightrope.convex import (
    ArrayData,
    AveragedDescent,
    Entropy,
    LastIterateDescent,
    Problem,
    Scaling,
    Squared,
)

FALSE_ALARM = 1e-6
RUNS = 1500
STEPS, STEP_SIZE, NOISE = 12, 0.4, 3.0


def _problem(last_target: float = 1.0) -> Problem:
    """Ten people on a line; |weights| never comes near the radius, so nothing is clipped."""
    x = np.full((10, 1), 0.9)
    y = np.append(np.linspace(-1.0, 1.0, 9), last_target)
    loss = Squared(target_bound=1.0, radius=200.0)
    return Problem(ArrayData(x, y, Scaling(1.0, 0.0)), loss, strength=0.05)


def _run(problem: Problem, noise: float, seed: int) -> float:
    algorithm = LastIterateDescent(STEP_SIZE, noise_multiplier=noise, steps=STEPS)
    return float(algorithm.run(problem, Entropy(seed), np.zeros(1)).weights[0])


def _last_iterate_std(problem: Problem) -> float:
    row = float(problem.data.part(slice(0, 1)).pull_back(np.ones(1))[0])  # type: ignore[attr-defined]
    shrink = 1.0 - STEP_SIZE * (row**2 + problem.strength)
    per_step = STEP_SIZE * NOISE * problem.loss.slope_bound / 10
    return per_step * float(np.sqrt((1 - shrink ** (2 * STEPS)) / (1 - shrink**2)))


def _check_spread(sample: np.ndarray, std: float) -> None:
    statistic = float(np.sum((sample - sample.mean()) ** 2) / std**2)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(sample) - 1)
    assert low < statistic < high


def test_the_last_iterate_has_the_spread_of_its_noise() -> None:
    problem = _problem()
    sample = np.array([_run(problem, NOISE, seed) for seed in range(RUNS)])
    std = _last_iterate_std(problem)
    _check_spread(sample, std)
    centre = _run(problem, 0.0, 0)
    bar = stats.norm.isf(FALSE_ALARM / 2) * std / np.sqrt(RUNS)
    assert abs(sample.mean() - centre) < bar


def test_the_hidden_state_bound_is_above_the_true_privacy_loss() -> None:
    """True mu of two neighbours = distance of the means over the common spread."""
    problem, neighbour = _problem(1.0), _problem(-1.0)
    truth = abs(_run(problem, 0.0, 0) - _run(neighbour, 0.0, 0)) / _last_iterate_std(problem)
    algorithm = LastIterateDescent(STEP_SIZE, noise_multiplier=NOISE, steps=STEPS)
    certified = account(algorithm.process(problem)).guarantee(1e-5).gaussian_mu().upper
    assert 0.0 < truth <= certified


def test_one_full_batch_step_receives_the_noise_it_declares() -> None:
    problem = _problem()
    algorithm = AveragedDescent(1, STEP_SIZE, noise_multiplier=NOISE)
    runs = [algorithm.run(problem, Entropy(s), np.zeros(1)).weights[0] for s in range(RUNS)]
    _check_spread(np.array(runs), STEP_SIZE * NOISE * problem.loss.slope_bound / 10)


def test_unseeded_noise_is_standard_normal() -> None:
    draws = Entropy().normal((20_000,))
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_poisson_coins_have_their_rate(rate: float) -> None:
    hits = int(Entropy().included(50_000, rate).sum())
    assert stats.binomtest(hits, 50_000, rate).pvalue > FALSE_ALARM


def test_secret_numbers_are_uniform_with_both_ends() -> None:
    entropy = Entropy()
    counts = np.bincount([entropy.whole_number(0, 9) for _ in range(20_000)], minlength=10)
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
