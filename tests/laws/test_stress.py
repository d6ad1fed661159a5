"""Random settings over the whole range: contour against lattice, both against mpmath.

Noise 0.2..100, rate 1e-8..1, steps 1..1e9, delta 1e-2..1e-300, log-uniform. Zero violations, zero
exceptions, zero warnings (warnings are errors here).
"""

from __future__ import annotations

import math
import random

import pytest

from tightrope.errors import NotCertified
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss.pair import SampledGaussianPair


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def setting(number: int):
    draw = random.Random(number)
    rate = log_uniform(draw, 1e-8, 1.0)
    noise = log_uniform(draw, 0.2, 100.0)
    steps = int(log_uniform(draw, 1.0, 1e9))
    delta = log_uniform(draw, 1e-300, 1e-2)
    direction = draw.choice(["remove", "add"])
    return ((SampledGaussianPair(rate, 1.0 / noise, direction), max(steps, 1)),), delta


def check(number: int) -> None:
    """Every setting is answered, on both sides; where both methods answer, they agree."""
    components, delta = setting(number)
    answer = profile.epsilon(components, delta)
    assert 0.0 <= answer.lower <= answer.upper < math.inf
    found = []
    for method in (contour, lattice):
        try:
            found.append(method.epsilon(components, delta))
        except NotCertified:
            continue
    assert found
    for one in found:
        assert one.meets(answer), (components, delta, one, answer)


@pytest.mark.parametrize("block", range(2))
def test_random_settings(block: int) -> None:
    for number in range(8 * block, 8 * block + 8):
        check(number)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_two_thousand_random_settings(block: int) -> None:
    for number in range(50 * block, 50 * block + 50):
        check(number)
