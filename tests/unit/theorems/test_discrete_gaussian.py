"""The discrete Gaussian as post-processing of a Gaussian: each inequality of the proof, in numbers.

Small scales are used on purpose: there the terms that are invisible in a run are as large as 0.6,
so a wrong constant shows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from mpmath import cos, erfc, exp, inf, log, mp, mpf, nsum, pi, sqrt

from tightrope.accounting import account
from tightrope.guarantee.loss.pairs import discrete_gaussian_pair
from tightrope.process import (
    Adjacency,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    Repeated,
    SampledRelease,
)
from tightrope.theorems.discrete_gaussian import SMOOTHING, close_gaussians, discrete_scale

CASES = [(0.35, 0.25), (0.4, 0.3), (0.5, 0.35), (0.5, 0.49), (0.6, 0.4), (1.0, 0.5)]


@pytest.fixture(autouse=True)
def digits():
    with mp.workdps(25):
        yield


def ripple(width):
    """eta of docs/theorems/discrete_gaussian.md."""
    return 2 * mp.fsum(exp(-2 * (pi * mpf(width) * m) ** 2) for m in range(1, 30))


def theta(width, y):
    return mp.fsum(exp(-((j - y) ** 2) / (2 * mpf(width) ** 2)) for j in range(-30, 31))


@cache
def discrete(scale, k):
    return exp(-(mpf(k) ** 2) / (2 * mpf(scale) ** 2)) / theta(scale, 0)


def density(scale, k):
    return exp(-(mpf(k) ** 2) / (2 * mpf(scale) ** 2)) / (mpf(scale) * sqrt(2 * pi))


def rounded(scale, width, k):
    """A Gaussian of variance scale^2 - width^2 around 0, rounded at random to k.

    By the trapezoidal rule, which converges exponentially here: finer steps change nothing.
    """
    rest = np.sqrt(scale**2 - width**2)
    reach = rest * width / scale
    step = min(reach / 20, 0.005)
    y = k * rest**2 / scale**2 + np.arange(-12 * reach, 12 * reach + step, step)
    gauss = np.exp(-(y**2) / (2 * rest**2)) / (rest * np.sqrt(2 * np.pi))
    whole = np.rint(y)[:, None] + np.arange(-12, 13)
    total = np.exp(-((whole - y[:, None]) ** 2) / (2 * width**2)).sum(1)
    return step * float((gauss * np.exp(-((k - y) ** 2) / (2 * width**2)) / total).sum())


def share(scale, width):
    """kappa: what of a discrete draw is not post-processing."""
    return (ripple(width) + ripple(scale)) / (1 + ripple(scale))


@pytest.mark.parametrize("width", [0.25, 0.4, 0.7, 1.0])
def test_poisson_summation(width):
    level = mpf(width) * sqrt(2 * pi)
    for y in (0, 0.2, 0.5):
        series = 1 + 2 * mp.fsum(
            exp(-2 * (pi * mpf(width) * m) ** 2) * cos(2 * pi * m * mpf(y)) for m in range(1, 30)
        )
        assert abs(theta(width, mpf(y)) / level - series) < mpf(10) ** -20
    assert abs(theta(width, 0) / level - (1 + ripple(width))) < mpf(10) ** -20


@pytest.mark.parametrize("scale, width", CASES)
def test_the_rounded_gaussian_sums_to_one(scale, width):
    assert abs(mp.fsum(rounded(scale, width, k) for k in range(-8, 9)) - 1) < 1e-12


@pytest.mark.parametrize("scale, width", CASES)
def test_the_pmf_is_within_the_stated_factors(scale, width):
    eta, own = ripple(width), ripple(scale)
    for k in range(6):
        assert abs(discrete(scale, k) * (1 + own) / density(scale, k) - 1) < 1e-18
        ratio = rounded(scale, width, k) / density(scale, k)
        assert 1 / (1 + eta) <= ratio <= 1 / (1 - eta)
        assert discrete(scale, k) >= (1 - share(scale, width)) * rounded(scale, width, k)


def test_the_factors_are_nearly_attained():
    """So that a constant a third too small would have failed above."""
    low = rounded(0.5, 0.49, 0) / density(0.5, 0)
    assert 1 / low - 1 > 0.8 * ripple(0.49)
    high = max(rounded(0.35, 0.25, k) / density(0.35, k) for k in range(4))
    assert 1 - 1 / high > 0.6 * ripple(0.25)
    missing = max(1 - discrete(0.35, k) / rounded(0.35, 0.25, k) for k in range(4))
    assert missing > 0.7 * share(0.35, 0.25)


def gaussian_delta(epsilon, mu):
    def below(x):
        return erfc(-x / sqrt(2)) / 2

    return below(mu / 2 - epsilon / mu) - exp(epsilon) * below(-mu / 2 - epsilon / mu)


def discrete_delta(epsilon, scale, moved, rate):
    """Of a sum that moves by `moved` if the record is drawn, which happens at `rate`."""
    total = mpf(0)
    for k in range(-15, 16):
        without = discrete(scale, k)
        with_it = (1 - rate) * without + rate * discrete(scale, k - moved)
        total += max(with_it - exp(epsilon) * without, 0)
    return total


def sampled_delta(epsilon, mu, rate):
    """The same for N(0,1) and (1 - rate) N(0,1) + rate N(mu,1): Gaussian privacy, amplified."""
    inner = log(1 + (exp(epsilon) - 1) / rate)
    return rate * gaussian_delta(inner, mu)


@pytest.mark.parametrize("rate", [1, 0.3])
@pytest.mark.parametrize(
    "scale, width, moved",
    [(0.4, 0.3, 1), (0.5, 0.3, 1), (0.5, 0.35, 2), (1.0, 0.5, 1), (1.0, 0.5, 3)],
)
def test_delta_is_that_of_the_gaussian_and_the_share(scale, width, moved, rate):
    mu = moved / sqrt(mpf(scale) ** 2 - mpf(width) ** 2)
    for quarter in range(0, 40, 3):
        epsilon = mpf(quarter) / 4
        claimed = sampled_delta(epsilon, mu, mpf(rate)) + share(scale, width)
        assert discrete_delta(epsilon, scale, moved, mpf(rate)) <= claimed


def test_without_the_share_the_statement_would_be_false():
    mu = 1 / sqrt(mpf(0.4) ** 2 - mpf(0.2) ** 2)
    excess = discrete_delta(mpf(1), 0.4, 1, 1) - gaussian_delta(mpf(1), mu)
    assert 0.05 < excess < share(0.4, 0.2)


def test_the_share_of_a_run_is_below_every_float():
    """2^100 coordinates and steps, at the smoothing that is used."""
    assert log(share(2**10, SMOOTHING) * mpf(2) ** 100, 2) < -1700
    tail = nsum(lambda m: exp(-2 * pi**2 * (m**2 - 1)), [2, inf])
    assert tail < 1e-8  # (1 + 10^-8) of the module's docstring, for widths from 1 on


@pytest.mark.parametrize("noise", [1e-6, 0.3, 1.0, 1.1, 2.0**-10, 8191.7])
@pytest.mark.parametrize("bound", [1, 1000, 2**24, 2**30 + 77])
def test_the_scale_is_the_least_that_is_accounted(noise, bound):
    scale, asked = discrete_scale(noise, bound), (Fraction(noise) * bound) ** 2
    assert scale**2 - SMOOTHING**2 >= asked
    assert (scale - 1) ** 2 - SMOOTHING**2 < asked


@pytest.mark.parametrize("sigma", [64.0, 300.5, 3000.0])
@pytest.mark.parametrize("moved", [1, 7, 150])
@pytest.mark.parametrize("rate, sides", [(1.0, (False, True)), (0.1, (True, False)), (0.3, (1, 1))])
def test_one_number_is_between_two_gaussians(
    sigma: float, moved: int, rate: float, sides: tuple[bool, bool]
) -> None:
    """The points themselves against the Gaussians that stand for them where they are too many."""
    exact = discrete_gaussian_pair(sigma, moved, rate, *sides)
    below, above = close_gaussians(sigma, moved, rate, *sides)
    for times in (0.0, 0.3, 1.0, 3.0):
        epsilon = times * moved / sigma
        true = exact.log_delta_single(epsilon)
        least, most = (pair.log_delta_single(epsilon) for ((pair, _),) in (below, above))
        assert least.lower <= true.upper and true.lower <= most.upper
        if true.lower > -30.0:
            assert most.upper - least.lower < 1000.0 / sigma**2 + 1e-9


@pytest.mark.parametrize("sigma, moved", [(1e6, 1), (1e6, 10**6), (1e12, 10**12)])
@pytest.mark.parametrize("relation", Adjacency)
def test_noise_of_any_size_is_answered(sigma: float, moved: int, relation: Adjacency) -> None:
    """A list of its points asked for hundreds of terabytes."""
    release = DiscreteGaussianMechanism(sigma, moved, relation)
    gaussian = GaussianMechanism(sigma / moved, relation)
    for run, other in ((release, gaussian), (Repeated(release, 1000), Repeated(gaussian, 1000))):
        found, known = account(run).epsilon(1e-5), account(other).epsilon(1e-5)
        assert found.lower <= known.upper and known.lower <= found.upper
        assert found.upper <= known.upper * (1.0 + 1e-6) + 1e-15
        assert found.lower >= known.lower * (1.0 - 1e-6)
    sampled = SampledRelease(DiscreteGaussianMechanism(sigma, moved), 0.1, relation)
    assert account(sampled).epsilon(1e-5).upper < 2.0


@pytest.mark.parametrize("sigma, moved", [(3.0, 10**9), (1e12, 10**20)])
def test_next_to_no_noise_still_has_a_bound(sigma: float, moved: int) -> None:
    found = account(DiscreteGaussianMechanism(sigma, moved)).epsilon(1e-5)
    assert 0.5 * (moved / sigma) ** 2 * (1 - 1e-6) <= found.upper < math.inf
