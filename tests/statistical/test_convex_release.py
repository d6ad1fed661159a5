"""Every private minimiser releases what its process says: noise, steps, rows used, secret lengths.

With a linear loss nothing contracts, so the weights released are a sum of the rows that were used
and of the noise of each step. Row i is the i-th unit vector: its coordinate shows whether row i was
used. No row touches the other coordinates: there the noise is seen alone, thousands of times in one
run. What is expected is computed from the process, which is what the account reads.

False-alarm rate: at most 1e-6 for each test. A deviation wrong by 4 % is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pytest
from scipy import stats

from tightrope.convex import (
    ArrayData,
    AveragedDescent,
    Budget,
    CentredDescent,
    CyclicDescent,
    Entropy,
    LastIterateDescent,
    PoissonDescent,
    Problem,
    Scaling,
    SkipDescent,
    StopDescent,
)
from tightrope.convex.choose import ALGORITHMS
from tightrope.convex.learn import learn
from tightrope.process import Adjacency

FALSE_ALARM = 1e-6
ROWS, FREE = 11, 20_000  # records, and coordinates that no record touches
STEP_SIZE, NOISE = 0.5, 0.01


@final
@dataclass(frozen=True)
class Linear:
    """target * score: the slope does not depend on the weights."""

    outputs: int = 1
    slope_bound: float = 1.0
    curvature_bound: float = 1e-3
    convex: bool = True

    def value(self, scores: Any, targets: Any) -> Any:
        return targets * scores

    def slope(self, scores: Any, targets: Any) -> Any:
        return np.asarray(targets, dtype=np.float64)


def _data(rows: int, free: int, first: int = 0) -> ArrayData:
    features = np.zeros((rows, first + rows + free))
    features[np.arange(rows), first + np.arange(rows)] = 1.0
    return ArrayData(features, np.ones(rows), Scaling(1.0, 0.0))


def _problem(rows: int = ROWS, free: int = FREE, **changes: Any) -> Problem:
    return Problem(_data(rows, free), Linear(), **changes)


def _weights(algorithm: Any, problem: Problem, entropy: Entropy | None = None) -> Any:
    return algorithm.run(problem, entropy or Entropy(), np.zeros(problem.shape)).weights


def _check_normal(sample: Any, std: float) -> None:
    """Independent N(0, std^2): size, shape and neighbours."""
    level, scaled = FALSE_ALARM / 3, np.asarray(sample) / std
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], len(scaled))
    assert low < scaled @ scaled < high
    assert stats.kstest(scaled, "norm").pvalue > level
    assert stats.pearsonr(scaled[:-1], scaled[1:]).pvalue > level


def _used(weights: Any, rows: int, unit: float) -> Any:
    """How often each row was used, by what it added: `unit` each time, and little noise."""
    counts = -weights[:rows] / unit
    assert np.abs(counts - np.rint(counts)).max() < 0.4
    return np.rint(counts).astype(int)


# --- the last iterate only ------------------------------------------------------------------------
HIDDEN = [
    LastIterateDescent(STEP_SIZE, NOISE, steps=7),
    CyclicDescent(STEP_SIZE, NOISE),
    CyclicDescent(STEP_SIZE, NOISE, batch_size=4, epochs=3),
    CyclicDescent(STEP_SIZE, NOISE, epochs=2),
]


@pytest.mark.parametrize("cryptographic", [False, True])
@pytest.mark.parametrize("algorithm", HIDDEN, ids=["full-batch", "pnsgd", "batches", "epochs"])
def test_each_step_adds_the_noise_of_the_process(algorithm: Any, cryptographic: bool) -> None:
    problem = _problem()
    process = algorithm.process(problem)
    cyclic = isinstance(algorithm, CyclicDescent)
    steps = process.batches_per_epoch * process.epochs if cyclic else process.steps
    size = process.batch_size if cyclic else process.records
    passes = process.epochs if cyclic else process.steps
    weights = _weights(algorithm, problem, Entropy(cryptographic=cryptographic))
    _check_normal(weights[ROWS:], process.step_size * process.noise_std * np.sqrt(steps))
    assert (_used(weights, ROWS, STEP_SIZE / size) == passes).all()


def test_steps_on_public_rows_add_noise_too() -> None:
    """The theorem about public rows that come last counts the noise of their steps."""
    problem = Problem(_data(ROWS, FREE + 5), Linear(), public=_data(5, FREE, first=ROWS))
    algorithm = CyclicDescent(STEP_SIZE, NOISE)
    process = algorithm.process(problem)
    assert process.batches_per_epoch == ROWS + 5
    weights = _weights(algorithm, problem)
    std = process.step_size * process.noise_std * np.sqrt(process.batches_per_epoch)
    _check_normal(weights[ROWS + 5 :], std)
    assert (_used(weights, ROWS + 5, STEP_SIZE) == 1).all()


@pytest.mark.parametrize("algorithm", [SkipDescent, StopDescent])
def test_secret_runs_add_noise_at_each_row_that_they_use(algorithm: Any) -> None:
    problem = _problem()
    secret = algorithm(STEP_SIZE, NOISE)
    process = secret.process(problem)
    for _ in range(4):
        weights = _weights(secret, problem)
        used = _used(weights, ROWS, STEP_SIZE)
        assert set(used) <= {0, 1}
        _check_normal(weights[ROWS:], STEP_SIZE * process.noise_std * np.sqrt(used.sum()))


def test_skip_starts_at_a_secret_row_and_goes_on_to_the_last() -> None:
    """The first row used is uniform on 0 .. records // 2, as the process is defined."""
    problem, runs = _problem(free=0), 3000
    starts = []
    for _ in range(runs):
        used = _used(_weights(SkipDescent(STEP_SIZE, NOISE), problem), ROWS, STEP_SIZE)
        starts.append(int(np.argmax(used)))
        assert (used == (np.arange(ROWS) >= starts[-1])).all()
    counts = np.bincount(starts, minlength=ROWS // 2 + 1)
    assert len(counts) == ROWS // 2 + 1
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_stop_begins_at_the_first_row_and_ends_after_a_secret_one() -> None:
    """The number of rows used is uniform on 1 .. records, as the process is defined."""
    problem, runs = _problem(free=0), 3000
    ends = []
    for _ in range(runs):
        used = _used(_weights(StopDescent(STEP_SIZE, NOISE), problem), ROWS, STEP_SIZE)
        ends.append(int(used.sum()))
        assert (used == (np.arange(ROWS) < ends[-1])).all()
    counts = np.bincount(ends, minlength=ROWS + 1)
    assert counts[0] == 0 and len(counts) == ROWS + 1
    assert stats.chisquare(counts[1:]).pvalue > FALSE_ALARM


# --- every noisy gradient may be seen -------------------------------------------------------------
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_averaged_descent_adds_fresh_noise_to_each_sum(steps: int) -> None:
    """Each of its steps is one Gaussian release; their shares in the average are Nesterov's."""
    problem = _problem()
    algorithm = AveragedDescent(steps, STEP_SIZE, NOISE)
    process = algorithm.process(problem)
    shares = [_share(steps, seen) for seen in range(process.steps)]
    unit = STEP_SIZE * process.noise_multiplier * problem.loss.slope_bound / ROWS
    weights = _weights(algorithm, problem)
    _check_normal(weights[ROWS:], unit * float(np.linalg.norm(shares)))
    np.testing.assert_allclose(-weights[:ROWS] * ROWS / STEP_SIZE, sum(shares), rtol=0.1)


def _share(steps: int, seen: int) -> float:
    """How far the average of the last three quarters moves with the gradient of step `seen`."""
    points = [0.0, 0.0]
    for step in range(steps):
        ahead = points[-1] + step / (step + 3.0) * (points[-1] - points[-2])
        points.append(ahead + (step == seen))
    kept = [points[step + 2] for step in range(steps) if 4 * (step + 1) > steps]
    return float(np.mean(kept))


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_poisson_descent_adds_fresh_noise_to_each_sum(steps: int) -> None:
    problem = _problem()
    algorithm = PoissonDescent(0.3, steps, STEP_SIZE, NOISE)
    process = algorithm.process(problem)
    # iterate t holds the gradients of steps 0 .. t; the iterates after the first half are averaged
    kept = [t for t in range(steps) if 2 * (t + 1) > steps]
    shares = [np.mean([t >= seen for t in kept]) for seen in range(steps)]
    expected = process.sampling.rate * ROWS
    unit = STEP_SIZE * process.noise_multiplier * problem.loss.slope_bound / expected
    weights = _weights(algorithm, problem)
    _check_normal(weights[ROWS:], unit * float(np.linalg.norm(shares)))


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE])
def test_poisson_descent_tosses_a_coin_for_each_row_and_step(adjacency: Adjacency) -> None:
    """After two steps a row was used 0, 1 or 2 times, by two independent coins."""
    rows, rate = 3000, 0.3
    declared = None if adjacency is Adjacency.REPLACE_ONE else rows
    problem = _problem(rows, 0, adjacency=adjacency, private_records=declared)
    algorithm = PoissonDescent(rate, 2, STEP_SIZE, NOISE)
    assert algorithm.process(problem).sampling.rate == rate
    unit = STEP_SIZE / (rate * rows)  # four runs: a rate wrong by a tenth is noticed
    used = np.concatenate([_used(_weights(algorithm, problem), rows, unit) for _ in range(4)])
    counts = np.bincount(used, minlength=3)
    assert len(counts) == 3
    expected = len(used) * stats.binom.pmf(range(3), 2, rate)
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM
    pairs = stats.pearsonr(used[:-1], used[1:])
    assert pairs.pvalue > FALSE_ALARM


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE])
def test_the_centre_is_released_with_the_noise_of_its_mechanism(adjacency: Adjacency) -> None:
    """All rows are half a unit vector, so the other coordinates of the mean are noise alone.

    The noise is so small that shrinking the mean for it changes less than 1e-4 of it.
    """
    features = np.zeros((50, 1 + FREE))
    features[:, 0] = 0.5
    declared = None if adjacency is Adjacency.REPLACE_ONE else 50
    data = ArrayData(features, np.ones(50), Scaling(1.0))
    problem = Problem(data, Linear(), adjacency=adjacency, private_records=declared)
    algorithm = CentredDescent(AveragedDescent(1, 0.1, 0.1 * NOISE), share=0.5, reach=0.8)
    mechanism = algorithm.process(problem).parts[0]
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else np.sqrt(2.0)
    std = moved * mechanism.noise_multiplier / 50
    scaling = algorithm.run(problem, Entropy(), np.zeros(problem.shape)).scaling
    _check_normal(scaling.center[1:], std)


