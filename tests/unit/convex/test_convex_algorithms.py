"""Algorithms: without noise they minimise; they say what they do; public rows come last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from tightrope.convex import (
    ArrayData,
    AveragedDescent,
    CentredDescent,
    CyclicDescent,
    Entropy,
    LastIterateDescent,
    Logistic,
    MultinomialLogistic,
    PoissonDescent,
    Problem,
    Scaling,
    SkipDescent,
    StopDescent,
)
from tightrope.convex.algorithms import project
from tightrope.convex.centred import moment_sums, sensitivity
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, FullBatch, GaussianMechanism, NoisySGD, PoissonSampling
from tightrope.process.convex import ClippedLoss, ConvexLoss, CyclicSGD, NoisyGradientDescent

SCALING = Scaling(2.0)


def _data(rows: int = 60, columns: int = 3, seed: int = 0) -> ArrayData:
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, columns))
    targets = np.sign(features[:, 0] + 0.5 * generator.standard_normal(rows))
    return ArrayData(features, targets, SCALING)


def _problem(**changes: Any) -> Problem:
    return Problem(**{"data": _data(), "loss": Logistic(), "strength": 0.01} | changes)


def _objective(problem: Problem, weights: np.ndarray) -> float:
    parts = (problem.data, *([problem.public] if problem.public is not None else []))
    losses = [
        problem.loss.value(block.scores(weights), block.targets).sum()
        for data in parts
        for block in data.blocks()
    ]
    return float(sum(losses) / problem.records + problem.strength / 2 * weights @ weights)


def _minimum(problem: Problem) -> np.ndarray:
    found = minimize(lambda w: _objective(problem, w), np.zeros(problem.shape), tol=1e-12)
    return np.asarray(found.x)


NOISELESS = [
    AveragedDescent(3000, 5.0, noise_multiplier=0.0),
    LastIterateDescent(4.0, noise_multiplier=0.0, steps=3000),
    PoissonDescent(1.0, 3000, 4.0, noise_multiplier=0.0),
    CyclicDescent(4.0, noise_multiplier=0.0, batch_size=60, epochs=3000),
]


@pytest.mark.parametrize("algorithm", NOISELESS, ids=lambda a: type(a).__name__)
def test_without_noise_the_minimum_is_found(algorithm: Any) -> None:
    problem = _problem()
    found = algorithm.run(problem, Entropy(0), np.zeros(4))
    np.testing.assert_allclose(found.weights, _minimum(problem), atol=1e-3)
    assert found.scaling is SCALING


@pytest.mark.slow
def test_small_batches_come_near_the_minimum_in_many_epochs() -> None:
    problem = _problem()
    algorithm = CyclicDescent(0.02, noise_multiplier=0.0, batch_size=1, epochs=400)
    found = algorithm.run(problem, Entropy(0), np.zeros(4)).weights
    assert _objective(problem, found) - _objective(problem, _minimum(problem)) < 1e-3


def test_public_rows_are_pooled_by_full_batch_descent() -> None:
    problem = _problem(public=_data(40, seed=1))
    found = AveragedDescent(3000, 5.0, noise_multiplier=0.0).run(problem, Entropy(0), np.zeros(4))
    np.testing.assert_allclose(found.weights, _minimum(problem), atol=1e-3)


def test_projection_is_the_nearest_point_of_the_ball() -> None:
    far = np.array([3.0, 4.0])
    np.testing.assert_allclose(project(far, 1.0), [0.6, 0.8])
    assert project(far, 6.0) is far
    assert project(far, None) is far


@pytest.mark.parametrize(
    "algorithm",
    [
        AveragedDescent(50, 5.0, radius=0.3),
        LastIterateDescent(4.0, radius=0.3, steps=20),
        CyclicDescent(4.0, radius=0.3, batch_size=7, epochs=2),
        SkipDescent(1.0, radius=0.3),
        StopDescent(1.0, radius=0.3),
        PoissonDescent(0.3, 20, 4.0, radius=0.3),
    ],
    ids=lambda a: type(a).__name__,
)
def test_weights_stay_in_the_ball(algorithm: Any) -> None:
    weights = algorithm.run(_problem(), Entropy(3), np.full(4, 9.0)).weights
    assert np.linalg.norm(weights) <= 0.3 * (1 + 1e-12)


# --- what runs is what is accounted ---------------------------------------------------------------
def test_full_batch_descent_is_a_composition_of_gaussian_releases() -> None:
    process = AveragedDescent(50, 5.0, noise_multiplier=7.0).process(_problem())
    assert process == NoisySGD(FullBatch(), 7.0, 50, Adjacency.REPLACE_ONE)


def test_poisson_descent_says_its_rate() -> None:
    problem = _problem(adjacency=Adjacency.ADD_OR_REMOVE, private_records=60)
    process = PoissonDescent(0.1, 30, 4.0, noise_multiplier=2.0).process(problem)
    assert process == NoisySGD(PoissonSampling(0.1), 2.0, 30, Adjacency.ADD_OR_REMOVE)


def test_the_last_iterate_says_the_constants_of_its_loss() -> None:
    problem = _problem(loss=Logistic(0.5))
    process = LastIterateDescent(2.0, noise_multiplier=30.0, radius=1.5, steps=9).process(problem)
    assert isinstance(process, NoisyGradientDescent)
    charged = 0.5 * (1.0 + LastIterateDescent(2.0, radius=1.5, steps=9).rounding(problem))
    assert 0.5 < charged < 0.5 * (1.0 + 1e-9)
    assert process.loss == ConvexLoss(charged, 0.26, 0.01)
    assert process.noise_std == pytest.approx(30.0 * charged / 60)  # on the mean over 60 rows
    assert (process.records, process.steps, process.diameter) == (60, 9, 3.0)


def test_public_rows_come_last_in_the_cycle_and_the_worst_private_batch_is_named() -> None:
    problem = _problem(public=_data(25, seed=1))
    process = CyclicDescent(1.0, batch_size=8, epochs=1).process(problem)
    assert isinstance(process, CyclicSGD)
    assert process.batches_per_epoch == 8 + 4  # 60 rows and 25 rows in batches of 8
    assert process.index == 8


def test_a_clipped_vector_slope_gives_no_convex_constants() -> None:
    problem = _problem(loss=MultinomialLogistic(2, slope_limit=1.0))
    assert problem.constants(1.0) == ClippedLoss(1.0)


@pytest.mark.parametrize(
    "algorithm", [SkipDescent(1.0), StopDescent(1.0), PoissonDescent(0.1, 5, 1.0)], ids=repr
)
def test_algorithms_without_a_place_for_public_rows_refuse_them(algorithm: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot use public rows"):
        algorithm.process(_problem(public=_data(5)))


# --- centring -------------------------------------------------------------------------------------
def test_the_mean_takes_its_share_of_the_budget() -> None:
    algorithm = CentredDescent(AveragedDescent(40, 5.0, noise_multiplier=80.0), 0.1, 1.0)
    mean, descent = algorithm.process(_problem()).parts
    assert isinstance(mean, GaussianMechanism)
    mean_mu, descent_mu = 1.0 / mean.noise_multiplier, descent.step_mu * np.sqrt(40)
    assert mean_mu**2 / (mean_mu**2 + descent_mu**2) == pytest.approx(0.1)


@pytest.mark.parametrize("adjacency", list(Adjacency)[:2])  # of rows
def test_the_moments_move_by_at_most_their_sensitivity(adjacency: Adjacency) -> None:
    generator = np.random.default_rng(4)
    replaced = adjacency is Adjacency.REPLACE_ONE
    worst = 0.0
    for _ in range(300):
        rows = generator.standard_normal((4, 2)) * generator.exponential(3.0, (4, 1))
        other = rows.copy() if replaced else rows[:-1]
        if replaced:
            other[-1] = -rows[-1] * generator.random()
        first, second = (
            moment_sums(Problem(ArrayData(x, np.ones(len(x)), Scaling(1.0)), Logistic()))
            for x in (rows, other)
        )
        worst = max(worst, float(np.linalg.norm(first - second)))
    assert 0.9 * sensitivity(adjacency) < worst <= sensitivity(adjacency)


def test_without_noise_rows_are_centred_at_their_mean() -> None:
    data = _data()
    quiet = AveragedDescent(1, 5.0, noise_multiplier=1e-9)
    found = CentredDescent(quiet, 0.5, 0.8).run(Problem(data, Logistic()), Entropy(0), np.zeros(4))
    short = data.features / np.maximum(np.linalg.norm(data.features, axis=1, keepdims=True), 2.0)
    assert found.scaling.center is not None
    np.testing.assert_allclose(found.scaling.center, short.mean(axis=0), atol=1e-5)
    spread = np.sqrt(np.mean(np.sum((short - short.mean(axis=0)) ** 2, axis=1)))
    assert found.scaling.radius == pytest.approx(0.8 * spread, rel=1e-4)


def test_centred_rows_are_never_longer_than_one_and_unscale_to_the_same_scores() -> None:
    data = _data()
    scaling = SCALING.centred(np.array([0.3, -0.2, 0.1]), 0.4)
    centred = data.rescaled(scaling)
    weights = np.array([1.0, -2.0, 0.5, 0.7])
    block = next(centred.blocks())
    rows = [block.only(slice(i, i + 1)).pull_back(np.ones(1)) for i in range(60)]
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    np.testing.assert_allclose(np.array(rows) @ weights, block.scores(weights), atol=1e-12)
    short = data.features / np.maximum(np.linalg.norm(data.features, axis=1, keepdims=True), 2.0)
    inside = np.linalg.norm(short - scaling.center, axis=1) < 0.4
    inside &= np.linalg.norm(data.features, axis=1) < 2.0
    coefficients, intercept = scaling.unscale(weights)
    linear = data.features[inside] @ coefficients + intercept
    assert inside.sum() > 0
    np.testing.assert_allclose(linear, block.scores(weights)[inside], atol=1e-9)
