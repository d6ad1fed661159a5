"""One record zeroed: every sampler against data sets whose batches are all enumerated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from tightrope import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    RandomizedResponse,
    ShuffledSampling,
    account,
)
from tightrope.convex.losses import Logistic
from tightrope.convex.problem import Problem
from tightrope.errors import AdjacencyMismatch, DoesNotApply, InvalidInput
from tightrope.process import (
    NoiseSchedule,
    RandomAllocationSampling,
    Repeated,
    SampledRelease,
    TruncatedPoissonSampling,
)
from tightrope.process.adjacency import check_rows
from tightrope.process.mechanism import TreeAggregation
from tightrope.train import PoissonSampler

ZEROED, REMOVED, REPLACED = Adjacency.ZERO_OUT, Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE
OTHERS = [(0.0,) * 4, (-1.0,) * 4, (1.0,) * 4, (-1.0, 1.0, -1.0, 0.5)]
EPSILONS = (0.0, 0.2, 0.7, 1.5)


def batches(how: str, n: int) -> Iterator[tuple[tuple[int, ...], float]]:
    if how == "fixed":
        every = list(combinations(range(n), 2))
        yield from ((batch, 1.0 / len(every)) for batch in every)
        return
    for drawn in product((0, 1), repeat=n):
        batch = tuple(i for i in range(n) if drawn[i])
        yield batch, 0.4 ** len(batch) * 0.6 ** (n - len(batch))


def cells(how: str, values: tuple[float, ...], sigma: float, x: Any) -> Any:
    """The chances of the cells between points: a coarser look at the sum of one step."""
    return sum(
        chance * np.diff(ndtr((x - sum(values[i] for i in batch)) / sigma))
        for batch, chance in batches(how, len(values))
    )


def worst(pairs: list[Any], epsilon: float) -> float:
    """delta of independent steps, the worse order."""
    p, q = pairs[0]
    for other_p, other_q in pairs[1:]:
        p, q = np.multiply.outer(p, other_p).ravel(), np.multiply.outer(q, other_q).ravel()
    rise = math.exp(epsilon)
    return max(float(np.maximum(a - rise * b, 0.0).sum()) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize(
    ("how", "sampling"), [("fixed", FixedSizeSampling(2 / 5)), ("poisson", PoissonSampling(0.4))]
)
@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_no_data_set_with_a_null_record_loses_more(how: str, sampling: Any, sigma: float) -> None:
    steps, coarse = (
        [[cells(how, (*rest, last), sigma, x) for last in (1.0, 0.0)] for rest in OTHERS]
        for x in (np.linspace(-9.0 - 7 * sigma, 9.0 + 7 * sigma, count) for count in (20001, 401))
    )
    one, two = (account(NoisySGD(sampling, sigma, n, ZEROED)) for n in (1, 2))
    for eps in EPSILONS:
        truths = [worst([step], eps) for step in steps]
        assert max(truths) <= one.delta(eps).upper + 1e-12
        assert one.delta(eps).lower <= max(truths) * (1 + 1e-5)  # cells lose a little
        twice = [worst([a, b], eps) for a, b in product(coarse[:3], repeat=2)]
        assert max(twice) <= two.delta(eps).upper + 1e-12


def test_a_batch_of_fixed_size_costs_more_than_a_poisson_batch() -> None:
    """The null record takes another's place: one clip norm apart is not enough."""
    x = np.linspace(-16.0, 16.0, 4001)
    pair = tuple(cells("fixed", (*OTHERS[1], last), 0.8, x) for last in (1.0, 0.0))
    poisson = account(NoisySGD(PoissonSampling(2 / 5), 0.8, 1, ZEROED))
    assert worst([pair], 1.5) > 1.5 * poisson.delta(1.5).upper


@pytest.mark.parametrize(
    "run",
    [
        NoisySGD(PoissonSampling(0.01), 1.0, 500, ZEROED),
        NoisySGD(PoissonSampling(0.01), 0.04, 5, ZEROED),
        NoisySGD(BallsInBinsSampling(20), 1.0, 40, ZEROED),
        NoisySGD(RandomAllocationSampling(20, 3), 1.5, 20, ZEROED),
        NoisySGD(ShuffledSampling(20), 4.0, 40, ZEROED),
        NoisySGD(CyclicSampling(20), 4.0, 40, ZEROED),
        NoisySGD(FullBatch(), 8.0, 4, ZEROED),
        NoiseSchedule(PoissonSampling(0.1), (1.0, 2.0, 3.0), ZEROED),
        SampledRelease(LaplaceMechanism(0.7), 0.2, ZEROED),
        SampledRelease(LaplaceMechanism(0.01), 0.2, ZEROED),
        TreeAggregation(5.0, 16, ZEROED),
    ],
)
def test_where_batches_do_not_depend_on_who_is_in_them_zeroed_is_removed(run: Any) -> None:
    zeroed, removed = account(run), account(replace(run, adjacency=REMOVED))
    assert zeroed.epsilon(1e-5) == removed.epsilon(1e-5)
    promise = zeroed.guarantee()
    assert promise.adjacency is ZEROED and promise.unit_of_privacy == "one record"
    assert promise.group(3).epsilon(1e-3) == removed.guarantee().group(3).epsilon(1e-3)
    twice = promise.as_replace_one()
    assert twice.adjacency is REPLACED
    assert twice.epsilon(1e-3) == removed.guarantee().as_replace_one().epsilon(1e-3)


