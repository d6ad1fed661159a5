"""Losses that were cut off: infinite in upper ends, nothing in lower ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from mpmath import mp

from tightrope.accounting import account
from tightrope.process import DiscreteGaussianMechanism, Repeated


def discrete_gaussian_truth(sigma: float, count: int) -> Callable[[float], Any]:
    """delta(eps) of `count` releases of whole numbers moved by 1, by sums of 50 digits."""
    reach = 60 * int(sigma)
    one = [mp.exp(-mp.mpf(k * k) / (2 * sigma**2)) for k in range(-reach, reach + 1)]
    total = mp.fsum(one)
    law = one = [m / total for m in one]
    for _ in range(count - 1):
        law = [
            mp.fsum(law[i] * one[k - i] for i in range(max(0, k - 2 * reach), min(len(law), k + 1)))
            for k in range(len(law) + 2 * reach)
        ]
    middle = len(law) // 2
    losses = [mp.mpf(2 * (k - middle) + count) / (2 * sigma**2) for k in range(len(law))]

    def delta(epsilon: float) -> Any:
        return mp.fsum(
            m * -mp.expm1(mp.mpf(epsilon) - loss)
            for m, loss in zip(law, losses, strict=True)
            if loss > epsilon
        )

    return delta


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("delta", [1e-303, 1e-300, 5e-300, 2e-299, 1e-290])
def test_what_was_cut_off_is_not_known_to_be_infinite(count: int, delta: float) -> None:
    """The tail of the noise is counted as infinite in upper ends, and as nothing in lower ends."""
    with mp.workdps(50):
        true = discrete_gaussian_truth(2.0, count)
        run = account(Repeated(DiscreteGaussianMechanism(2.0), count))
        found = run.epsilon(delta)
        assert true(found.lower) >= delta
        assert found.upper == math.inf or true(found.upper) <= delta
        assert found.upper < math.inf or delta < 1e-299
        assert found.lower > 0.9 * run.epsilon(1e-290).lower
        for epsilon in (1.0, 15.0, 30.0, 60.0):
            answer = run.delta(epsilon)
            assert answer.lower <= true(epsilon) <= answer.upper
        assert run.tradeoff(0.0).upper == 1.0


@pytest.mark.parametrize("order", [1.5, 2.0, 7.0, 40.0])
def test_the_renyi_divergence_of_a_cut_law_is_finite(order: float) -> None:
    sigma = 2.0
    with mp.workdps(50):
        weights = [mp.exp(-mp.mpf(k * k) / (2 * sigma**2)) for k in range(-400, 401)]
        moved = [mp.exp(-mp.mpf((k - 1) ** 2) / (2 * sigma**2)) for k in range(-400, 401)]
        total = mp.fsum(weights)
        terms = (p**order * q ** (1 - order) for p, q in zip(moved, weights, strict=True))
        true = mp.log(mp.fsum(terms) / total) / (order - 1)
        found = account(DiscreteGaussianMechanism(sigma)).renyi(order)
        assert found.lower <= true <= found.upper
        assert found.width < 1e-6 * true
