"""Many different releases together: grouped on the safe side, never without an answer."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.grouping import grouped
from tightrope.guarantee.loss.pairs import (
    AllocationPair,
    FixedSizeGaussianPair,
    GaussianMixturePair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
)
from tightrope.process import (
    DeclaredApproxDP,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    RandomizedResponse,
    Sequence,
)

EPSILONS = (0.0, 0.05, 0.3, 1.0, 2.5)


def sampled(count: int) -> tuple:  # type: ignore[type-arg]
    """Some for each of three noises, so that both rate and mu are grouped."""
    rates = np.geomspace(1e-3, 0.3, count)
    return tuple(
        (SampledGaussianPair(float(q), (0.5, 0.8, 1.3)[i % 3]), 1 + i % 2)
        for i, q in enumerate(rates)
    )


FAMILIES = {
    "sampled": sampled(24),
    "replaced": tuple((GaussianMixturePair(p.rate, p.mu, 1, 1), n) for p, n in sampled(24)),
    "users": tuple((GaussianMixturePair(p.rate, p.mu, 0, 3), n) for p, n in sampled(24)),
    "fixed size": tuple((FixedSizeGaussianPair(p.rate, p.mu), n) for p, n in sampled(24)),
    "balls in bins": tuple((AllocationPair(9, 0.1 * i, "add"), 1) for i in range(1, 13)),
    "Laplace": tuple((LaplacePair(float(b)), 1) for b in range(2, 12)),
    "declared": tuple((approx_pair(0.01 * i, 1e-7 * (i % 4)), 1) for i in range(1, 25)),
    "plain": tuple((GaussianPair(0.01 * i), i) for i in range(1, 25)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("most", [1, 4])
def test_groups_lose_more_on_the_one_side_and_less_on_the_other(family: str, most: int) -> None:
    order = FAMILIES[family]
    above, below = grouped(order, most, "upper"), grouped(order, most, "lower")
    for group in (above, below):
        assert len(group) <= most
        assert family == "plain" or sum(n for _, n in group) == sum(n for _, n in order)
    for epsilon in (0.3, 1.0):
        less, true, more = (profile.delta(parts, epsilon) for parts in (below, order, above))
        assert less.lower <= true.upper * (1 + 1e-9) and true.lower <= more.upper * (1 + 1e-9)
    if most > 1:
        coarse = grouped(order, 1, "upper")
        assert profile.delta(above, 1.0).lower <= profile.delta(coarse, 1.0).upper * (1 + 1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_worst_of_a_group_dominates_each_of_it(family: str) -> None:
    """One by one, at every epsilon: what the composition of groups rests on."""
    order = FAMILIES[family]
    if family in ("plain", "balls in bins"):  # no closed form
        return
    (above, _), (below, _) = grouped(order, 1, "upper")[0], grouped(order, 1, "lower")[0]
    for pair, _ in order:
        for epsilon in (-1.0, *EPSILONS):
            found = pair.log_delta_single(epsilon)
            if family != "declared":  # failures are shared by the group
                assert below.log_delta_single(epsilon).lower <= found.upper + 1e-9
                assert found.lower <= above.log_delta_single(epsilon).upper + 1e-9


def test_failures_of_a_group_are_those_of_its_parts() -> None:
    order = tuple((approx_pair(0.1, d), n) for d, n in ((1e-3, 2), (0.0, 5), (0.2, 1)))
    ((above, steps),) = grouped(order, 1, "upper")
    kept = (1 - 1e-3) ** 2 * (1 - 0.2)
    assert (1 - above.infinite_mass) ** steps == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize("low, high", [(1e-4, 1e-2), (1e-5, 1e-3), (1e-2, 1e-1)])
def test_a_thousand_rates(low: float, high: float) -> None:
    """Held against the same steps at 20 rates, below and above."""
    rates = np.geomspace(low, high, 1000)
    found = account(Sequence(tuple(NoisySGD(PoissonSampling(q), 1.0, 1) for q in rates.tolist())))
    answer = found.epsilon(1e-5)
    assert answer.relative_width < 0.05
    for side, at in (("lower", 0), ("upper", -1)):
        blocks = rates.reshape(20, 50)[:, at].tolist()
        few = Sequence(tuple(NoisySGD(PoissonSampling(q), 1.0, 50) for q in blocks))
        bound = account(few).epsilon(1e-5)
        assert bound.lower <= answer.upper if side == "lower" else answer.lower <= bound.upper


def test_rare_losses_of_many_kinds_are_not_followed_together() -> None:
    """One family of so many laws asked for gigabytes."""
    rates = np.geomspace(1e-5, 1e-3, 1500).tolist()
    run = Sequence(tuple(NoisySGD(PoissonSampling(q), 1.0, 1) for q in rates))
    tracemalloc.start()
    answer = account(run).epsilon(1e-5)
    assert tracemalloc.get_traced_memory()[1] < 5e8
    tracemalloc.stop()
    assert 0.0 < answer.upper < 1.0


MANY = {
    "Laplace": [LaplaceMechanism(b) for b in np.linspace(50.0, 100.0, 70).tolist()],
    "many Laplace": [LaplaceMechanism(b) for b in np.linspace(500.0, 900.0, 1000).tolist()],
    "declared": [DeclaredApproxDP(e) for e in np.linspace(0.001, 0.002, 65).tolist()],
    "failing": [DeclaredApproxDP(e, 1e-9) for e in np.linspace(0.001, 0.002, 1000).tolist()],
    "answers": [RandomizedResponse(f, 3) for f in np.linspace(0.95, 0.99, 65).tolist()],
    "many answers": [RandomizedResponse(f, 3) for f in np.linspace(0.99, 0.999, 400).tolist()],
    "numbers": [DiscreteGaussianMechanism(s) for s in np.linspace(20.0, 30.0, 65).tolist()],
    "many numbers": [DiscreteGaussianMechanism(s) for s in np.linspace(20.0, 30.0, 301).tolist()],
}


@pytest.mark.parametrize("kind", MANY)
def test_many_kinds_get_at_least_the_bound_that_a_sum_gives(kind: str) -> None:
    parts = MANY[kind]
    run = Sequence(tuple(parts))
    each = [account(part).epsilon(5e-6 / len(parts)).upper for part in parts[:: len(parts) // 8]]
    answer = account(run, check="off").epsilon(1e-5)
    assert 0.0 < answer.upper <= math.fsum(each) / len(each) * len(parts) * 1.1


def test_the_sum_answers_both_questions() -> None:
    """More kinds than any method follows: losses and Renyi slopes add up."""
    found = account(Sequence(tuple(MANY["many numbers"])), check="off")
    mu = math.sqrt(math.fsum(1.0 / part.sigma**2 for part in MANY["many numbers"]))
    answer = found.epsilon(1e-5)
    gaussian = account(GaussianMechanism(1.0 / mu)).epsilon(1e-5).lower
    assert 0.999 * gaussian <= answer.upper <= 1.4 * gaussian
    assert found.delta(answer.upper * (1 + 1e-9)).upper <= 1e-5 * (1 + 1e-6)
    assert found.delta(0.5 * gaussian).upper >= 1e-5


def test_a_chain_of_users_that_proves_no_more_is_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One look at the answer shows it; a search took a dozen whole epsilons of a second each."""
    steps = (NoisySGD(PoissonSampling(q), 1.0, 1) for q in np.geomspace(1e-4, 0.05, 200).tolist())
    users = account(Sequence(tuple(steps)).group(3))
    monkeypatch.setattr(GroupGuarantee, "_one_epsilon", lambda chain, delta: pytest.fail("asked"))
    found = users.epsilon(1e-5)
    assert found.relative_width < 0.1
