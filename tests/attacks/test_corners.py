"""Holes K5 and K5b: corners where a number was wrong, a search failed or a command broke."""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, nbinom

from tightrope import NoisySGD, PoissonSampling, account, calibrate
from tightrope.calibrate import Target, find_noise, find_rate, find_steps
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, FixedSizeSampling, FullBatch, Sequence
from tightrope.process.convex import ConvexLoss
from tightrope.report.account_view import account_view
from tightrope.search import TruncatedNegativeBinomial
from tightrope.train import Evaluation, accuracy
from tightrope.train.fitting import evaluate
from tightrope_reproduce.plan import many_tasks

REPLACED = Adjacency.REPLACE_ONE
SLOW = pytest.mark.slow


# ---- the number of trials of a search
@pytest.mark.parametrize(
    ("shape", "gamma"),
    [(10.0, 0.005), (200.0, 0.05), pytest.param(40.0, 1e-3, marks=SLOW), (0.5, 0.1)],
)
def test_the_number_of_trials_has_its_law_where_one_trial_is_rare(
    shape: float, gamma: float
) -> None:
    """Ten classes of equal chance; chi-square at a false alarm of 1e-6, with a fixed seed."""
    law, source = TruncatedNegativeBinomial(shape, gamma), random.Random(0)
    drawn = np.array([law.draw(source.random) for _ in range(400)])
    inner = [int(nbinom.ppf(k / 10, shape, gamma)) for k in range(1, 10)]
    edges = [0, *sorted({e for e in inner if e > 0}), math.inf]
    start = nbinom.pmf(0, shape, gamma)
    shares = np.diff((nbinom.cdf(edges, shape, gamma) - start) / (1.0 - start))
    counts = np.histogram(drawn, bins=np.array(edges) + 0.5)[0]
    statistic = np.sum((counts - 400 * shares) ** 2 / (400 * shares))
    assert statistic < chi2.isf(1e-6, len(shares) - 1)
    assert drawn.mean() == pytest.approx(law.mean, rel=0.2)


@pytest.mark.parametrize(("shape", "gamma"), [(10.0, 0.005), (0.0, 0.2), (1.0, 0.5), (-0.5, 0.1)])
def test_chances_of_trials_add_up(shape: float, gamma: float) -> None:
    law = TruncatedNegativeBinomial(shape, gamma)
    if shape > 0.0:
        start = nbinom.pmf(0, shape, gamma)
        for count in (1, 2, 50):
            expected = nbinom.pmf(count, shape, gamma) / (1.0 - start)
            assert law.chance(count) == pytest.approx(expected, rel=1e-9)
    else:
        assert sum(law.chance(k) for k in range(1, 400)) == pytest.approx(1.0, abs=1e-9)
    levels = [0.0, 0.5, 1.0 - 2.0**-53]
    draws = [law.draw(lambda level=level: level) for level in levels]  # type: ignore[misc]
    assert draws == sorted(draws) and draws[0] == 1


# ---- measures on public data
@pytest.mark.parametrize("batch_size", [3, 7, 100])
def test_a_measure_that_is_already_a_mean_is_not_divided_again(
    batch_size: int, small_run: Any
) -> None:
    rows = (torch.randn(50, 5), torch.randint(0, 2, (50,)))
    run = small_run()

    def measured(measure: Any) -> float:
        return evaluate(run, Evaluation(rows, measure, every=1, batch_size=batch_size))

    each = measured(accuracy)
    assert measured(lambda o, y: accuracy(o, y).mean()) == pytest.approx(each, abs=1e-6)
    assert measured(lambda o, y: accuracy(o, y)[:, None]) == pytest.approx(each, abs=1e-6)
    with pytest.raises(InvalidInput, match="one number for each example"):
        measured(lambda o, y: o)


# ---- calibration
@pytest.mark.parametrize(
    "run",
    [
        NoisySGD(PoissonSampling(0.01), 1.0, 1000),
        NoisySGD(PoissonSampling(0.1), 1.0, 10),
        NoisySGD(FullBatch(), 1.0, 10),
        NoisySGD(FixedSizeSampling(0.01), 1.0, 100, REPLACED),
    ],
    ids=str,
)
def test_without_false_alarms_any_noise_serves(run: NoisySGD) -> None:
    """A Gaussian release rules nobody out: at a false positive rate of 0 there are no hits."""
    found = find_noise(run, Target.hit_rate(0.01, 0.0))
    assert found.value <= 0.01
    assert account(run).guarantee(1e-5).true_positive_rate(0.0).upper <= 1e-9


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(1.0, 0.9), (1.0, 1e-5), (0.01, 0.5), (8.0, 1e-9), pytest.param(0.3, 0.99, marks=SLOW)],
)
@pytest.mark.parametrize(
    "run", [NoisySGD(PoissonSampling(0.01), 1.0, 1000), NoisySGD(FullBatch(), 1.0, 3)], ids=str
)
def test_what_calibration_returns_keeps_the_target_to_the_last_digit(
    run: NoisySGD, epsilon: float, delta: float
) -> None:
    target = Target.approx_dp(epsilon, delta)
    found = [find_noise(run, target), find_steps(run, target)]
    if isinstance(run.sampling, PoissonSampling):
        found.append(find_rate(run, target))
    for calibrated in found:
        assert calibrated.account().epsilon(delta).upper <= epsilon
        assert calibrated.account().delta(epsilon).upper <= delta


