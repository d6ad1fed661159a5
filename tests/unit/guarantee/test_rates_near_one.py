"""Pairs that leave out hardly a record, and single releases: the truth is inside."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from tightrope.guarantee.loss.pairs import (
    DiscretePair,
    GaussianMixturePair,
    LaplaceMixturePair,
    LaplacePair,
    PublicMixturePair,
    SampledGaussianPair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.pairs.sampling import log_ratio, log_sampled, log_sampled_error
from tightrope.guarantee.loss.renyi import renyi, renyi_by_cells
from tightrope.numerics.rounding import ULP

RATES = [1.0 - 2.0**-53, 1.0 - 1e-12, 1.0 - 1e-8, 0.75]


@pytest.fixture(autouse=True)
def _exact():
    with mpmath.workdps(80):
        yield


@pytest.mark.parametrize("rate", RATES)
def test_losses_keep_their_digits(rate):
    """ln(1 + rate (e^u - 1)) has lost all of them where rate is near 1 and e^u near 0."""
    points = np.linspace(-60.0, 5.0, 200)
    for point, found in zip(points, log_ratio(points, rate, 1.0), strict=True):
        power = mpmath.exp(mpmath.mpf(point) - mpmath.mpf(0.5))
        truth = mpmath.log(1 - mpmath.mpf(rate) + mpmath.mpf(rate) * power)
        assert abs(found - truth) <= 4 * ULP * (1 + abs(truth) + abs(point))


@pytest.mark.parametrize("order", [1.5, 2.0, 33.0])
@pytest.mark.parametrize("mu", [1.0, 3.0])
@pytest.mark.parametrize("rate", RATES[:3])
def test_divergences_of_an_added_record(rate, mu, order):
    """By an integral of 30 digits; the upper end was 1.6e-6 below at rate 1 - 2^-53, order 33."""
    a, q, m = mpmath.mpf(order), mpmath.mpf(rate), mpmath.mpf(mu)

    def integrand(s):
        ratio = 1 - q + q * mpmath.exp(m * s - m * m / 2)
        return mpmath.npdf(s) * ratio ** (1 - a)

    with mpmath.workdps(30):
        ends = mpmath.linspace(-14 - a * m, 14 + m, 60)
        truth = mpmath.log(mpmath.quad(integrand, ends, maxdegree=5)) / (a - 1)
    lower, upper = renyi(SampledGaussianPair(rate, mu, "add"), order)
    assert lower <= truth <= upper
    cells = renyi_by_cells(SampledGaussianPair(rate, mu, "add"), order)
    assert cells.lower <= truth <= cells.upper


@pytest.mark.parametrize(
    ("rate", "scale", "epsilon"),
    [(1.0 - 2.0**-53, 1.0 / 30.0, 59.99864770847752), (1.0 - 1e-12, 0.05, 36.0)],
)
def test_laplace_noise_of_a_replaced_record(rate, scale, epsilon):
    """ln delta was -15.5 where it is -9.4."""
    q, t, e = mpmath.mpf(rate), 1 / mpmath.mpf(scale), mpmath.mpf(epsilon)
    arm = 1 + q * mpmath.expm1(-t)
    moved = mpmath.log((mpmath.exp(e) * arm - 1 + q) / q)
    truth = mpmath.log(-q * mpmath.expm1((moved - t) / 2))
    found = LaplaceMixturePair(rate, scale, True, True).log_delta_single(epsilon)
    assert found.lower <= truth <= found.upper


def discrete_truth(pair: DiscretePair, epsilon: float):
    parts = zip(pair.losses, pair.masses, strict=True)
    return mpmath.log(
        mpmath.fsum(m * -mpmath.expm1(mpmath.mpf(epsilon) - x) for x, m in parts if x > epsilon)
    )


@pytest.mark.parametrize("top", [0.005010113486717162, 0.00032989913844164956, 2.233784842613775])
@pytest.mark.parametrize("digits", [1e-16, 1e-14, 1e-12, 1e-9])
def test_small_deltas_of_discrete_losses(top, digits):
    """A logarithm is rounded by units of its own size."""
    pair, epsilon = randomized_response_pair(top), top * (1 - digits)
    found = pair.log_delta_single(epsilon)
    assert found.lower <= discrete_truth(pair, epsilon) <= found.upper


@pytest.mark.parametrize("epsilon", [0.0428448894, 0.5, 4.172155393115255, 9.430506704344367])
def test_small_deltas_of_a_rare_kind(epsilon):
    pair = PublicMixturePair(1e-200, LaplacePair(1e6), LaplacePair(0.1))
    truth = mpmath.log(mpmath.mpf(1e-200) * -mpmath.expm1((mpmath.mpf(epsilon) - 10) / 2))
    found = pair.log_delta_single(epsilon)
    assert found.lower <= truth <= found.upper


@pytest.mark.parametrize(
    ("pair", "epsilon"),
    [
        (GaussianMixturePair(1e-12, 0.30686878511409105, 1, 1), -9.655615088601667e-09),
        (GaussianMixturePair(1e-12, 1.0, 3, 0), -3.144649790668222e-08),
    ],
)
def test_turned_round(pair, epsilon):
    """Of so rare a record nothing is left but 1 - e^epsilon, to 1e-20 of it."""
    found = pair.log_delta_single(epsilon)
    assert found.lower <= mpmath.log(-mpmath.expm1(mpmath.mpf(epsilon))) <= found.upper


@pytest.mark.parametrize("scale", [1.0, 3.0, 7.0, 1.0 / 30.0, 1e6, 0.1])
def test_the_largest_loss_of_laplace_noise_is_rounded_up(scale):
    top = mpmath.mpf(LaplacePair(scale).top)
    assert 1 / mpmath.mpf(scale) <= top <= (1 + 2 * ULP) / mpmath.mpf(scale)
    assert LaplacePair(1.0).top == 1.0
    assert math.isinf(LaplacePair(scale).log_delta_single(float(top)).upper)


@pytest.mark.parametrize(
    ("rate", "mu", "members", "truth"),
    [(0.1, 6.187015152116947, 3, -45.1192775898), (0.5, 3.861832550206029, 1, -74.3518859056)],
)
def test_the_largest_loss_of_a_mixture_is_rounded(rate, mu, members, truth):
    """Its double lies below it, where delta is not 0: found by bisection with 120 digits."""
    pair = GaussianMixturePair(rate, mu, 0, members)
    found = pair.log_delta_single(pair.support[1])
    assert found.lower <= truth <= found.upper
    assert found.upper < -15.0


@pytest.mark.parametrize("rate", [1e-200, 1e-13, 1e-9, 1e-3, 0.3, 0.5, *RATES])
def test_losses_by_chance_are_right_to_the_stated_error(rate):
    """A sum of u > 30 and ln rate was off by 9 times that where the two cancel."""
    powers = np.concatenate([np.linspace(-60.0, 60.0, 241), [1e-9, 0.013, 300.0, 460.0, 690.0]])
    found = log_sampled(powers, rate)
    allowed = log_sampled_error(found, rate)
    for u, value, error in zip(powers.tolist(), found.tolist(), allowed.tolist(), strict=True):
        truth = mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(u)))
        assert abs(value - truth) <= error
