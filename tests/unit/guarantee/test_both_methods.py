"""Laws that both methods obey, the integral and the lattice, each by itself."""

from __future__ import annotations

import math

import pytest

from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss import contour, lattice
from tightrope.guarantee.loss.pairs import (
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianPair,
    SampledGaussianPair,
    approx_pair,
)
from tightrope.numerics.interval import Interval

pytestmark = pytest.mark.parametrize("method", [contour, lattice], ids=["contour", "lattice"])
REMOVE, ADD = (SampledGaussianPair(0.02, 1.0, way) for way in ("remove", "add"))


@pytest.mark.parametrize(
    ("parts", "mu"),
    [
        (((GaussianPair(0.5), 10),), 0.5 * math.sqrt(10)),
        (((GaussianPair(0.02), 400),), 0.4),
        (((GaussianPair(0.3), 16), (SampledGaussianPair(1.0, 0.5), 4)), math.sqrt(2.44)),
        (((SampledGaussianPair(1 - 1e-13, 0.3), 50),), 0.3 * math.sqrt(50)),
    ],
)
@pytest.mark.parametrize("epsilon", [0.0, 3.0])
def test_gaussians_compose_to_one_gaussian(method, parts, mu, epsilon) -> None:
    found, true = method.log_delta(parts, epsilon), log_gaussian_delta(epsilon, mu)
    assert found.lower <= true.upper + 1e-9 and true.lower <= found.upper + 1e-9
    assert found.width < 1e-4


def test_both_directions_agree_at_epsilon_zero(method) -> None:
    """delta_remove(0) = delta_add(0): total variation is symmetric."""
    remove, add = (method.log_delta(((pair, 500),), 0.0) for pair in (REMOVE, ADD))
    assert remove.meets(add) and remove.width < 1e-4


@pytest.mark.parametrize("pair", [REMOVE, FixedSizeGaussianPair(0.05, 0.7)])
def test_a_negative_epsilon_is_the_mirror_image(method, pair) -> None:
    """delta_{P||Q}(-e) = 1 - e^-e + e^-e delta_{Q||P}(e)."""
    here = method.log_delta(((pair, 200),), -0.1)
    there = method.log_delta(((pair.reversed(), 200),), 0.1)
    ends = (math.log(-math.expm1(-0.1) + math.exp(-0.1 + v)) for v in (there.lower, there.upper))
    low, high = ends
    assert here.meets(Interval(low - 1e-12, high + 1e-12))


def test_order_and_grouping_of_releases_do_not_matter(method) -> None:
    once = method.log_delta(((REMOVE, 30), (GaussianPair(0.2), 4)), 1.0)
    split = ((GaussianPair(0.2), 1), (REMOVE, 10), (GaussianPair(0.2), 3), (REMOVE, 20))
    assert once.meets(method.log_delta(split, 1.0))
    assert method.log_delta(((REMOVE, 30), (ADD, 0)), 1.0) == method.log_delta(((REMOVE, 30),), 1.0)


def test_answers_that_need_no_work(method) -> None:
    few = ((SampledGaussianPair(0.1, 1.0, "add"), 3),)
    assert method.log_delta(few, 0.4) == Interval.exact(-math.inf)
    assert method.log_delta((), 0.0) == Interval.exact(-math.inf)
    assert method.epsilon(few, 0.9) == Interval.exact(0.0)
    assert method.epsilon((), 1e-5) == Interval.exact(0.0)
    assert method.epsilon(((approx_pair(0.1, 1e-3), 2),), 1e-4).lower == math.inf
    assert method.epsilon(((REMOVE, 3),), 0.0).upper == math.inf


def test_values_off_a_lattice_keep_their_mass(method) -> None:
    """Beside a Gaussian, whose profile averaged over the values is the truth."""
    pair, mu, epsilon = DiscretePair((-0.5, 0.1, 0.7), (0.2, 0.5, 0.3 - 1e-6), 1e-6), 1.5, 0.5
    sums = [(a + b, m * n) for a, m in pair.atoms for b, n in pair.atoms]
    rest = [m * math.exp(log_gaussian_delta(epsilon - x, mu).upper) for x, m in sums]
    truth = math.log(1 - (1 - 1e-6) ** 2 + math.fsum(rest))
    found = method.log_delta(((pair, 2), (GaussianPair(mu), 1)), epsilon)
    assert found.lower - 1e-12 <= truth <= found.upper + 1e-12
    assert found.width < 1e-2
