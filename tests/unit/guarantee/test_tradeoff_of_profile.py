"""The trade-off function of a profile: closed forms, brute force, and few questions asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from tightrope.accounting import account
from tightrope.guarantee import gaussian
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss.curve import LossCurve
from tightrope.guarantee.loss.pairs import (
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
)
from tightrope.guarantee.tradeoff import supporting_line, tradeoff
from tightrope.numerics.interval import Interval
from tightrope.process import DeclaredApproxDP, NoisySGD, PoissonSampling, Sequence

TYPE_I = (1e-9, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.99)


class Known:
    """A profile in closed form that counts the questions."""

    def __init__(self, delta) -> None:  # type: ignore[no-untyped-def]
        self.delta, self.asked = delta, 0

    def near(self, epsilon: float, room: float) -> Interval:
        self.asked += 1
        return self.delta(epsilon)

    sharp = near


@pytest.mark.parametrize("mu", [0.01, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("a", TYPE_I)
def test_a_gaussian_profile_gives_the_gaussian_curve(mu: float, a: float) -> None:
    known = Known(lambda eps: gaussian.delta_bounds(eps, mu))
    found = supporting_line(known, a)[0]
    truth = norm.cdf(-norm.ppf(a) - mu)
    assert found.lower <= truth * (1 + 1e-12) + 1e-15 and truth <= found.upper + 1e-15
    assert found.width <= 3e-6 * min(1.0 - truth, truth if a > 0.5 else 1.0) + 1e-14
    assert known.asked <= 70


@pytest.mark.parametrize("a", TYPE_I)
@pytest.mark.parametrize("at", [(0.0, 0.3), (1.5, 0.01), (4.0, 0.0)])
def test_one_epsilon_delta_gives_its_polygon(a: float, at: tuple[float, float]) -> None:
    guarantee = ApproxGuarantee(*at)
    found, truth = tradeoff(guarantee, a), guarantee.tradeoff(a)
    assert found.lower <= truth.upper + 1e-12 and truth.lower <= found.upper + 1e-12
    assert found.lower >= truth.lower - 2e-6


def test_ends_and_total_loss() -> None:
    lost = Known(lambda _: Interval.exact(1.0))
    assert supporting_line(lost, 0.3)[0].upper <= 1e-300
    half = Known(lambda _: Interval.exact(0.5))  # infinite loss with probability 1/2
    assert supporting_line(half, 0.25)[0].lower == pytest.approx(0.25, abs=1e-9)
    assert supporting_line(half, 0.75)[0].upper <= 1e-9
    none = Known(lambda _: Interval.exact(0.0))
    assert supporting_line(none, 0.25)[0].lower == pytest.approx(0.75, abs=1e-9)
    assert supporting_line(none, 1.0)[0] == Interval.exact(0.0)
    at_zero = supporting_line(half, 0.0)[0]  # no finite epsilon tells how much is left above it
    assert at_zero.lower == pytest.approx(0.5, abs=1e-9)
    assert at_zero.upper == 1.0


def brute_force(rate: float, mu: float, type_i: float) -> float:
    """Two sampled steps: the two one-way curves on a grid of outcomes, then their common hull."""
    s = np.linspace(-8.0, 8.0 + mu, 601)
    base = np.diff(norm.cdf(np.concatenate([[-np.inf], s, [np.inf]])))
    mixed = (1 - rate) * base + rate * np.diff(
        norm.cdf(np.concatenate([[-np.inf], s, [np.inf]]) - mu)
    )
    p, q = np.outer(mixed, mixed).ravel(), np.outer(base, base).ravel()
    epsilons = 3.0 * np.linspace(0.0, 1.0, 81) ** 2
    lines = []
    for eps in epsilons:
        x = math.exp(eps)
        delta = max(np.maximum(p - x * q, 0.0).sum(), np.maximum(q - x * p, 0.0).sum())
        lines += [1 - delta - x * type_i, (1 - delta - type_i) / x]
    return float(max(lines))


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.5, 2.0), (0.02, 0.7)])
def test_two_steps_against_brute_force(rate: float, noise: float) -> None:
    """Merging outcomes helps the attacker less: the grid's curve is above, by second order."""
    guarantee = account(NoisySGD(PoissonSampling(rate), noise, 2)).guarantee()
    for a in (0.003, 0.1, 0.45, 0.8):
        found, slow = guarantee.tradeoff(a), brute_force(rate, 1.0 / noise, a)
        assert found.upper == pytest.approx(slow, abs=1e-4)
        assert found.width <= 2e-5 * max(1.0 - found.lower, a)


