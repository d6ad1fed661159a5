"""Random settings over the whole range: contour against lattice, both against mpmath.

Noise 0.2..100, rate 1e-8..1, steps 1..1e9, delta 1e-2..1e-300, log-uniform. Zero violations, zero
exceptions, zero warnings (warnings are errors here).
"""

from __future__ import annotations

import math
import random

import pytest
from mpmath import exp, fsum, log, log1p, mp, mpc, mpf, pi, sqrt

from tightrope.errors import NotCertified
from tightrope.guarantee.check import confirm_epsilon
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice.plan import sketch_of
from tightrope.guarantee.loss.pairs import SampledGaussianPair
from tightrope.numerics.interval import Interval

_DIGITS = 40
_NEGLIGIBLE = mpf(10) ** -34
_MOST_FREQUENCIES = 600
_PERIOD = 60  # in standard deviations of the tilted sum


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def setting(number: int) -> tuple[Components, float]:
    draw = random.Random(number)
    rate = log_uniform(draw, 1e-8, 1.0)
    noise = log_uniform(draw, 0.2, 100.0)
    steps = int(log_uniform(draw, 1.0, 1e9))
    delta = log_uniform(draw, 1e-300, 1e-2)
    direction = draw.choice(["remove", "add"])
    pair = SampledGaussianPair(rate, 1.0 / noise, direction)  # type: ignore[arg-type]
    return ((pair, max(steps, 1)),), delta


def check(number: int) -> None:
    """Every setting is answered, on both sides, and the methods agree about the answer.

    Where the contour answers, a fine lattice laid at its answer must not contradict it (nor the
    coarse one of `account`); elsewhere the lattice answers.
    """
    components, delta = setting(number)
    answer = profile.epsilon(components, delta)
    assert 0.0 <= answer.lower <= answer.upper < math.inf
    try:
        first = contour.epsilon(components, delta)
    except NotCertified:
        assert lattice.epsilon(components, delta).meets(answer)
        return
    assert first.meets(answer), (components, delta, first, answer)
    for thorough in (False, True):
        confirm_epsilon((components,), delta, first, thorough)


def log_delta(
    rate: float, mu: float, steps: int, direction: str, epsilon: float, tilt: float
) -> mpf | None:
    """ln delta(epsilon) by brute force in 40 digits, on the line Re z = tilt > 0.

    The inversion integral of e^{T K(z) - z eps}/(z (z + 1)), K from a trapezoidal sum over s, every
    step length fixed beforehand and far finer than needed. None where that takes too long, or where
    the line is so far from the saddle point that the terms cancel or the period is too short.
    """
    with mp.workdps(_DIGITS):
        c, eps = mpf(tilt), mpf(epsilon)
        points = _tilted(mpf(rate), mpf(mu), direction, c)
        total = fsum(w for _, w in points)
        points = [(loss, w / total) for loss, w in points if w > total * _NEGLIGIBLE]
        mean = fsum(loss * w for loss, w in points)
        spread = sqrt(steps * fsum((loss - mean) ** 2 * w for loss, w in points) + 1 / c**2)
        if abs(steps * mean - eps) > _PERIOD / 4 * spread:
            return None
        step = 2 * pi / (_PERIOD * spread)
        centred = [(loss - mean, w) for loss, w in points]
        found = _line(centred, steps, step, c, steps * mean - eps)
        return None if found is None else steps * log(total) - c * eps + log(found * step / pi)


def _tilted(q: mpf, mu: mpf, direction: str, c: mpf) -> list[tuple[mpf, mpf]]:
    """Losses and masses under P times e^{c loss}, on a grid of s that holds all of them."""
    h = min(mpf(1), 1 / mu) / 12
    reach = 16 + (1 + c) * mu
    low, high = (-16, reach) if direction == "remove" else (-reach, 16)
    points = []
    for n in range(int(low / h), int(high / h) + 1):
        s = n * h
        ratio = log1p(q * (exp(mu * s - mu * mu / 2) - 1))
        loss, under_p = (ratio, ratio) if direction == "remove" else (-ratio, 0)
        points.append((loss, h * exp(-s * s / 2 + under_p + c * loss) / sqrt(2 * pi)))
    return points


def _line(points: list[tuple[mpf, mpf]], steps: int, dy: mpf, c: mpf, shift: mpf) -> mpf | None:
    """Sum over y = 0, dy, ... of Re of the integrand, the factor at y = 0 taken out."""
    turns = [exp(mpc(0, dy * loss)) for loss, _ in points]
    now = [mpc(w) for _, w in points]
    total, largest = mpf(0), mpf(0)
    for n in range(_MOST_FREQUENCIES):
        z = mpc(c, n * dy)
        term = exp(steps * log(fsum(now)) + mpc(0, n * dy * shift)) / (z * (z + 1))
        total += term.real / (2 if n == 0 else 1)
        largest = max(largest, abs(term))
        if n > 10 and abs(term) * (n + 1) < largest * mpf(10) ** -24:
            return total if total > largest * mpf(10) ** -8 else None
        if n == _MOST_FREQUENCIES // 5 and abs(term) > largest * mpf(10) ** -5:
            return None  # at this pace the end is out of reach
        now = [value * turn for value, turn in zip(now, turns, strict=True)]
    return None


def against_quadrature(number: int) -> bool:
    """Hold an answer against forty digits; False where brute force would take too long."""
    components, delta = setting(number)
    ((pair, steps),) = components
    answer = profile.epsilon(components, delta)
    assert isinstance(pair, SampledGaussianPair)
    if answer.lower == 0.0 or steps * pair.rate < 1.0 or pair.rate > 0.999:
        return False
    tilt = sketch_of(components).saddle(answer.upper).rate
    if (1.0 + tilt) * pair.mu * max(1.0, pair.mu) > 80.0:
        return False
    values = [
        log_delta(pair.rate, pair.mu, steps, pair.direction, end, tilt)
        for end in (answer.upper, answer.lower)
    ]
    if values[0] is None or values[1] is None:
        return False
    assert values[0] <= log(mpf(delta)) <= values[1], (components, delta, answer, values)
    true = values[0]
    assert Interval(float(true) - 1e-9, float(true) + 1e-9).meets(
        lattice.log_delta(components, answer.upper, 1e-2)
    )
    return True


@pytest.mark.parametrize("block", range(2))
def test_random_settings(block: int) -> None:
    for number in range(8 * block, 8 * block + 8):
        check(number)


def test_a_few_settings_against_forty_digits() -> None:
    assert sum(against_quadrature(number) for number in (0, 5)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_two_thousand_random_settings(block: int) -> None:
    for number in range(50 * block, 50 * block + 50):
        check(number)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_a_subset_against_forty_digits(block: int) -> None:
    compared = sum(against_quadrature(number) for number in range(40 * block, 40 * block + 40))
    assert compared >= 8