HIT_RATES = [(0.1, 0.01), (1e-3, 1e-4), (0.5, 0.2)]
QUICK_HIT_RATES = [(1, HIT_RATES[1]), (3, HIT_RATES[2]), (20, HIT_RATES[0]), (1000, HIT_RATES[0])]
ALL_HIT_RATES = [(steps, rates) for steps in (1, 3, 10, 20, 1000) for rates in HIT_RATES]


@pytest.mark.parametrize(
    ("steps", "rates"),
    [pytest.param(*case, marks=() if case in QUICK_HIT_RATES else SLOW) for case in ALL_HIT_RATES],
)
def test_a_calibration_to_a_hit_rate_is_kept(
    steps: int, rates: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few looks: where little noise serves there were once 48 to 56 of them, up to 41 s long."""
    hits, alarms = rates
    looks: list[object] = []
    monkeypatch.setattr(calibrate, "account", lambda *asked: looks.append(asked) or account(*asked))
    found = find_noise(NoisySGD(PoissonSampling(0.05), 1.0, steps), Target.hit_rate(hits, alarms))
    assert found.account().guarantee(1e-5).true_positive_rate(alarms).upper <= hits
    assert len(looks) <= 24


# ---- little noise
PARTICIPATE_LONG = {(1e-4, 1000), (1e-4, 10), (0.01, 10)}


def test_little_noise_still_counts_as_sampled() -> None:
    """247.8 at noise 0.0501 and once 767.3 at 0.049."""
    found = [
        account(NoisySGD(PoissonSampling(0.001), noise, 3)).epsilon(1e-5).upper
        for noise in (0.0501, 0.0499, 0.049, 0.04)
    ]
    assert found == sorted(found) and found[1] < 1.02 * found[0] and found[2] < 1.06 * found[0]


@pytest.mark.parametrize("make", [PoissonSampling, FixedSizeSampling])
def test_little_noise_where_records_are_replaced(make: type) -> None:
    """There the edge is at noise 0.1."""
    found = [
        account(NoisySGD(make(0.001), noise, 3, REPLACED)).epsilon(1e-5).upper
        for noise in (0.1001, 0.0999)
    ]
    assert found[0] < found[1] < 1.02 * found[0]


def test_many_steps_of_little_noise_are_safe_where_records_seldom_take_part() -> None:
    run, target = NoisySGD(PoissonSampling(1e-4), 0.04, 1), Target.approx_dp(500.0, 1e-5)
    found = find_steps(run, target)
    assert found.value >= 40
    assert account(Sequence((run,) * 5)).epsilon(1e-5).upper == pytest.approx(
        account(NoisySGD(PoissonSampling(1e-4), 0.04, 5)).epsilon(1e-5).upper, rel=1e-9
    )


@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        pytest.param(rate, steps, marks=SLOW if (rate, steps) in PARTICIPATE_LONG else ())
        for rate in (0.5, 0.01, 1e-4)
        for steps in (1, 10, 1000)
    ],
)
def test_the_bound_by_participations_is_above_the_exact_number(rate: float, steps: int) -> None:
    """Where both can answer: never below, and near for little noise."""
    from tightrope.guarantee.kinds.participation import ParticipationGuarantee

    for noise, factor in ((0.06, 1.1), (0.3, 4.0), (1.0, 100.0)):
        exact = account(NoisySGD(PoissonSampling(rate), noise, steps)).guarantee(1e-5)
        bound = ParticipationGuarantee(rate, 1.0 / noise, steps)
        for delta in (1e-7, 1e-3, 0.1):
            truth = exact.epsilon(delta).lower
            assert bound.epsilon(delta).upper >= truth
            if delta < 0.1 and truth > 1.0:
                assert bound.epsilon(delta).upper <= factor * truth + 1.0
        for epsilon in (0.0, 0.5, 20.0):
            assert bound.delta(epsilon).upper >= exact.delta(epsilon).lower
        assert bound.renyi(2.0).upper >= exact.renyi(2.0).lower


# ---- plans of many tasks
@pytest.mark.parametrize(
    ("records", "tasks"),
    [
        pytest.param(records, tasks, marks=() if (records, tasks) in {(1, 9), (2, 1)} else SLOW)
        for records in (1, 2, 100)
        for tasks in (1, 2, 9)
    ],
)
@pytest.mark.parametrize("budget", [(0.0428, 1e-5), pytest.param((1.0, 0.01), marks=SLOW)])
def test_many_tasks_promise_what_their_guarantee_says(
    records: int, tasks: int, budget: tuple[float, float]
) -> None:
    epsilon, delta = budget
    plan = many_tasks(
        ConvexLoss(1.0, 1.0),
        tasks=tasks,
        records=records,
        dimension=3,
        radius=1.0,
        epsilon=epsilon,
        delta=delta,
    )
    assert plan.guarantee().epsilon(delta).upper <= epsilon == plan.epsilon


# ---- the command for replaced records
ORDINARY = [
    (PoissonSampling(0.01), 0.7, 100, 1e-6),
    (PoissonSampling(0.01), 0.5, 100, 1e-5),
    (PoissonSampling(0.01), 0.8, 100, 1e-5),
    (FixedSizeSampling(0.1), 0.5, 100, 1e-8),
    (FixedSizeSampling(0.1), 0.5, 10, 1e-6),
    (PoissonSampling(0.01), 0.5, 10, 1e-8),
]


@pytest.mark.parametrize("setting", ORDINARY, ids=str)
def test_the_account_of_replaced_records_answers(setting: tuple) -> None:  # type: ignore[type-arg]
    sampling, noise, steps, delta = setting
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = account_view(account(NoisySGD(sampling, noise, steps, REPLACED)), delta)
    advantage = view["answer"]["membership_advantage"]["upper"]
    assert 0.0 < advantage <= 1.0


@pytest.mark.slow
def test_three_hundred_random_settings_answer() -> None:
    source = random.Random(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(300):
            adjacency = source.choice([REPLACED, REPLACED, Adjacency.ADD_OR_REMOVE])
            make = source.choice([PoissonSampling, FixedSizeSampling])
            if adjacency is Adjacency.ADD_OR_REMOVE:
                make = PoissonSampling
            run = NoisySGD(
                make(source.choice([0.01, 0.1, 0.5, 10 ** source.uniform(-4, -0.1)])),
                source.choice([0.5, 0.7, 1.0, 2.0, 10 ** source.uniform(-1, 1)]),
                source.choice([1, 100, 1000, int(10 ** source.uniform(0, 5))]),
                adjacency,
            )
            view = account_view(account(run), source.choice([1e-5, 1e-6]))
            assert view["answer"]["epsilon"]["upper"] >= 0.0


# ---- calibration where hardly anybody may take part, or nearly everything may be lost
def test_rates_so_small_that_nobody_takes_part_are_found() -> None:
    """Once a division by zero and an array of 44.6 TiB."""
    cases = (
        (NoisySGD(PoissonSampling(0.001), 0.1, 2), Target.approx_dp(0.01, 1e-10), 5e-11),
        (NoisySGD(FixedSizeSampling(0.5), 0.1, 10, REPLACED), Target.approx_dp(1.0, 1e-10), 1e-11),
    )
    for run, target, rate in cases:
        found = find_rate(run, target)  # one participation tells everything: delta is steps * rate
        assert found.value == pytest.approx(rate, rel=0.01)
        assert target.met_by(found.account().guarantee(target.delta))


@pytest.mark.parametrize(
    ("run", "steps"),
    [
        pytest.param(NoisySGD(PoissonSampling(0.01), 0.1, 10, REPLACED), 229, marks=SLOW),
        (NoisySGD(PoissonSampling(0.5), 0.1, 10), 3),
        (NoisySGD(PoissonSampling(0.01), 0.1, 10), 229),
    ],
    ids=str,
)
def test_steps_for_a_delta_near_one_are_found(run: NoisySGD, steps: int) -> None:
    """Nearly everybody who takes part is found: 1 - delta is (1 - rate)^steps. Once 21 looks."""
    target = Target.approx_dp(1.0, 0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = find_steps(run, target)
    assert found.value == steps
    one_more = NoisySGD(run.sampling, 0.1, steps + 1, run.adjacency)
    assert account(one_more).delta(1.0).upper > 0.9


def test_noise_for_few_steps_with_replaced_records_is_found() -> None:
    found = find_noise(
        NoisySGD(PoissonSampling(0.01), 1.0, 10, REPLACED), Target.approx_dp(5.0, 1e-5)
    )
    assert found.account().epsilon(1e-5).upper <= 5.0
