"""Laws that every guarantee obeys, whatever it was built from."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightrope.accounting import account
from tightrope.errors import AdjacencyMismatch, InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import (
    LinearTerm,
    RenyiCurve,
    RenyiGuarantee,
    TableTerm,
    renyi_guarantee_of,
)
from tightrope.numerics.interval import Interval
from tightrope.process import (
    Adjacency,
    DeclaredApproxDP,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    RandomizedResponse,
    Repeated,
    Sequence,
)
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff

FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sampled(rate: float, noise: float, steps: int) -> Guarantee:
    return account(NoisySGD(PoissonSampling(rate), noise, steps)).guarantee()


KINDS = {
    "gaussian": GaussianGuarantee(0.7),
    "approx": ApproxGuarantee(1.0, 1e-6),
    "pure": ApproxGuarantee(0.8),
    "renyi": RenyiGuarantee(RenyiCurve.of(LinearTerm(0.2))),
    "table": RenyiGuarantee(RenyiCurve.of(TableTerm((2.0, 5.0, 20.0), (0.1, 0.4, 2.0)))),
    "sampled": sampled(0.02, 1.0, 200),
    "laplace": account(LaplaceMechanism(2.0)).guarantee(),
    "group": ApproxGuarantee(0.3, 1e-7).group(2),
}
KIND = pytest.mark.parametrize("guarantee", KINDS.values(), ids=KINDS.keys())


@KIND
def test_epsilon_falls_as_delta_grows(guarantee: Guarantee) -> None:
    epsilons = [guarantee.epsilon(d).upper for d in (1e-9, 1e-7, 1e-5, 1e-3, 1e-1, 1.0)]
    assert all(a >= b for a, b in itertools.pairwise(epsilons))
    assert epsilons[-1] == 0.0
    assert min(epsilons) >= 0.0


@KIND
def test_delta_falls_as_epsilon_grows(guarantee: Guarantee) -> None:
    deltas = [guarantee.delta(e).upper for e in (0.0, 0.3, 1.0, 3.0, 8.0)]
    assert all(a >= b for a, b in itertools.pairwise(deltas))
    assert all(0.0 <= d <= 1.0 for d in deltas)


@KIND
def test_epsilon_and_delta_are_inverse(guarantee: Guarantee) -> None:
    epsilon = guarantee.epsilon(1e-5).upper
    if math.isfinite(epsilon):
        assert guarantee.delta(epsilon).lower <= 1e-5 * (1 + 1e-6)


@KIND
def test_a_tradeoff_curve_is_below_guessing_and_falls(guarantee: Guarantee) -> None:
    errors = [0.001, 0.01, 0.1, 0.3, 0.6, 0.9]
    curve = [guarantee.tradeoff(a) for a in errors]
    for a, value in zip(errors, curve, strict=True):
        assert 0.0 <= value.lower <= value.upper <= 1.0 - a + 1e-12
    lows = [value.lower for value in curve]
    assert all(x >= y - 1e-9 for x, y in itertools.pairwise(lows))


@KIND
def test_a_tradeoff_curve_respects_every_epsilon_delta(guarantee: Guarantee) -> None:
    """f(a) >= 1 - delta(eps) - e^eps a for each eps: the curve is their upper envelope."""
    for a in (0.01, 0.2):
        for epsilon in (0.0, 0.5, 2.0):
            line = 1.0 - guarantee.delta(epsilon).upper - math.exp(epsilon) * a
            assert guarantee.tradeoff(a).upper >= line - 1e-9


@KIND
def test_renyi_grows_with_the_order(guarantee: Guarantee) -> None:
    values = [guarantee.renyi(a).upper for a in (1.5, 2.0, 4.0, 8.0, 16.0)]
    assert all(x <= y * (1 + 1e-12) for x, y in itertools.pairwise(values))


@KIND
def test_risk_views_are_probabilities(guarantee: Guarantee) -> None:
    rate = guarantee.true_positive_rate(0.05)
    assert 0.05 - 1e-9 <= rate.upper <= 1.0
    assert guarantee.advantage().upper >= rate.lower - 0.05 - 1e-9
    belief = guarantee.posterior(0.5, 0.05)
    assert 0.5 - 1e-9 <= belief.upper <= 1.0


@KIND
def test_a_group_of_one_is_one(guarantee: Guarantee) -> None:
    assert guarantee.group(1) is guarantee or guarantee.group(1) == guarantee


@KIND
def test_groups_cost_more(guarantee: Guarantee) -> None:
    assert guarantee.group(3).epsilon(1e-5).upper >= guarantee.epsilon(1e-5).lower


@pytest.mark.parametrize("name", ["gaussian", "renyi", "sampled", "table"])
def test_n_times_equals_a_list_of_n(name: str) -> None:
    one = KINDS[name]
    power, chain = (one**3).epsilon(1e-5), compose([one, one, one]).epsilon(1e-5)
    assert power.upper == pytest.approx(chain.upper, rel=1e-9)
    assert ((one @ one) @ one).epsilon(1e-5).upper == pytest.approx(chain.upper, rel=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "approx", "renyi", "sampled", "laplace"])
def test_nothing_added_changes_nothing(name: str) -> None:
    one = KINDS[name]
    assert compose([one, GaussianGuarantee(0.0)], [1, 0]) == one
    assert (one**0).epsilon(1e-5).upper == 0.0


def test_composition_is_free_of_order() -> None:
    a, b = KINDS["sampled"], KINDS["gaussian"]
    assert (a @ b).epsilon(1e-6).upper == pytest.approx((b @ a).epsilon(1e-6).upper, rel=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "pure", "sampled"])
def test_the_renyi_view_never_tightens(name: str) -> None:
    exact = KINDS[name]
    by_renyi = renyi_guarantee_of(exact)
    for delta in (1e-3, 1e-6, 1e-9):
        assert by_renyi.epsilon(delta).upper >= exact.epsilon(delta).lower
    assert by_renyi.delta(1.0).upper >= exact.delta(1.0).lower


def test_routes_are_ordered() -> None:
    curve = RenyiCurve.of(LinearTerm(0.2))
    optimal, lemma, classical = (
        RenyiGuarantee(curve, route=route).epsilon(1e-5).upper
        for route in ("optimal", "lemma1", "classical")
    )
    truth = GaussianGuarantee(math.sqrt(0.4)).epsilon(1e-5).lower
    assert truth <= optimal <= lemma * (1 + 1e-12) <= classical * (1 + 1e-9)


def test_gaussian_mu_covers_the_profile() -> None:
    guarantee = KINDS["sampled"]
    mu = guarantee.gaussian_mu(1e-9)
    assert mu.lower <= mu.upper <= mu.lower * (1 + 1e-3)
    cover = GaussianGuarantee(mu.upper)
    for delta in (1e-1, 1e-3, 1e-6, 1e-9):
        assert cover.epsilon(delta).upper >= guarantee.epsilon(delta).lower


def test_different_neighbours_do_not_compose() -> None:
    other = GaussianGuarantee(1.0, Adjacency.REPLACE_ONE)
    with pytest.raises(AdjacencyMismatch, match="as_replace_one"):
        compose([GaussianGuarantee(1.0), other])
    together = GaussianGuarantee(1.0).as_replace_one() @ other
    assert together.gaussian_mu().upper == pytest.approx(math.sqrt(5.0), rel=1e-12)


def test_an_estimate_cannot_be_composed() -> None:
    run = account(NoisySGD(PoissonSampling(0.01), 1.0, 100))
    estimate = run.estimates[0].outcome
    with pytest.raises(InvalidInput, match="Estimate"):
        compose([GaussianGuarantee(1.0), estimate])  # type: ignore[list-item]


@FEW
@given(
    rate=st.floats(0.001, 0.3), noise=st.floats(0.6, 5.0), steps=st.integers(1, 3000),
    delta=st.floats(1e-12, 1e-2),
)  # fmt: skip
def test_more_noise_fewer_steps_smaller_rate_is_more_private(rate, noise, steps, delta) -> None:
    here = sampled(rate, noise, steps).epsilon(delta)
    assert sampled(rate, noise * 1.1, steps).epsilon(delta).lower <= here.upper
    assert sampled(rate, noise, steps + 10).epsilon(delta).upper >= here.lower
    assert sampled(rate * 0.9, noise, steps).epsilon(delta).lower <= here.upper


@FEW
@given(rate=st.floats(0.001, 0.3), noise=st.floats(0.6, 5.0), steps=st.integers(1, 2000))
def test_any_two_analyses_agree(rate, noise, steps) -> None:
    """No certified upper end lies below another certified lower end of an exact analysis."""
    result = account(NoisySGD(PoissonSampling(rate), noise, steps))
    truth = result.epsilon(1e-6)
    for finding in result.certified:
        assert finding.outcome.epsilon(1e-6).upper >= truth.lower * (1 - 1e-12), finding.name


@FEW
@given(steps=st.integers(0, 50), count=st.integers(0, 5))
def test_repeating_a_process_equals_writing_it_out(steps: int, count: int) -> None:
    run = NoisySGD(PoissonSampling(0.05), 1.5, steps)
    written = Sequence((run,) * count) if count else None
    repeated = account(Repeated(run, count)).epsilon(1e-5).upper
    expected = account(written).epsilon(1e-5).upper if written else 0.0
    assert repeated == pytest.approx(expected, rel=1e-9)


def test_a_declared_release_adds_its_epsilon_at_most() -> None:
    run = NoisySGD(PoissonSampling(0.01), 1.0, 500)
    both = Sequence((run, DeclaredApproxDP(0.5)))
    alone, together = account(run).epsilon(1e-5), account(both).epsilon(1e-5)
    assert alone.lower < together.upper <= alone.upper + 0.5 + 1e-9


def test_integers_and_floats_give_the_same_answer() -> None:
    whole, real = account(GaussianMechanism(2)), account(GaussianMechanism(2.0))
    assert whole.epsilon(1e-5) == real.epsilon(1e-5)


@pytest.mark.parametrize("order", [1.5, 4.0])
def test_renyi_divergences_of_independent_releases_add_up(order: float) -> None:
    """Additivity: of every kind of part, and as often as it is run."""
    parts = [GaussianGuarantee(0.7), ApproxGuarantee(0.3), KINDS["renyi"], KINDS["laplace"]]
    times = [2, 1, 3, 5]
    each = [part.renyi(order).upper for part in parts]
    composed = compose(parts, times).renyi(order)
    total = sum(n * one for n, one in zip(times, each, strict=True))
    assert composed.upper == pytest.approx(total, rel=1e-9)
    gaussian = compose([GaussianGuarantee(0.7), GaussianGuarantee(0.2)], [2, 9])
    assert gaussian.renyi(order).upper == pytest.approx(0.5 * order * (2 * 0.49 + 9 * 0.04))


def test_what_is_computed_from_a_release_is_as_private_as_the_release() -> None:
    """Post-processing: answers that are told apart no longer are one point of both laws."""
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.3, 0.2, 0.4])
    whole = DiscreteTradeoff(p, q)
    for merged in ([0, 0, 1, 2], [0, 1, 1, 1], [0, 1, 0, 1]):
        part = DiscreteTradeoff(*(np.bincount(merged, weights=law) for law in (p, q)))
        for epsilon in (0.0, 0.4, 1.2):
            assert part.delta(epsilon) <= whole.delta(epsilon) + 1e-15
        errors = np.linspace(0.0, 1.0, 33)
        assert (part.type_ii(errors) >= whole.type_ii(errors) - 1e-15).all()
    ratio = math.exp(0.4)
    sticks = [np.maximum(a - ratio * b, 0.0).sum() for a, b in ((p, q), (q, p))]
    assert whole.delta(0.4) == pytest.approx(max(sticks))


def test_epsilon_and_delta_are_those_of_the_definition() -> None:
    """P(S) <= e^epsilon P'(S) + delta for every set of answers, and no smaller delta will do."""
    flip, epsilon = 0.4, 0.7
    law = {1: 1 - flip / 2, 0: flip / 2}
    sets = [(), (0,), (1,), (0, 1)]
    needed = max(sum(law[s] - math.exp(epsilon) * law[1 - s] for s in chosen) for chosen in sets)
    release = account(RandomizedResponse(flip)).guarantee()
    assert release.delta(epsilon).upper == pytest.approx(needed, rel=1e-9)
    assert release.epsilon(needed).upper == pytest.approx(epsilon, rel=1e-9)
    assert release.advantage().upper == pytest.approx(1 - flip, rel=1e-9)
    bound = GaussianGuarantee(1.0)  # nothing is known below a bound
    assert bound.loss_known(Interval(1.0, 2.0)) == Interval(0.0, 2.0)
