"""A second look at every answer: true ones pass, false ones are refused."""

from __future__ import annotations

import math

import pytest

from tightrope.accounting import account
from tightrope.errors import ContradictoryMethods
from tightrope.guarantee import check
from tightrope.guarantee.loss import contour, profile
from tightrope.guarantee.loss.pairs import FixedSizeGaussianPair, LaplacePair, SampledGaussianPair
from tightrope.numerics.interval import Interval
from tightrope.process import LaplaceMechanism, NoisySGD, PoissonSampling, Sequence

MNIST = NoisySGD(PoissonSampling(256 / 60000), 1.1, 14062)
RUNS = [
    MNIST,
    NoisySGD(PoissonSampling(0.01), 1.0, 1000),
    NoisySGD(PoissonSampling(0.001), 4.0, 100_000),
    NoisySGD(PoissonSampling(0.5), 1.0, 20),
    NoisySGD(PoissonSampling(1e-4), 0.8, 10_000),
    NoisySGD(PoissonSampling(1e-3), 1.0, 10**9),
    NoisySGD(PoissonSampling(0.01), 1.0, 1),
    NoisySGD(PoissonSampling(1.0), 1.0, 5),
    Sequence((NoisySGD(PoissonSampling(0.01), 1.0, 500), LaplaceMechanism(2.0))),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-40])
def test_true_answers_pass(run, delta: float) -> None:
    result = account(run)
    answer = result.epsilon(delta)
    assert answer == account(run, check="off").epsilon(delta)
    if answer.upper > 0.0:
        assert delta in Interval(
            result.delta(answer.upper).lower * (1 - 1e-9), result.delta(answer.lower).upper * 1.001
        )


def moved(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Make the contour's epsilons wrong by a factor."""
    honest = contour.epsilon_and_reverse

    def wrong(components, delta, **wanted):  # type: ignore[no-untyped-def]
        true, log_reverse = honest(components, delta, **wanted)
        return Interval(true.lower * factor, true.upper * factor), log_reverse

    monkeypatch.setattr(contour, "epsilon_and_reverse", wrong)


@pytest.mark.parametrize("run", RUNS[:4], ids=str)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_epsilon_is_refused(run, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, factor)
    with pytest.raises(ContradictoryMethods, match="report this"):
        account(run).epsilon(1e-6)
    assert account(run, check="off").epsilon(1e-6).upper > 0.0


@pytest.mark.parametrize("factor", [0.9995, 1.0005])
def test_a_thorough_look_sees_small_errors(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, factor)
    assert account(MNIST).epsilon(1e-5).upper > 0.0
    with pytest.raises(ContradictoryMethods):
        account(MNIST, check="full").epsilon(1e-5)


@pytest.mark.parametrize("claim", [1e-6, 1e-4])
def test_a_wrong_delta_is_refused(claim: float) -> None:
    true = account(MNIST).delta(2.3816).upper
    assert true == pytest.approx(1e-5, rel=1e-3)
    orders = account(MNIST).guarantee().directions()
    with pytest.raises(ContradictoryMethods):
        check.confirm_delta(orders, 2.3816, Interval.exact(claim))


def test_the_other_order_is_looked_at_too() -> None:
    """A claim that holds for one order only is wrong."""
    remove = ((SampledGaussianPair(0.01, 1.0), 1000),)
    add = ((SampledGaussianPair(0.01, 1.0, "add"), 1000),)
    claim = profile.epsilon(add, 1e-5)
    with pytest.raises(ContradictoryMethods, match="at most"):
        check.confirm_epsilon((add, remove), 1e-5, claim)
    check.confirm_epsilon((add,), 1e-5, claim)


# runs for whose worse order a saddle-point estimate is 1.1 to 1.4 nats too low
ROUGH_USERS = [
    (0.0004925538676416788, 1.6861069331977907, 48557, 2, 3.581573709540626e-06),
    (0.0005, 1.6, 50_000, 2, 3e-6),
]


@pytest.mark.parametrize("rate, noise, steps, users, delta", ROUGH_USERS)
def test_an_order_that_a_rough_picture_puts_too_low_is_not_left_out(
    rate: float, noise: float, steps: int, users: int, delta: float
) -> None:
    result = account(NoisySGD(PoissonSampling(rate), noise, steps).group(users))
    assert result.epsilon(delta) == account(result.process, check="off").epsilon(delta)
    orders = result.guarantee().directions()
    answer = result.epsilon(delta)
    with pytest.raises(ContradictoryMethods):  # an epsilon that is too small is still refused
        check.confirm_epsilon(orders, delta, Interval.exact(0.8 * answer.upper))


@pytest.mark.parametrize(
    "pair", [FixedSizeGaussianPair(0.05, 0.7), LaplacePair(2.0), SampledGaussianPair(1e-6, 1.0)]
)
def test_every_kind_of_pair_can_be_looked_at(pair) -> None:
    orders = (((pair, 60),),)
    answer = profile.epsilon(orders[0], 1e-7)
    check.confirm_epsilon(orders, 1e-7, answer)
    with pytest.raises(ContradictoryMethods):
        check.confirm_epsilon(orders, 1e-7, Interval.exact(0.5 * answer.lower))


def test_claims_of_nothing_pass() -> None:
    orders = (((SampledGaussianPair(0.01, 1.0), 100),),)
    check.confirm_epsilon(orders, 0.0, Interval.exact(math.inf))
    check.confirm_epsilon(orders, 0.9, Interval.exact(0.0))
    with pytest.raises(ContradictoryMethods):  # nothing is claimed only where nothing is lost
        check.confirm_epsilon(orders, 1e-6, Interval.exact(0.0))