PAIRS = [
    SampledGaussianPair(0.01, 1.0),
    FixedSizeGaussianPair(0.05, 1.0),
    LaplacePair(1.0),
    DiscretePair((-0.5, 0.4), (0.3, 0.7)),
    GaussianPair(0.3),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair).__name__)
@pytest.mark.parametrize("steps", [1, 40])
def test_laws_agree_with_the_exact_method(pair, steps: int) -> None:  # type: ignore[no-untyped-def]
    """The same search with every delta from the exact method."""
    orders = (((pair, steps),), ((pair.reversed(), steps),))
    guarantee = LossGuarantee(orders)
    for a in (0.02,) if steps > 1 else (0.02, 0.9):
        quick, slow = guarantee.tradeoff(a), tradeoff(guarantee, a)
        assert quick.meets(slow)
        assert quick.width <= 1e-4 * max(1.0 - quick.lower, 1e-9) + 1e-13


def test_an_infinite_loss_in_one_order_only_is_counted() -> None:
    """Slow obvious code: two outcomes, 40 times, and what Q alone can show."""
    pair = DiscretePair((-0.5, 0.4), (0.3, 0.7))
    guarantee = LossGuarantee((((pair, 40),), ((pair.reversed(), 40),)))
    seen = [0.3 * math.exp(0.5), 0.7 * math.exp(-0.4)]
    for eps in (0.0, 2.0, 5.0):
        losses = [(0.5 * k - 0.4 * (40 - k), k) for k in range(41)]
        slow = (
            1.0
            - sum(seen) ** 40
            + math.fsum(
                math.comb(40, k)
                * seen[0] ** k
                * seen[1] ** (40 - k)
                * max(1 - math.exp(eps - x), 0.0)
                for x, k in losses
            )
        )
        assert guarantee.delta(eps).upper == pytest.approx(slow, rel=1e-6)
    assert guarantee.epsilon(0.5).lower == math.inf


@pytest.mark.parametrize("epsilon", [2.0, 2.0 * (1 - 1e-15), 2.0 * (1 + 1e-15)])
def test_delta_at_the_largest_loss(epsilon: float) -> None:
    """Two releases of loss at most 1 each: nothing is left at 2 but what was declared to fail."""
    laplace = LossGuarantee((((LaplacePair(1.0), 2),),)).delta(epsilon)
    assert laplace.lower == 0.0 and laplace.upper <= 1e-14
    both = Sequence((DeclaredApproxDP(1.0, 1e-6), DeclaredApproxDP(1.0, 1e-6)))
    declared = account(both).guarantee()
    assert declared.delta(epsilon).lower == pytest.approx(2e-6 - 1e-12, rel=1e-9)
    assert declared.delta(epsilon).upper == pytest.approx(2e-6 - 1e-12, rel=1e-7)


def test_few_steps_are_answered_by_a_few_laws() -> None:
    guarantee = account(NoisySGD(PoissonSampling(0.01), 1.0, 2)).guarantee()
    exact: list[float] = []
    curve = LossCurve(guarantee.directions(), lambda eps: exact.append(eps) or guarantee.delta(eps))
    for a in (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5):
        found = supporting_line(curve, a)[0]
        assert found.width <= 1e-5 * (1.0 - found.lower)
    assert len(exact) <= 3
    assert sum(len(order.laws) for order in curve.orders) <= 8


def test_bounds_of_a_curve_enclose_the_profile() -> None:
    guarantee = account(NoisySGD(PoissonSampling(0.05), 1.0, 5)).guarantee()
    curve = LossCurve(guarantee.directions(), guarantee.delta)
    for eps in (0.0, 0.01, 0.3, 1.0, 4.0, 30.0):
        truth = guarantee.delta(eps)
        for room in (1e-3, 1e-9):
            near, sharp = curve.near(eps, room), curve.sharp(eps, room)
            assert near.meets(truth) and sharp.meets(truth)
            assert near.width <= max(room, 1e-2 * near.upper)
            assert sharp.width <= max(room, 1e-5 * sharp.upper)