def test_zeroed_twice_is_replaced_exactly_for_poisson_batches() -> None:
    zeroed, replaced = (
        account(NoisySGD(PoissonSampling(0.02), 1.0, 300, who)) for who in (ZEROED, REPLACED)
    )
    assert zeroed.guarantee().as_replace_one().epsilon(1e-6) == replaced.epsilon(1e-6)
    both = zeroed.guarantee() @ account(GaussianMechanism(5.0, ZEROED)).guarantee()
    assert both.adjacency is ZEROED and both.epsilon(1e-6).width < 1e-6
    with pytest.raises(AdjacencyMismatch):
        zeroed.guarantee() @ replaced.guarantee()


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 100), (0.04, 3), (2.0, 0)])
def test_fixed_size_is_bounded_by_a_replaced_record(noise: float, steps: int) -> None:
    run = NoisySGD(FixedSizeSampling(0.05), noise, steps, ZEROED)
    found, replaced = (account(r).epsilon(1e-5) for r in (run, replace(run, adjacency=REPLACED)))
    assert found.upper == replaced.upper and found.lower <= replaced.lower
    whole = account(NoisySGD(FixedSizeSampling(1.0), 4.0, 3, ZEROED))  # no place to take
    assert whole.epsilon(1e-5).upper == account(NoisySGD(FullBatch(), 4.0, 3)).epsilon(1e-5).upper


def test_cut_batches_of_users_keep_their_size() -> None:
    """A chain of zeroed records has as many records in all of its links."""
    run = NoisySGD(TruncatedPoissonSampling(0.1, 12, 100), 2.0, 20, ZEROED)
    one, removed = account(run).guarantee(), account(replace(run, adjacency=REMOVED)).guarantee()
    chain = one.group(3)
    assert chain.adjacency is ZEROED and chain.records == 3
    assert chain.epsilon(1e-4).upper > one.epsilon(1e-4).upper > removed.epsilon(1e-4).upper


def test_where_no_null_record_has_a_meaning_it_is_refused() -> None:
    with pytest.raises(DoesNotApply, match="replace-one"):
        account(RandomizedResponse(0.5, adjacency=REMOVED)).epsilon(0.0)
    with pytest.raises(InvalidInput, match="a null record is not a row"):
        check_rows("zero-out", "Learning from rows")
    assert check_rows("replace-one", "Learning from rows") is REPLACED
    with pytest.raises(InvalidInput, match="Learning from rows takes"):
        Problem(None, Logistic(), adjacency=ZEROED)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="PoissonSampler takes"):
        PoissonSampler(0.1, adjacency=ZEROED)


@pytest.mark.parametrize("flip, categories", [(0.5, 2), (0.1, 5), (0.9, 100), (1.0, 3)])
@pytest.mark.parametrize("times", [1, 3])
def test_a_null_record_answers_uniformly(flip: float, categories: int, times: int) -> None:
    """All answers of up to three people's worth of questions, enumerated by how many are true."""
    truth, other = 1 - flip + flip / categories, flip / categories
    run = RandomizedResponse(flip, categories, ZEROED)
    found = account(run if times == 1 else Repeated(run, times))
    for epsilon in EPSILONS:
        sums = [0.0, 0.0]
        for right in range(times + 1):
            ways = math.comb(times, right) * (categories - 1) ** (times - right)
            p = truth**right * other ** (times - right)
            q = categories**-times
            sums[0] += ways * max(p - math.exp(epsilon) * q, 0.0)
            sums[1] += ways * max(q - math.exp(epsilon) * p, 0.0)
        answer = found.delta(epsilon)
        assert answer.lower <= max(sums) * (1 + 1e-9) + 1e-15
        assert max(sums) * (1 - 1e-9) - 1e-15 <= answer.upper
        assert answer.width <= 1e-3 * max(sums) + 1e-12
    swapped = account(RandomizedResponse(flip, categories)).epsilon(0.0)
    assert account(run).epsilon(0.0).upper <= swapped.upper * (1 + 1e-12)
