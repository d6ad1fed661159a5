"""What a second method says about an answer, and that it is told where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import ContradictoryMethods, NotCertified
from tightrope.guarantee import check
from tightrope.guarantee.check import SecondVerdict, second_method
from tightrope.guarantee.loss import contour, profile
from tightrope.guarantee.loss.grouping import grouped
from tightrope.guarantee.loss.pairs import (
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
)
from tightrope.numerics.interval import Interval
from tightrope.process import (
    DeclaredRenyi,
    GaussianMechanism,
    LaplaceMechanism,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    Sequence,
)
from tightrope.report.account_view import account_view

MNIST = NoisySGD(PoissonSampling(256 / 60000), 1.1, 14062)


def orders(run) -> tuple:  # type: ignore[no-untyped-def,type-arg]
    return account(run).guarantee().directions()


@pytest.mark.parametrize("check", ["quick", "full"])
def test_an_ordinary_answer_is_confirmed_by_the_lattice(check) -> None:  # type: ignore[no-untyped-def]
    look = account(MNIST, check=check).second_method(1e-5)
    assert look.verdict is SecondVerdict.CONFIRMED and look.method == "lattice"
    assert look.factor is not None
    assert 1.0 <= look.factor <= {"quick": 1.1, "full": 1.001}[check]
    assert "larger" in look.words


def test_the_factor_is_a_proof() -> None:
    """A claim of less delta gets a larger factor: the same bound over a smaller number."""
    epsilon = account(MNIST).epsilon(1e-5).upper
    honest = second_method(orders(MNIST), epsilon, 1e-5)
    lying = second_method(orders(MNIST), epsilon, 5e-6)
    assert honest.factor is not None and lying.factor is not None
    assert lying.factor >= 2.0 * (1.0 - 1e-6)
    assert second_method(orders(MNIST), epsilon, 1e-9).verdict is SecondVerdict.ONE_METHOD


@pytest.mark.parametrize(
    "run",
    [
        NoisySGD(PoissonSampling(0.01), 1.0, 1),
        GaussianMechanism(1.0),
    ],
)
def test_formulas_need_no_second_method(run) -> None:  # type: ignore[no-untyped-def]
    look = account(run).second_method(1e-5)
    assert look.verdict is SecondVerdict.CLOSED_FORM and look.factor is None


def test_a_converted_bound_has_one_method() -> None:
    look = account(DeclaredRenyi((2.0,), (0.1,))).second_method(1e-5)
    assert look.verdict is SecondVerdict.ONE_METHOD and look.factor is None


def test_not_asking_is_told() -> None:
    look = account(MNIST, check="off").second_method(1e-5)
    assert look.verdict is SecondVerdict.NOT_ASKED and "off" in look.words


def test_a_lattice_that_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.guarantee.check._MOST_WORK", 1.0)
    look = account(MNIST).second_method(1e-5)
    assert look.verdict is SecondVerdict.ONE_METHOD and look.method is None
    assert "One method only, the contour" in look.words and 'check="full"' in look.words


def test_where_the_lattice_alone_answers_the_contour_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_, **__):  # type: ignore[no-untyped-def]
        raise NotCertified("Too much work. Use the lattice method.")

    monkeypatch.setattr(contour, "log_delta", refuse)
    look = account(MNIST).second_method(1e-5)
    assert look.verdict is SecondVerdict.ONE_METHOD
    assert "One method only, the lattice" in look.words and "Too much work." in look.words

    def coarse(order, epsilon, _):  # type: ignore[no-untyped-def]
        raise NotCertified("Too wide.", (math.log(0.5e-5), math.log(1.5e-5)))

    monkeypatch.setattr(contour, "log_delta", coarse)
    look = account(MNIST).second_method(1e-5)
    assert look.verdict is SecondVerdict.CONFIRMED and look.method == "contour"
    assert look.factor == pytest.approx(1.5)


def test_many_kinds_of_steps_are_grouped_and_confirmed() -> None:
    noises = tuple(np.repeat(np.linspace(1.0, 1.3, 100), 20).tolist())
    schedule = NoiseSchedule(PoissonSampling(0.01), noises)
    look = account(schedule).second_method(1e-6)
    assert look.verdict is SecondVerdict.CONFIRMED and look.method == "lattice"
    assert look.factor is not None and look.factor < 5.0


def test_groups_lose_at_least_as_much() -> None:
    rng = np.random.default_rng(0)
    order = (
        *((SampledGaussianPair(float(q), float(m)), 3) for q, m in rng.uniform(0.1, 0.5, (30, 2))),
        *((GaussianPair(float(m)), 2) for m in rng.uniform(0.01, 0.1, 5)),
        (LaplacePair(0.1), 1),
    )
    groups = grouped(order, 8, "upper")
    assert len(groups) <= 8 and sum(n for _, n in groups) == 3 * 30 + 1 + 1
    for epsilon in (0.1, 1.0, 3.0):
        assert profile.delta(groups, epsilon).upper >= profile.delta(order, epsilon).lower
    assert grouped(order, 40, "upper") == order


def test_mixed_releases_and_claims_of_nothing() -> None:
    run = Sequence((NoisySGD(PoissonSampling(0.01), 1.0, 500), LaplaceMechanism(2.0)))
    assert account(run).second_method(1e-6).verdict is SecondVerdict.CONFIRMED
    assert account(run).second_method(1.0).verdict is SecondVerdict.CLOSED_FORM
    assert account(run).second_method(0.0).verdict is SecondVerdict.CLOSED_FORM
    assert account(run).second_method(0.9).verdict is SecondVerdict.CONFIRMED


def test_the_view_carries_it() -> None:
    view = account_view(account(MNIST), 1e-5)["answer"]["second_method"]
    assert set(view) == {"verdict", "method", "factor", "words"}
    assert view["verdict"] == "confirmed" and view["method"] == "lattice"


# ---- a second look at every answer: true ones pass, false ones are refused
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
