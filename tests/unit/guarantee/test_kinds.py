"""Kinds of guarantees: groups, attained pairs, failures, profiles, and risks for a person."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope import (
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    PoissonSampling,
    Sequence,
    account,
)
from tightrope.errors import InvalidInput
from tightrope.guarantee.approx import tradeoff_interval
from tightrope.guarantee.base import Validity, belief, hit_rate
from tightrope.guarantee.compose import compose
from tightrope.guarantee.gaussian import delta_bounds
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.kinds.profile import ProfileGuarantee, _convex_below, pair_above
from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee
from tightrope.guarantee.kinds.stopped import FailingGuarantee
from tightrope.numerics.interval import Interval
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    DeclaredApproxDP,
    LaplaceMechanism,
    NoisySGD,
)
from tightrope.theorems.releases import SingleReleasesExact

BALLS = BallsInBinsSampling(10)


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0, 19.9])
@pytest.mark.parametrize("share", [0.5, 2.0, 30.0, 690.0])
def test_the_chain_is_never_below_the_truth(size, mu, share) -> None:
    """At 690 a record the factor is beyond e^700: it must not be cut off there."""
    chained = GroupGuarantee(GaussianGuarantee(mu), size).delta(size * share)
    assert chained.upper >= GaussianGuarantee(size * mu).delta(size * share).lower


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("mu", [0.2, 1.5])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_epsilon_is_the_inverse_of_delta(size, mu, delta) -> None:
    chained = GroupGuarantee(GaussianGuarantee(mu), size)
    epsilon = chained.epsilon(delta).upper
    assert chained.delta(epsilon).upper <= delta * (1 + 1e-9)
    assert chained.delta(epsilon * (1 - 1e-4)).upper > delta


def test_pure_privacy_adds_up() -> None:
    assert GroupGuarantee(ApproxGuarantee(0.3), 4).epsilon(0.0).upper == pytest.approx(1.2)
    assert GroupGuarantee(GaussianGuarantee(1.0), 4).epsilon(0.0).upper == math.inf


@pytest.mark.parametrize("single", [DeclaredApproxDP(0.5, 1e-7), NoisySGD(BALLS, 1.0, 20)], ids=str)
def test_chains_compose_link_by_link(single) -> None:
    """Replaced twice, or two of a group twice: the chain of what is composed for one record."""
    one = account(single).guarantee()
    for moved in (lambda g: g.as_replace_one(), lambda g: g.group(2)):
        twice, whole = moved(one) ** 2, moved(one**2)
        assert twice.epsilon(1e-5) == whole.epsilon(1e-5)
        assert twice.epsilon(1e-5).upper < math.inf
        assert twice.unit_of_privacy == whole.unit_of_privacy


# ---- a Gaussian guarantee whose attained mu is not its upper end keeps both, whatever is done
PART = GaussianGuarantee(1.0, Adjacency.ADD_OR_REMOVE, Validity.EXACT, least_mu=0.9)
LOW, HIGH = (GaussianGuarantee(mu, validity=Validity.EXACT) for mu in (0.9, 1.0))
OTHER = SingleReleasesExact.guarantee(LaplaceMechanism(3.0))


def test_answers_lie_between_both() -> None:
    for made in (lambda g: g, lambda g: g.group(3), lambda g: compose([g, HIGH], [4, 1])):
        part, low, high = made(PART), made(LOW), made(HIGH)
        assert part.two_sided
        for delta in (1e-9, 1e-3):
            found = part.epsilon(delta)
            assert found.lower == pytest.approx(low.epsilon(delta).lower, rel=1e-12)
            assert found.upper == high.epsilon(delta).upper
        assert part.gaussian_mu().upper == high.mu


def test_composed_with_other_noise_the_lower_end_is_of_what_is_attained() -> None:
    found, low, high = (compose([part, OTHER], [2, 1]) for part in (PART, LOW, HIGH))
    assert found.two_sided
    assert found.validity is Validity.BOUND
    assert found.epsilon(1e-5).upper == pytest.approx(high.epsilon(1e-5).upper, rel=1e-9)
    assert found.epsilon(1e-5).lower <= low.epsilon(1e-5).upper
    assert found.epsilon(1e-5).lower == pytest.approx(low.epsilon(1e-5).lower, rel=1e-6)


def test_it_cannot_lie_above() -> None:
    with pytest.raises(InvalidInput, match="least_mu"):
        GaussianGuarantee(1.0, least_mu=1.1)


# ---- renyi releases and (epsilon, delta) releases in one budget
ZCDP = RenyiGuarantee(RenyiCurve.of(LinearTerm(0.05)))


def test_failures_are_kept_apart() -> None:
    composed = compose([ZCDP, ApproxGuarantee(0.3, 1e-6)], [1, 4])
    pure = compose([ZCDP, ApproxGuarantee(0.3)], [1, 4])
    assert isinstance(composed, FailingGuarantee)
    assert composed.failure == pytest.approx(4e-6, rel=1e-5)
    for epsilon in (0.0, 0.5, 2.0):
        inner = pure.delta(epsilon).upper
        assert composed.delta(epsilon).upper == pytest.approx(inner + 4e-6 * (1 - inner), rel=1e-5)
    assert composed.epsilon(1e-5).upper > pure.epsilon(1e-5).upper
    assert composed.epsilon(3e-6).upper == math.inf
    assert composed.epsilon(1.0).upper == 0.0
    assert composed.renyi(2.0).upper == math.inf


def test_order_and_nesting_do_not_matter() -> None:
    approx, other = ApproxGuarantee(0.3, 1e-6), ApproxGuarantee(0.1, 1e-7)
    flat = compose([ZCDP, approx, other]).epsilon(1e-5).upper
    assert ((ZCDP @ approx) @ other).epsilon(1e-5).upper == pytest.approx(flat, rel=1e-9)
    assert (other @ (approx @ ZCDP)).epsilon(1e-5).upper == pytest.approx(flat, rel=1e-9)


def test_never_below_the_composition_by_pairs() -> None:
    """Gaussian noise is zCDP: its exact composition with an (epsilon, delta) release is known."""
    approx = DeclaredApproxDP(0.2, 1e-6)
    exact = account(Sequence((GaussianMechanism(3.0), approx))).epsilon(1e-5)
    renyi = account(Sequence((DeclaredZeroConcentrated(1 / 18), approx))).epsilon(1e-5)
    assert exact.upper <= renyi.upper <= 1.3 * exact.upper


def test_every_kind_of_release_in_one_budget() -> None:
    run = NoisySGD(PoissonSampling(0.01), 1.0, 100)
    parts = (run, DeclaredZeroConcentrated(0.01), DeclaredApproxDP(0.1, 1e-7))
    discrete = DiscreteGaussianMechanism(3.0)
    fewer, all_of_them = (account(Sequence(p)) for p in (parts, (*parts, discrete)))
    assert fewer.epsilon(1e-5).upper < all_of_them.epsilon(1e-5).upper < 3.0
    # the discrete Gaussian is as good as 1/(2 sigma^2)-zCDP (Canonne, Kamath, Steinke 2020)
    same = account(Sequence((*parts, DeclaredZeroConcentrated(1 / 18))))
    assert all_of_them.epsilon(1e-5).upper <= same.epsilon(1e-5).upper * (1 + 1e-9)


# ---- a profile known by bounds at some epsilons becomes a pair that is nowhere below the truth
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [0.001, 0.05, 1.0])
def test_the_convex_function_lies_between_the_truth_and_its_bounds(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    x = scale * np.cumsum(rng.exponential(size=50))
    truth = np.maximum(0.0, 1.0 - x / x[-1]) ** 2  # convex, falling
    bounds = truth + rng.exponential(scale=0.1, size=50) * (rng.random(50) < 0.7)
    kept = _convex_below(x, bounds - np.maximum(1.0 - x, 0.0))
    found = np.interp(x, x[kept], bounds[kept])
    assert np.all(found >= truth * (1 - 1e-14)) and np.all(found <= bounds * (1 + 1e-14))
    assert np.all(np.diff(np.diff(found) / np.diff(x)) >= -1e-12 / scale)
    touched = np.isclose(found, bounds, rtol=1e-12)
    assert touched[0] and touched[-1]  # it is the largest one


@pytest.mark.parametrize("top", [5.0, 60.0, 400.0])
def test_a_grid_that_reaches_far_loses_no_mass(top: float) -> None:
    """Near e^-60 a profile is 1 less rounding: slopes there once made a tenth of it infinite."""
    mu, grid = 0.5, np.concatenate([np.linspace(0.0, 5.0, 1001), np.linspace(5.01, top, 200)])
    pair = pair_above(*(2 * [lambda epsilon: delta_bounds(epsilon, mu).upper]), grid)
    assert pair.infinite_mass < delta_bounds(5.0, mu).upper + 1e-14
    for epsilon in (0.0, 0.1, 1.0, 2.5):
        found, true = math.exp(pair.log_delta_single(epsilon).upper), delta_bounds(epsilon, mu)
        assert true.lower <= found <= true.upper * (1 + 1e-3) + 1e-14


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_bounds_that_are_no_profile_compose_above_the_truth(mu: float) -> None:
    """Loose around epsilon 0, where a bound may be 1, and close where it matters."""

    def bound(epsilon: float) -> float:
        return min(1.0, delta_bounds(epsilon, mu).upper * (1.0 + 3.0 * math.exp(-8.0 * epsilon)))

    loose = ProfileGuarantee(bound)
    other = account(GaussianMechanism(2.0)).guarantee(1e-5)
    found = compose([loose, other]).epsilon(1e-5).upper
    truth = account(GaussianMechanism(1.0 / math.hypot(mu, 0.5))).epsilon(1e-5).lower
    assert truth <= found <= 1.05 * truth


# ---- what a guarantee means for one person
def test_true_positive_rate():
    rate = hit_rate(Interval(0.25, 0.5))
    assert rate.lower <= 0.5 and rate.upper >= 0.75
    assert rate.width == pytest.approx(0.25, rel=1e-12)


def test_posterior_is_bayes_rule():
    type_ii = Interval.exact(0.2)
    found = belief(0.1, 0.05, type_ii)
    assert found.upper == pytest.approx(0.1 * 0.8 / (0.1 * 0.8 + 0.9 * 0.05), rel=1e-13)
    assert belief(0.1, 0.0, type_ii).upper == 1.0
    assert belief(0.1, 0.0, Interval.exact(1.0)).upper == pytest.approx(0.1, rel=1e-14)
    assert belief(0.0, 0.05, type_ii).upper == 0.0
    assert belief(1.0, 0.05, type_ii).upper == 1.0


def test_posterior_under_pure_dp_never_exceeds_its_bound():
    for prior in (0.001, 0.5, 0.9):
        bound = prior / (prior + (1 - prior) * math.exp(-0.7)) * (1 + 1e-15)
        for fpr in (1e-6, 0.01, 0.3, 0.9):
            assert belief(prior, fpr, tradeoff_interval(fpr, 0.7, 0.0)).lower <= bound


@pytest.mark.parametrize(
    "call",
    [
        lambda: belief(1.5, 0.1, Interval.exact(0.5)),
        lambda: belief(0.5, -0.1, Interval.exact(0.5)),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
