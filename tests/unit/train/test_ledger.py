"""Counting, running epsilon, budgets: a step that would exceed the budget is never taken."""

from __future__ import annotations

import pytest
import torch

from tightrope.accounting import account
from tightrope.errors import AdjacencyMismatch, BudgetExceeded, InvalidInput
from tightrope.evidence.verify import holds, verify
from tightrope.process import Adjacency, GaussianMechanism, NoisySGD, PoissonSampling
from tightrope.train import (
    Budget,
    CyclicSampler,
    FixedSizeSampler,
    FullBatchSampler,
    GaussianNoise,
    PoissonSampler,
    ShuffledSampler,
)


def test_running_epsilon_is_that_of_the_process_so_far(make_run, take):
    run = make_run(sampler=PoissonSampler(0.1), noise=GaussianNoise(2.0))
    assert run.epsilon(1e-5).upper == 0.0
    (step,) = take(run, 200)[-1:]
    assert run.epsilon(1e-5) == account(NoisySGD(PoissonSampling(0.1), 2.0, 200)).epsilon(1e-5)
    assert run.epsilon(1e-5).upper == step.epsilon(1e-5)
    take(run, 1)
    assert run.epsilon(1e-5).upper > step.epsilon(1e-5)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: FixedSizeSampler(12, 60),
        lambda: ShuffledSampler(5),
        lambda: CyclicSampler(5),
        lambda: FullBatchSampler(),
    ],
    ids=["fixed", "shuffled", "cyclic", "full"],
)
def test_every_sampler_has_a_certified_account(make_run, take, sampler):
    run = make_run(sampler=sampler(), noise=GaussianNoise(3.0))
    take(run, 10)
    assert 0.0 < run.epsilon(1e-5).upper < 100.0


@pytest.mark.parametrize(
    "parts", [{"steps": None}, {"steps": None, "history": GaussianMechanism(2.0)}, {"steps": 900}]
)
def test_the_longest_run_within_a_budget_is_taken(make_run, parts):
    run = make_run(
        sampler=FullBatchSampler(), noise=GaussianNoise(12.0), budget=Budget(3.0, 1e-5), **parts
    )
    allowed = run.ledger.steps_allowed
    assert 0 < allowed < 900
    assert (
        run.ledger.epsilon(1e-5, allowed).upper <= 3.0 < run.ledger.epsilon(1e-5, allowed + 1).upper
    )


def test_a_step_beyond_the_budget_raises_and_changes_nothing(make_run):
    run = make_run(sampler=FullBatchSampler(), budget=Budget(1e-3, 1e-5))
    assert list(run) == []  # the loop ends cleanly
    before = [p.detach().clone() for p in run.model.parameters()]
    with pytest.raises(BudgetExceeded, match="0 steps are allowed"):
        run.take_step()
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    assert run.ledger.released == 0


def test_history_counts_in_the_same_budget(make_run, take):
    past = GaussianMechanism(2.0)
    run = make_run(sampler=FullBatchSampler(), noise=GaussianNoise(4.0), history=past)
    already = run.epsilon(1e-5).upper
    assert already == pytest.approx(account(past).epsilon(1e-5).upper)
    take(run, 1)
    assert run.epsilon(1e-5).upper > already


def test_history_about_other_neighbours_is_refused(make_run):
    past = GaussianMechanism(2.0, Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyMismatch):
        make_run(history=past).epsilon(1e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-1, 1e-5), (1, -0.1), (1, 1.0), (float("nan"), 0.1)]
)
def test_impossible_budgets_are_refused(epsilon, delta):
    with pytest.raises(InvalidInput):
        Budget(epsilon, delta)


def test_the_certificate_says_what_is_proved_or_that_nothing_is(make_run, take):
    run = make_run(sampler=FullBatchSampler(), noise=GaussianNoise(5.0), steps=2)
    take(run, 2)
    certificate = run.certificate(1e-5)
    assert certificate["run"]["private"]
    assert certificate["run"]["steps"] == 2 == certificate["process"]["steps"]
    assert "add-or-remove" in certificate["statement"] and holds(verify(certificate))
    seeded = make_run(noise=GaussianNoise(5.0, seed=1), sampler=FullBatchSampler())
    take(seeded, 1)
    certificate = seeded.certificate(1e-5)
    assert certificate["statement"].startswith("NOT PRIVATE") and not holds(verify(certificate))


def test_a_budget_without_noise_or_without_delta_allows_nothing(make_run):
    assert make_run(noise=GaussianNoise(0.0), budget=Budget(1.0, 1e-5)).ledger.steps_allowed == 0
    with pytest.raises(InvalidInput, match="delta = 0"):
        assert make_run(budget=Budget(1.0, 0.0)).ledger.steps_allowed
