"""Accounts that run along."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tightrope import GaussianFilter, NoisySGD, Odometer, PoissonSampling, RenyiFilter
from tightrope.accounting import account
from tightrope.errors import AdjacencyMismatch, BudgetExceeded, InvalidInput
from tightrope.process import Adjacency, GaussianMechanism

RUN = NoisySGD(PoissonSampling(0.01), 1.0, 0)


def test_the_odometer_encloses_the_exact_account() -> None:
    meter = Odometer(RUN, 1e-5)
    assert meter.epsilon().upper == 0.0
    for steps in (1, 2, 7, 50, 333):
        meter.step(steps - meter.steps)
        exact = account(replace(RUN, steps=steps)).epsilon(1e-5)
        coarse = meter.epsilon()
        assert coarse.lower <= exact.upper
        assert exact.lower <= coarse.upper
        assert meter.exact_epsilon().meets(exact)


def test_queries_between_grid_points_compute_nothing() -> None:
    meter = Odometer(RUN, 1e-5)
    meter.step(1000)
    meter.epsilon()
    known = len(meter._known)
    for _ in range(5):
        meter.step()
        meter.epsilon()
    assert len(meter._known) <= known + 1


def test_the_odometer_allows_the_last_step_that_fits() -> None:
    meter, budget = Odometer(RUN, 1e-5), 1.0
    last = max(
        steps
        for steps in (100, 200, 300, 400)
        if account(replace(RUN, steps=steps)).epsilon(1e-5).upper <= budget
    )
    meter.step(last - 1)
    assert meter.allows(budget)
    meter.step(10_000)
    assert not meter.allows(budget)


def test_the_gaussian_filter_stops_before_the_budget() -> None:
    meter = GaussianFilter(1.0, 1e-5)
    noises = [20.0, 10.0, 15.0]
    for noise in noises:
        meter.spend(noise)
    assert meter.spent == pytest.approx(math.sqrt(sum(1 / n**2 for n in noises)), rel=1e-9)
    with pytest.raises(BudgetExceeded, match="more noise"):
        meter.spend(1.0)
    assert meter.guarantee().epsilon(1e-5).upper <= 1.0 + 1e-9


def test_the_renyi_filter_takes_any_step() -> None:
    step = replace(RUN, steps=50)
    plan = replace(RUN, steps=300)
    meter = RenyiFilter.for_plan(2.0, 1e-5, plan)
    taken = 0
    with pytest.raises(BudgetExceeded):
        for _ in range(1000):
            meter.spend(step)
            taken += 50
    assert taken > 0
    exact = account(replace(RUN, steps=taken)).epsilon(1e-5)
    assert exact.lower <= 2.0


def test_filters_refuse_nonsense() -> None:
    with pytest.raises(InvalidInput):
        GaussianFilter(1.0, 1e-5).spend(0.0)
    with pytest.raises(InvalidInput):
        Odometer(RUN, 1e-5).step(-1)
    with pytest.raises(InvalidInput):
        RenyiFilter(1.0, 1e-5, 1.0)


def test_a_filter_keeps_to_one_kind_of_neighbours() -> None:
    meter = RenyiFilter(3.0, 1e-5, 8.0)
    meter.spend(replace(RUN, steps=10))
    spent = meter.spent
    with pytest.raises(AdjacencyMismatch, match="replace-one"):
        meter.spend(GaussianMechanism(50.0, Adjacency.REPLACE_ONE))
    assert meter.spent == spent
    replaced = GaussianFilter(1.0, 1e-5, Adjacency.REPLACE_ONE)
    assert replaced.guarantee().adjacency is Adjacency.REPLACE_ONE


def test_a_refused_step_leaves_the_filter_as_it_was() -> None:
    meter = RenyiFilter(1.0, 1e-5, 8.0)
    with pytest.raises(BudgetExceeded):
        meter.spend(GaussianMechanism(0.1, Adjacency.REPLACE_ONE))
    assert meter.spent == 0.0
    meter.spend(replace(RUN, steps=10))


def test_an_odometer_asks_for_few_exact_values() -> None:
    """Each is some milliseconds; the queries in between are free."""
    meter = Odometer(RUN, 1e-5)
    for _ in range(400):
        meter.step()
        meter.epsilon()
    assert len(meter._known) <= 30
    assert meter.epsilon().relative_width < 0.04