def test_the_mean_square_is_released_with_the_same_noise() -> None:
    """(radius / reach)^2 + |centre|^2 is the mean square as released."""
    features = np.repeat([[0.3], [0.8]], 25, axis=0)
    problem = Problem(ArrayData(features, np.ones(50), Scaling(1.0)), Linear())
    algorithm = CentredDescent(AveragedDescent(1, 0.1, NOISE), share=0.5, reach=0.8)
    std = 2.0 * algorithm.process(problem).parts[0].noise_multiplier / 50
    seen = []
    for _ in range(1500):
        scaling = algorithm.run(problem, Entropy(), np.zeros(2)).scaling
        seen.append((scaling.radius / 0.8) ** 2 + float(scaling.center @ scaling.center))
    _check_normal(np.array(seen) - np.mean(features**2), std)


# --- what is learnt -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_learnt_is_one_run_of_the_calibrated_algorithm(name: str) -> None:
    """Its noise is that of the process whose guarantee is within the budget."""
    problem, budget = _problem(40, 3), Budget(1.0, 1e-5)
    learned = learn(problem, budget, algorithm=name, strength=0.01, seed=5)
    planned = learned.plan
    same = replace(problem, strength=0.01)
    again = planned.algorithm.run(same, Entropy(5), np.zeros(problem.shape))
    np.testing.assert_array_equal(learned.weights, again.weights)
    assert planned.process == planned.algorithm.process(same)
    assert planned.guarantee.epsilon(budget.delta).upper <= budget.epsilon
    quiet = planned.algorithm.with_noise(1e-9).run(same, Entropy(5), np.zeros(problem.shape))
    assert np.linalg.norm(learned.weights - quiet.weights) > 0.0
