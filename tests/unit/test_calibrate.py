"""Inverse questions: on the safe side, and barely so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tightrope import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    NoisySGD,
    PoissonSampling,
    Target,
    find_delta,
    find_noise,
    find_rate,
    find_steps,
)
from tightrope.accounting import account
from tightrope.errors import DoesNotApply, InvalidInput, NotCertified
from tightrope.theorems.catalog import ANALYSES

RUN = NoisySGD(PoissonSampling(256 / 60000), 1.1, 14062)
BUDGET = Target.approx_dp(3.0, 1e-5)


def analysis(key: str):
    return tuple(a for a in ANALYSES if a.key == key)


def test_the_smallest_noise_for_epsilon_three() -> None:
    found = find_noise(RUN, BUDGET)
    assert 0.96840792 <= found.value <= 0.96840792 * (1 + 1e-6)
    assert found.account().delta(3.0).upper <= 1e-5


def test_a_little_less_noise_misses_the_budget() -> None:
    less = replace(RUN, noise_multiplier=find_noise(RUN, BUDGET).value * (1 - 1e-6))
    assert account(less).delta(3.0).lower > 1e-5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "run",
    [
        RUN,
        NoisySGD(FullBatch(), 1.0, 100),
        NoisySGD(CyclicSampling(10), 1.0, 30),
        NoisySGD(FixedSizeSampling(0.01), 1.0, 1000, Adjacency.REPLACE_ONE),
    ],
    ids=lambda r: type(r.sampling).__name__,
)
def test_noise_is_safe_and_tight_for_every_sampler(run: NoisySGD, epsilon: float) -> None:
    found = find_noise(run, Target.approx_dp(epsilon, 1e-5))
    spent = found.account().epsilon(1e-5)
    assert spent.upper <= epsilon * (1 + 1e-12)
    assert spent.upper >= epsilon * (1 - 1e-4)


def test_steps_are_the_last_that_fit() -> None:
    found = find_steps(RUN, BUDGET)
    steps = int(found.value)
    assert account(replace(RUN, steps=steps)).delta(3.0).upper <= 1e-5
    assert account(replace(RUN, steps=steps + 1)).delta(3.0).upper > 1e-5


def test_question_two_against_the_moments_accountant() -> None:
    """A Better Bound: rounds gained over the moments accountant at the same budget."""
    exact = find_steps(RUN, BUDGET).value
    improved = find_steps(RUN, BUDGET, analysis("improved-moments")).value
    classical = find_steps(RUN, BUDGET, analysis("moments")).value
    assert exact > improved > classical > 0


def test_the_clt_calibrates_to_too_little_noise() -> None:
    """Deep Learning with GDP (7)-(8): sigma-tilde = 1.06 at equal epsilon, really 1.408."""
    start = NoisySGD(PoissonSampling(256 / 60000), 1.3, round(20 * 60000 / 256))
    by_clt = find_noise(start, Target.approx_dp(1.34, 1e-5), analysis("clt"))
    assert by_clt.value == pytest.approx(1.06, abs=0.006)
    assert account(by_clt.process).epsilon(1e-5).lower > 1.34


def test_the_largest_rate() -> None:
    found = find_rate(RUN, BUDGET)
    assert account(found.process).delta(3.0).upper <= 1e-5
    more = replace(RUN, sampling=PoissonSampling(found.value * (1 + 1e-5)))
    assert account(more).delta(3.0).upper > 1e-5


def test_a_generous_budget_allows_every_record() -> None:
    assert find_rate(replace(RUN, steps=1), Target.approx_dp(50.0, 1e-5)).value == 1.0


def test_risk_targets() -> None:
    advantage = find_noise(RUN, Target.advantage(0.1))
    assert advantage.account().guarantee().advantage().upper <= 0.1 * (1 + 1e-9)
    hit = find_noise(replace(RUN, steps=1000), Target.hit_rate(0.1, 0.01))
    rate = hit.account().guarantee().true_positive_rate(0.01)
    assert 0.0999 < rate.upper <= 0.1 + 1e-9


def test_delta_at_epsilon() -> None:
    assert find_delta(RUN, 2.3816) == pytest.approx(1e-5, rel=1e-2)


def test_nothing_to_hide_needs_no_noise() -> None:
    assert find_noise(replace(RUN, steps=0), BUDGET).value == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Target.approx_dp(3.0, 0.0),
        lambda: Target.approx_dp(-1.0, 1e-5),
        lambda: Target.hit_rate(0.01, 0.01),
        lambda: Target.advantage(1.5),
        lambda: find_rate(NoisySGD(FullBatch(), 1.0, 10), BUDGET),
    ],
)
def test_impossible_targets_are_explained(make) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_an_unreachable_target_says_so() -> None:
    with pytest.raises(NotCertified, match="suffices"):
        find_noise(NoisySGD(FullBatch(), 1.0, 10**12), Target.approx_dp(1e-3, 1e-300))


def test_a_run_without_analysis_lists_the_reasons() -> None:
    with pytest.raises(DoesNotApply, match="fixed size"):
        find_noise(NoisySGD(FixedSizeSampling(0.01), 1.0, 10), BUDGET)


def test_infinite_noise_is_never_returned() -> None:
    assert math.isfinite(find_noise(RUN, Target.approx_dp(1e-3, 1e-9)).value)


def test_balls_in_bins_are_calibrated_by_their_best_analysis() -> None:
    run = NoisySGD(BallsInBinsSampling(20), 1.0, 50 * 20)
    found = find_noise(run, Target.approx_dp(4.3081, 1e-6))
    assert found.analysis == "exact"
    assert found.value < 2.0  # what Renyi divergences ask for
    back = account(found.process).epsilon(1e-6)
    assert 4.3081 * (1 - 1e-6) <= back.upper <= 4.3081
    tiny = find_noise(run, Target.approx_dp(30.0, 1e-60))  # out of its reach: another analysis
    assert tiny.analysis == "balls-in-bins-renyi"


def test_what_is_no_target_or_no_run_is_told_what_to_give() -> None:
    """The slips of a first hour: an epsilon for a target, a number for a process."""
    run = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=10)
    for find in (find_noise, find_steps, find_rate):
        with pytest.raises(InvalidInput, match=r"Target\.approx_dp"):
            find(run, 3.0)
        with pytest.raises(InvalidInput, match="NoisySGD"):
            find("run", Target.approx_dp(1.0, 1e-5))
    for wrong in (5, "NoisySGD", None):
        with pytest.raises(InvalidInput, match="takes a process"):
            account(wrong)


def test_a_refusal_leaves_out_analyses_of_other_processes() -> None:
    run = NoisySGD(FixedSizeSampling(0.01), noise_multiplier=1.0, steps=10)
    with pytest.raises(DoesNotApply) as refused:
        account(run).epsilon(1e-5)
    assert "needs replace-one neighbours" in str(refused.value)
    assert "CyclicSGD" not in str(refused.value) and len(str(refused.value).splitlines()) < 12


@pytest.mark.parametrize(
    "target",
    [
        lambda: Target.approx_dp(1.0, 1.0),
        lambda: Target.advantage(1.0),
        lambda: Target.advantage(0.0),
        lambda: Target.hit_rate(1.0, 0.01),
    ],
)
def test_targets_that_ask_for_nothing_or_too_much_are_refused(target) -> None:
    with pytest.raises(InvalidInput, match="Ask for"):
        target()


def test_targets_beyond_every_noise_and_below_every_noise() -> None:
    run = NoisySGD(PoissonSampling(0.01), 1.0, 1000)
    assert find_noise(run, Target.approx_dp(1e9, 1e-5)).value == pytest.approx(0.01)
    with pytest.raises(NotCertified, match="Relax the target"):
        find_noise(run, Target.approx_dp(0.0, 1e-300))


@pytest.mark.parametrize(("hit_rate", "false_alarms"), [(0.05, 0.01), (0.6, 0.3), (0.97, 0.8)])
def test_hit_rates_are_met_and_not_by_more_than_needed(
    hit_rate: float, false_alarms: float
) -> None:
    """Judged by one line of the curve, held against the whole curve, on both sides of 1 - a."""
    run = NoisySGD(PoissonSampling(0.01), 1.0, 1000)
    target = Target.hit_rate(hit_rate, false_alarms)
    found = find_noise(run, target)
    met = 1.0 - found.account().tradeoff(false_alarms).lower
    assert met <= hit_rate * (1 + 1e-12)
    less = replace(found.process, noise_multiplier=found.value * (1 - 1e-5))
    assert 1.0 - account(less).tradeoff(false_alarms).lower > hit_rate
