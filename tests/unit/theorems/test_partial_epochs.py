"""Balls in bins whose last epoch is cut off: both ends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.guarantee.base import Validity
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    FullBatch,
    NoisySGD,
    PoissonSampling,
    RandomAllocationSampling,
    Repeated,
    Sequence,
)
from tightrope.theorems.bins import BallsInBinsExact, RandomAllocation


def epsilon(steps: int):  # type: ignore[no-untyped-def]
    return account(NoisySGD(BallsInBinsSampling(20), 1.0, steps)).epsilon(1e-5)


@pytest.mark.parametrize("steps", [21, 30, 59])
def test_a_cut_epoch_is_between_none_and_a_whole_one(steps: int) -> None:
    """The lower end was 0."""
    found, before, after = epsilon(steps), epsilon(steps // 20 * 20), epsilon(-(-steps // 20) * 20)
    assert found.lower == pytest.approx(before.lower, rel=1e-6)
    assert found.upper == pytest.approx(after.upper, rel=1e-6)


def test_a_first_step_shows_what_one_sampled_step_does() -> None:
    found = epsilon(5)
    assert 0.0 < found.lower <= found.upper
    assert found.lower <= epsilon(20).upper


def test_several_such_runs_keep_their_lower_ends() -> None:
    once = NoisySGD(BallsInBinsSampling(20), 1.0, 30)
    found = account(Repeated(once, 2)).epsilon(1e-5)
    assert epsilon(40).lower * (1 - 1e-6) <= found.lower <= found.upper


def test_one_join_of_a_cut_epoch_is_not_a_whole_one() -> None:
    """It was called exact, with the lower end of an epoch more than was run."""
    sampling = RandomAllocationSampling(20, 1)
    found = account(NoisySGD(sampling, 1.0, 30)).epsilon(1e-5)
    assert found == epsilon(30) and found.lower < epsilon(40).lower
    every = NoisySGD(RandomAllocationSampling(20, 20), 1.0, 30)
    direct = RandomAllocation.guarantee(every).epsilon(1e-5)
    assert direct == account(NoisySGD(FullBatch(), 1.0, 30)).epsilon(1e-5)


def test_one_batch_an_epoch_is_the_full_batch_in_every_step() -> None:
    found = BallsInBinsExact.guarantee(NoisySGD(BallsInBinsSampling(1), 1.0, 30))
    assert found.epsilon(1e-5) == account(NoisySGD(FullBatch(), 1.0, 30)).epsilon(1e-5)


def test_blocks_of_balls_in_bins_are_a_bound_and_not_the_truth() -> None:
    found = RandomAllocation.guarantee(NoisySGD(RandomAllocationSampling(20, 4), 1.0, 20))
    assert found.validity is Validity.BOUND
    replaced = NoisySGD(RandomAllocationSampling(20, 4), 1.0, 20, Adjacency.REPLACE_ONE)
    assert not RandomAllocation.guarantee(replaced).two_sided


@pytest.mark.parametrize("noise", [1 / 3, 1.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-13, 1e-30])
def test_both_ends_of_two_of_three_hold_its_integral(noise: float, delta: float) -> None:
    """The lower end was that of the blocks, whose epsilon at 1e-30 was above the true one."""
    mu = 1.0 / noise
    x = np.arange(-6.0, mu + 13.0, 0.125)
    there, not_there = (np.exp(-0.5 * (x - at) ** 2) / math.sqrt(2 * math.pi) for at in (mu, 0.0))
    some = np.array([there, not_there])
    out = (some[..., :, None, None], some[..., None, :, None], some[..., None, None, :])
    p = sum(out[0][i] * out[1][j] * out[2][k] for i, j, k in ((1, 0, 0), (0, 1, 0), (0, 0, 1))) / 3
    q = out[0][1] * out[1][1] * out[2][1]

    def true(epsilon: float) -> float:
        sides = ((p, q), (q, p))
        sums = [np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in sides]
        return float(max(sums)) / 8.0**3

    found = account(NoisySGD(RandomAllocationSampling(3, 2), noise, 3)).epsilon(delta)
    assert true(found.lower) >= delta * (1 - 1e-2) and true(found.upper) <= delta * (1 + 1e-2)
    assert found.lower > 0.0 or delta < 1e-5


def test_k_of_t_has_an_answer_where_the_numbers_have_none() -> None:
    for relation in Adjacency:
        run = NoisySGD(RandomAllocationSampling(10, 3), 1.0, 20, relation)
        plain = account(NoisySGD(FullBatch(), 1.0, 6, relation)).epsilon(1e-300)
        for process in (run, Repeated(run, 2)):
            assert 0.0 < account(process).epsilon(1e-300).upper < math.inf
        assert account(run).epsilon(1e-300).upper <= plain.upper


def test_orders_out_of_reach_do_not_take_the_answer_with_them() -> None:
    """Composed by Renyi divergences, of which those of large orders are not known."""
    relation = Adjacency.REPLACE_ONE
    blocks = NoisySGD(RandomAllocationSampling(20, 8), 0.42, 34, relation)
    both = Sequence((blocks, NoisySGD(PoissonSampling(0.015), 1.95, 2, relation)))
    assert 0.0 < account(both).epsilon(1e-9).upper < math.inf


@pytest.mark.parametrize("noise", [0.35, 40.0])
def test_the_smallest_bound_keeps_the_lower_end_that_another_analysis_attains(noise: float) -> None:
    """It was 0 where the Renyi bound of balls in bins is below that of the attained pairs."""
    found = account(NoisySGD(BallsInBinsSampling(100), noise, 100))
    best = found.best(lambda g: g.epsilon(1e-5).upper)
    assert best.key == "balls-in-bins-renyi" and best.outcome is not None
    first = account(NoisySGD(PoissonSampling(0.01), noise, 1))  # what one step of them shows
    assert found.epsilon(1e-5).lower >= first.epsilon(1e-5).lower * (1.0 - 1e-9) > 0.0
    assert found.delta(0.01).lower >= first.delta(0.01).lower * (1.0 - 1e-9) > 0.0
