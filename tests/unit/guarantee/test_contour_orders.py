"""The worse of the two orders of the neighbours, without computing the other one."""

from __future__ import annotations

import math

import pytest

from tightrope.guarantee.base import Components
from tightrope.guarantee.loss import contour, profile
from tightrope.guarantee.loss.contour import are_reversed, log_chernoff
from tightrope.guarantee.loss.pairs import (
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    randomized_response_pair,
)
from tightrope.numerics.interval import Interval

MNIST = 256 / 60000


def orders(rate: float, noise: float, steps: int) -> tuple[Components, Components]:
    remove, add = (SampledGaussianPair(rate, 1.0 / noise, way) for way in ("remove", "add"))
    return ((remove, steps),), ((add, steps),)


SETTINGS = [
    (MNIST, 1.1, 14062, 1e-5),  # one line, read twice
    (MNIST, 1.1, 14062, 1e-2),
    (MNIST, 1.1, 14062, 1e-20),  # Chernoff's bound
    (0.01, 1.0, 10**6, 1e-5),  # neither: both are computed
    (0.001, 100.0, 10**4, 1e-6),  # nearly the same in both orders
    (0.01, 1.0, 20, 1e-5),  # jumps apart
    (0.3, 2.0, 40, 1e-6),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), SETTINGS)
def test_the_worse_order_is_that_of_both_computed(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    both = orders(rate, noise, steps)
    plain = Interval.worst([profile.epsilon(order, delta) for order in both])
    found = profile.worst_epsilon(both, delta)
    assert found.meets(plain) and found.relative_width <= 1e-6
    at = profile.worst_delta(both, plain.upper)
    assert at.meets(Interval.worst([profile.delta(order, plain.upper) for order in both]))
    assert at.upper <= delta * (1.0 + 1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.0, 2.4])
def test_the_bound_on_the_other_order_holds_and_is_near(epsilon: float) -> None:
    remove, add = orders(MNIST, 1.1, 14062)
    for one, other in ((remove, add), (add, remove)):
        bound = contour.log_delta_and_reverse(one, epsilon, 1e-10)[1]
        truth = contour.log_delta(other, epsilon, 1e-10)
        assert truth.lower <= bound <= truth.upper + 0.05


def test_the_line_that_is_read_twice_is_as_sharp() -> None:
    remove, _ = orders(MNIST, 1.1, 14062)
    found, _ = contour.log_delta_and_reverse(remove, 2.0, 1e-10)
    assert found.width <= 1e-10
    assert found.intersect(contour.log_delta(remove, 2.0, 1e-10)).width <= 1e-10


def test_chernoff_bounds_what_it_proves_and_says_nothing_else() -> None:
    _, add = orders(MNIST, 1.1, 14062)
    truth = contour.log_delta(add, 5.68).upper
    bound = log_chernoff(add, 5.68, math.log(1e-20))
    assert truth < bound < truth + 3.0
    assert log_chernoff(add, 5.68, truth) == 0.0
    assert log_chernoff(add, 0.0, -10.0) == 0.0


def test_a_negative_epsilon_is_worse_the_other_way_round() -> None:
    both = orders(0.02, 1.0, 500)
    found = profile.worst_delta(both, -0.5)
    remove, add = (profile.delta(order, -0.5) for order in both)
    assert add.lower > remove.upper and found.meets(add) and not found.meets(remove)


def test_which_orders_are_each_others_reverse() -> None:
    remove, add = orders(0.02, 1.0, 500)
    symmetric: Components = ((GaussianPair(0.1), 3), (LaplacePair(2.0), 2))
    assert are_reversed(remove, add) and are_reversed(symmetric, symmetric)
    assert are_reversed((*symmetric, *remove), (*add, *symmetric))
    assert not are_reversed(remove, remove)
    assert not are_reversed(remove, orders(0.02, 1.0, 501)[1])
    response: Components = ((randomized_response_pair(1.0), 1),)
    assert not are_reversed(response, response)  # not looked into
