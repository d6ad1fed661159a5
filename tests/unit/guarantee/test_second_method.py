"""What a second method says about an answer, and that it is told where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.guarantee.check import SecondVerdict, second_method
from tightrope.guarantee.loss import contour, profile
from tightrope.guarantee.loss.grouping import grouped
from tightrope.guarantee.loss.pairs import GaussianPair, LaplacePair, SampledGaussianPair
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
