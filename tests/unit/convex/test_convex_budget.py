"""Noise for a budget: certified, no larger than need be, and chosen from public numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.convex import (
    ALGORITHMS,
    REGRESSION,
    ArrayData,
    Budget,
    LastIterateDescent,
    Logistic,
    MultinomialLogistic,
    Options,
    Problem,
    Scaling,
    SizeOnly,
    Squared,
    StreamData,
    learn,
    plan,
)
from tightrope.errors import InvalidInput
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency

BUDGET = Budget(1.0, 1e-5)


def _problem(records: int = 400, width: int = 6) -> Problem:
    return Problem(SizeOnly(records, width), Logistic(0.5))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("budget", [Budget(0.1, 1e-6), Budget(3.0, 1e-4)], ids=repr)
def test_the_budget_is_met_and_nearly_used_up(name: str, budget: Budget) -> None:
    planned, problem = plan(_problem(), budget, algorithm=name)
    spent = account(planned.process).epsilon(budget.delta)
    assert spent.upper <= budget.epsilon * (1 + 1e-9)
    assert planned.guarantee.delta(budget.epsilon).upper <= budget.delta
    cheaper = planned.algorithm.with_noise(planned.algorithm.noise_multiplier * 0.999)
    less = account(cheaper.process(problem)).guarantee(budget.delta)
    assert less.delta(budget.epsilon).upper > budget.delta


def test_centring_is_part_of_the_accounted_process() -> None:
    planned, _ = plan(_problem(), BUDGET, algorithm="descent", options=Options(centring=0.06))
    mean, descent = planned.process.parts
    together = account(planned.process).guarantee(1e-5).gaussian_mu().upper
    apart = np.hypot(1.0 / mean.noise_multiplier, descent.step_mu * np.sqrt(descent.steps))
    assert together == pytest.approx(apart, rel=1e-12)
    assert together <= BUDGET.mu * (1 + 1e-12)


def test_add_or_remove_neighbours_need_half_the_noise() -> None:
    problem = _problem()
    one, _ = plan(problem, BUDGET, algorithm="descent", options=Options(steps=10))
    other, _ = plan(
        replace(problem, adjacency=Adjacency.ADD_OR_REMOVE, private_records=400),
        BUDGET,
        algorithm="descent",
        options=Options(steps=10),
    )
    ratio = one.algorithm.noise_multiplier / other.algorithm.noise_multiplier
    assert ratio == pytest.approx(2.0, rel=1e-9)
    assert other.guarantee.adjacency is Adjacency.ADD_OR_REMOVE


def test_public_rows_reduce_the_noise_of_a_pass() -> None:
    """The last private record is hidden by m noisy steps on public ones: noise / sqrt(m+1)."""
    alone, _ = plan(_problem(), BUDGET, algorithm="pnsgd", strength=0.0)
    followed, _ = plan(
        replace(_problem(), public=SizeOnly(99, 6)), BUDGET, algorithm="pnsgd", strength=0.0
    )
    ratio = alone.algorithm.noise_multiplier / followed.algorithm.noise_multiplier
    assert ratio == pytest.approx(10.0, rel=1e-9)


def test_contraction_counts_only_where_the_loss_and_the_step_allow_it() -> None:
    """Step above 2/smoothness, or a clipped vector slope: composition is all that is left."""
    problem = replace(_problem(), strength=0.01)
    clipped = replace(problem, loss=MultinomialLogistic(3, slope_limit=0.5))
    gentle = LastIterateDescent(4.0, noise_multiplier=50.0, steps=300)
    composed = GaussianGuarantee(2.0 * np.sqrt(300) / 50.0).epsilon(1e-5).upper

    def epsilon(algorithm: LastIterateDescent, of: Problem) -> float:
        return account(algorithm.process(of)).epsilon(1e-5).upper

    assert epsilon(gentle, problem) < 0.9 * composed
    assert epsilon(replace(gentle, step_size=9.0), problem) >= composed * (1 - 1e-9)
    assert epsilon(gentle, clipped) >= composed * (1 - 1e-9)


@pytest.mark.parametrize("records", [60, 3_000, 1_000_000])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_auto_takes_the_candidate_with_the_least_predicted_loss(
    records: int, epsilon: float
) -> None:
    planned, _ = plan(_problem(records), Budget(epsilon, 1e-7))
    assert planned.name == min(planned.compared, key=lambda c: c.excess).name
    assert planned.name in planned.reason
    assert {c.name for c in planned.compared} == {"descent", "last-iterate", "cyclic", "poisson"}


def test_more_budget_means_more_steps_and_less_regularisation() -> None:
    plans = [plan(_problem(30_000), Budget(e, 1e-6), algorithm="descent")[0] for e in (0.1, 1, 5)]
    steps = [p.algorithm.steps for p in plans]
    strengths = [p.strength for p in plans]
    assert steps == sorted(steps) and steps[0] < steps[-1]
    assert strengths == sorted(strengths, reverse=True) and strengths[0] > strengths[-1]


def test_a_plan_looks_at_no_row() -> None:
    """SizeOnly raises when a row is asked for, so every plan above is such a proof; and the
    squared loss is planned on its ball."""
    problem = Problem(SizeOnly(500, 4), Squared(target_bound=1.0, radius=2.0))
    planned, _ = plan(problem, BUDGET, options=Options(radius=2.0), expected=REGRESSION)
    assert planned.guarantee.epsilon(1e-5).upper <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 1e-5), (-1.0, 1e-5), (float("nan"), 1e-5), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0)],
)
def test_impossible_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput):
        Budget(epsilon, delta)


def test_an_unknown_algorithm_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidInput, match="'auto', 'descent'"):
        plan(_problem(), BUDGET, algorithm="newton")


def test_losses_without_constants_are_refused() -> None:
    class Unknown:
        outputs = 1

    class Steep(Unknown):
        slope_bound, curvature_bound, convex = float("inf"), 1.0, True

    class Silent(Unknown):
        slope_bound, curvature_bound = 1.0, 1.0

    for loss, said in ((Unknown(), "slope_bound"), (Steep(), "slope_bound"), (Silent(), "convex")):
        with pytest.raises(InvalidInput, match=said):
            Problem(SizeOnly(10, 2), loss)  # type: ignore[arg-type]


def test_rows_from_a_stream_are_learnt_like_rows_in_memory() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((3000, 4))
    y = np.where(x[:, 0] > 0, 1.0, -1.0)

    def source() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for at in range(0, 3000, 700):
            yield x[at : at + 700], y[at : at + 700]

    options = Options(centring=0.06)
    stored, streamed = (
        learn(Problem(data, Logistic(0.5)), BUDGET, seed=0, options=options)
        for data in (
            ArrayData(x, y, Scaling(3.0)),
            StreamData(source, 3000, 4, Scaling(3.0)),
        )
    )
    np.testing.assert_allclose(streamed.weights, stored.weights, rtol=1e-6)
    assert not streamed.private


def test_a_stream_goes_through_a_single_pass_row_by_row() -> None:
    x, y = np.eye(4), np.ones(4)
    problem = Problem(StreamData(lambda: iter([(x, y)]), 4, 4, Scaling(1.0, 0.0)), Logistic())
    learned = learn(problem, BUDGET, algorithm="pnsgd", seed=0)
    assert learned.weights.shape == (4,)
    with pytest.raises(InvalidInput, match="own blocks"):
        learn(problem, BUDGET, algorithm="cyclic", seed=0, options=Options(batch_size=2))
