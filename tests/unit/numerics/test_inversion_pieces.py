"""The pieces of the inversion integral, each against slow and obvious code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tightrope.errors import NotCertified
from tightrope.numerics.inversion import Line, log_estimate, saddle, saddle_of_level
from tightrope.numerics.inversion_law import (
    Decay,
    SumLaw,
    layers_of_steps,
    log1p_complex,
    no_decay,
    tilted_nodes,
)


def test_layers_bound_the_transform_of_a_normal_law_from_every_frequency_on() -> None:
    edges = np.linspace(-8.0, 8.0, 401)
    density = np.exp(-0.5 * edges**2) / math.sqrt(2 * math.pi)
    layers = layers_of_steps(edges, np.minimum(density[:-1], density[1:]), 200)
    decay = Decay.of([layers, layers], np.full(2, math.inf))
    for y in (0.01, 0.3, 1.0, 2.0, 4.0):
        assert np.all(math.exp(-0.5 * y * y) <= decay.bound(y))
        assert np.all(decay.bound(y) >= decay.bound(1.1 * y))
    # second order exact for a symmetric law
    assert 1 - decay.bound(0.05)[1] == pytest.approx(0.05**2 / 2, rel=0.1)


def test_layers_of_a_skewed_law_bound_its_transform() -> None:
    edges = np.linspace(0.0, 40.0, 2001)
    density = np.exp(-edges)
    decay = Decay.of([layers_of_steps(edges, density[1:], 0)], np.array([math.inf]))
    for y in (0.1, 1.0, 10.0, 30.0):
        assert 1 / math.hypot(1.0, y) <= decay.bound(y)[0]
    assert no_decay().bound(3.0).tolist() == [1.0]


@pytest.mark.parametrize("count", [1, 2, 130, 700, 3001])  # tables of one and of two levels
def test_transform_of_points_matches_the_plain_sum_within_its_error(count: int) -> None:
    rng = np.random.default_rng(3)
    x, log_p = rng.normal(size=(3, 300)), rng.normal(size=(3, 300))
    log_mass = np.log(np.sum(np.exp(log_p), axis=1))
    zero = np.zeros((3, 300))
    nodes = tilted_nodes(x, log_p, (log_mass, np.full(3, 1e-15)), zero, zero, np.zeros(3))
    got, error = nodes.transform(0.375, count)
    y = 0.375 * np.arange(count)
    for row in range(3):
        weights = np.exp(log_p[row] - log_mass[row])
        plain = np.exp(1j * np.outer(y, x[row] - nodes.centre[row])) @ weights - 1.0
        assert np.all(np.abs(got[row] - plain) <= error[row] + 1e-14 * (1.0 + y))
    assert np.all(got[:, 0] == 0.0)


def test_transform_loses_no_digit_at_small_frequencies() -> None:
    x = np.random.default_rng(4).normal(size=(1, 5000))
    zero, log_p = np.zeros_like(x), np.full_like(x, -math.log(5000.0))
    nodes = tilted_nodes(x, log_p, (np.zeros(1), np.zeros(1)), zero, zero, np.zeros(1))
    step = 2.0**-30
    got, error = nodes.transform(step, 900)
    for n in (1, 28, 29, 417, 899):
        plain = math.fsum(-2.0 * np.sin(0.5 * n * step * (x - nodes.centre))[0] ** 2 / 5000.0)
        assert abs(got[0, n].real - plain) <= min(error[0, n], 1e-12 * abs(plain))


def test_log1p_complex_is_accurate_near_zero_and_far_away() -> None:
    z = np.array([1e-12 + 1e-13j, -0.5 + 2j, -0.9999 + 0.01j, 5.0 - 3j])
    np.testing.assert_allclose(log1p_complex(z)[1:], np.log(1 + z)[1:], rtol=1e-13)
    assert log1p_complex(z)[0].real == pytest.approx(1e-12, rel=1e-9)


NORMAL = SumLaw((), mean=0.5, variance=1.0)  # the loss of one Gaussian release, mu = 1


@pytest.mark.parametrize("x", [-2.0, 0.0, 0.5, 3.0, 9.0])
def test_a_normal_law_is_inverted(x: float) -> None:
    truth = ndtr(0.5 - x) - math.exp(x) * ndtr(-0.5 - x)
    c = saddle(NORMAL, x)
    at, guess, _ = log_estimate(NORMAL, c)
    found = Line(NORMAL, c, x, guess - c * (x - at)).certified(x)
    assert found.lower - 2e-14 <= math.log(truth) <= found.upper + 2e-14
    assert found.width < 1e-10


def test_saddle_searches_agree_with_each_other() -> None:
    c = saddle_of_level(NORMAL, -60.0)
    x, log_g, _ = log_estimate(NORMAL, c)
    assert log_g == pytest.approx(-60.0, abs=0.5)
    assert saddle(NORMAL, x) == pytest.approx(c, rel=0.02)


def test_quick_derivative_matches_a_difference() -> None:
    c = saddle(NORMAL, 2.0)
    line = Line(NORMAL, c, 2.0, log_estimate(NORMAL, c)[1])
    h = 1e-5
    slope = (line.quick(2.0 + h)[0] - line.quick(2.0 - h)[0]) / (2 * h)
    assert line.quick(2.0)[1] == pytest.approx(slope, rel=1e-6)


def test_a_law_without_decay_is_refused_with_a_reason() -> None:
    narrow = SumLaw((), mean=0.0, variance=1e-16)
    with pytest.raises(NotCertified, match="lattice"):
        Line(narrow, 1.0, 0.5, -1.0)
