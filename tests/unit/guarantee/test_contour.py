"""The contour method against closed forms, identities and laws; refusals."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.guarantee.complex_cumulant import cumulant

from tightrope.errors import NotCertified
from tightrope.guarantee.gaussian import log_gaussian_delta
from tightrope.guarantee.loss import contour
from tightrope.guarantee.loss.abstract import sum_law
from tightrope.guarantee.loss.contour import certified_value
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    Direction,
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
    randomized_response_pair,
)
from tightrope.guarantee.loss.pairs.sampling import log_ratio
from tightrope.guarantee.loss.renyi import renyi

PAIRS: list[AbstractLossPair] = [
    GaussianPair(0.7),
    SampledGaussianPair(0.01, 1.0, "remove"),
    SampledGaussianPair(0.01, 1.0, "add"),
    SampledGaussianPair(0.3, 3.0, "remove"),
    SampledGaussianPair(1e-6, 0.1, "add"),
    FixedSizeGaussianPair(0.05, 1.5),
    LaplacePair(2.0),
    randomized_response_pair(1.0),
]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_cumulant_is_zero_at_0_and_at_minus_1(pair: AbstractLossPair) -> None:
    for z in (0.0, -1.0):  # E_P[1] = 1 and E_P[e^-L] = Q-mass = 1
        at = cumulant(pair, z)
        assert abs(complex(at.value)) <= float(at.error) + 1e-16
        assert float(at.error) < 1e-13


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_cumulant_of_the_reversed_pair_is_the_mirror_image(pair: AbstractLossPair) -> None:
    z = np.array([0.3, 2.0, 1.0 + 2.0j, 4.0 - 5.0j])
    here, there = cumulant(pair, z), cumulant(pair.reversed(), -1.0 - z)
    gap = np.exp(here.value - there.value) - 1.0
    assert np.all(np.abs(gap) <= 2 * (here.error + there.error) + 1e-12)


@pytest.mark.parametrize("z", [2.5, 1.0 + 6.0j, 0.5 + 30.0j])
def test_cumulant_error_contains_a_slow_integral(z: complex) -> None:
    q, mu, step = 0.02, 1.3, mpmath.mpf(1) / 60
    with mpmath.workdps(25):
        terms = []
        for n in range(-13 * 60, 18 * 60):
            s = n * step
            r = 1 + q * (mpmath.exp(mu * s - mpmath.mpf(mu) ** 2 / 2) - 1)
            terms.append(step * mpmath.npdf(s) * mpmath.exp((1 + z) * mpmath.log(r)))
        truth = complex(mpmath.log(mpmath.fsum(terms)))
    at = cumulant(SampledGaussianPair(q, mu), z)
    gap = complex(at.value) - truth
    turns = round(gap.imag / (2 * math.pi))
    assert abs(gap - 2j * math.pi * turns) <= float(at.error) + 1e-15
    assert float(at.error) < 1e-12


@pytest.mark.parametrize("order", [1 + 1e-9, 1.0001, 2.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_renyi_answers_from_order_one_to_a_million(pair: AbstractLossPair, order: float) -> None:
    lower, upper = renyi(pair, order)
    assert 0.0 < lower <= upper <= lower * (1 + 1e-10)
    wider = renyi(pair, order * (1 + 1e-6) if order > 1.1 else 1 + 2 * (order - 1))
    assert wider[1] >= lower  # Renyi divergences rise with the order


def test_renyi_of_a_pair_with_infinite_loss_is_infinite() -> None:
    assert renyi(approx_pair(0.5, 1e-6), 2.0) == (math.inf, math.inf)


def test_renyi_takes_arrays() -> None:
    lower, upper = renyi(LaplacePair(1.0), np.array([1.5, 2.0, 8.0]))
    assert lower.shape == upper.shape == (3,)
    assert np.all(np.diff(lower) > 0)


def conditioned(masses: list[tuple[float, float]], mu: float, epsilon: float) -> float:
    """delta of (a law of losses) then one Gaussian release: E_P of the Gaussian profile."""
    return math.fsum(
        m * math.exp(log_gaussian_delta(epsilon - loss, mu).upper) for loss, m in masses
    )


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.7, 5.0])
def test_one_sampled_release_and_a_gaussian(direction: Direction, epsilon: float) -> None:
    q, mu, step = 0.4, 1.2, 1 / 64
    s = step * np.arange(-12 * 64, 14 * 64)
    ratio = log_ratio(s, q, mu)
    weight = step * np.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)
    law = (ratio, weight * np.exp(ratio)) if direction == "remove" else (-ratio, weight)
    truth = conditioned(list(zip(*(v.tolist() for v in law), strict=True)), 0.5, epsilon)
    pair = SampledGaussianPair(q, mu, direction)
    found = contour.log_delta(((pair, 1), (GaussianPair(0.5), 1)), epsilon)
    assert found.lower - 1e-12 <= math.log(truth) <= found.upper + 1e-12
    assert found.width < 1e-10


@pytest.mark.parametrize("epsilon", [-3.0, 0.0, 1.0, 20.0, 60.0])
def test_rate_near_one_agrees_with_the_gaussian(epsilon: float) -> None:
    found = contour.log_delta(((SampledGaussianPair(1 - 1e-13, 0.3), 50),), epsilon)
    closed = log_gaussian_delta(epsilon, 0.3 * math.sqrt(50))
    assert abs(found.upper - closed.upper) < 1e-9


def test_gaussians_and_rate_one_use_the_closed_form() -> None:
    mixed = ((GaussianPair(0.3), 16), (SampledGaussianPair(1.0, 0.5), 4))
    mu = math.sqrt(16 * 0.09 + 4 * 0.25)
    closed = log_gaussian_delta(2.0, mu)
    found = contour.log_delta(mixed, 2.0)
    assert found.lower <= closed.upper and closed.lower <= found.upper


@pytest.mark.parametrize("q,mu,steps", [(0.01, 1.0, 1000), (0.2, 0.5, 40), (0.05, 2.0, 300)])
def test_both_directions_agree_at_epsilon_zero(q: float, mu: float, steps: int) -> None:
    remove = contour.log_delta(((SampledGaussianPair(q, mu, "remove"), steps),), 0.0)
    add = contour.log_delta(((SampledGaussianPair(q, mu, "add"), steps),), 0.0)
    assert remove.lower <= add.upper and add.lower <= remove.upper
    assert remove.width < 1e-9


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_negative_epsilon_is_the_mirror_image(epsilon: float) -> None:
    # delta_{P||Q}(-e) = 1 - e^-e + e^-e delta_{Q||P}(e)
    remove = contour.log_delta(((SampledGaussianPair(0.02, 1.0, "remove"), 500),), -epsilon)
    add = contour.log_delta(((SampledGaussianPair(0.02, 1.0, "add"), 500),), epsilon)
    low, high = (-math.expm1(-epsilon) + math.exp(-epsilon + v) for v in (add.lower, add.upper))
    assert math.exp(remove.lower) <= high * (1 + 1e-15)
    assert low <= math.exp(remove.upper) * (1 + 1e-15)


def test_one_laplace_release_and_a_gaussian() -> None:
    top = 1.0
    x, w = np.polynomial.legendre.leggauss(40)
    x, w = 0.5 * (x + 1), 0.5 * w
    law = list(
        zip((top * (1 - 2 * x)).tolist(), (w * top / 2 * np.exp(-top * x)).tolist(), strict=True)
    )
    law += [(top, 0.5), (-top, 0.5 * math.exp(-top))]
    truth = conditioned(law, 0.8, 0.4)
    found = contour.log_delta(((LaplacePair(1 / top), 1), (GaussianPair(0.8), 1)), 0.4)
    assert found.lower - 1e-12 <= math.log(truth) <= found.upper + 1e-12


def test_discrete_pairs_ride_along_with_smooth_ones() -> None:
    pair = DiscretePair((-0.2, 0.3), (0.425, 0.575 - 1e-6), 1e-6)
    found = contour.log_delta(((pair, 2), (GaussianPair(1.5), 1)), 0.5)
    law = [(a + b, m * n) for a, m in pair.atoms for b, n in pair.atoms]
    total = 1 - (1 - 1e-6) ** 2 + conditioned(law, 1.5, 0.5)
    assert found.lower - 1e-12 <= math.log(total) <= found.upper + 1e-12


def test_epsilon_is_infinite_below_the_infinite_mass() -> None:
    parts = ((approx_pair(0.1, 1e-4), 3), (SampledGaussianPair(0.01, 1.0), 100))
    assert contour.epsilon(parts, 2e-4).lower == math.inf
    found = contour.epsilon(parts, 5e-4)
    assert found.upper < 3.0
    assert contour.log_delta(parts, found.upper).upper <= math.log(5e-4) + 1e-12


def test_epsilon_is_zero_when_delta_is_large() -> None:
    found = contour.epsilon(((SampledGaussianPair(0.001, 0.5), 100),), 0.1)
    assert (found.lower, found.upper) == (0.0, 0.0)


def test_epsilon_at_delta_zero_is_the_largest_loss() -> None:
    q, steps = 0.01, 10
    found = contour.epsilon(((SampledGaussianPair(q, 1.0, "add"), steps),), 0.0)
    assert found.upper == pytest.approx(-steps * math.log1p(-q))
    assert contour.epsilon(((GaussianPair(1.0), 1),), 0.0).upper == math.inf
    assert contour.log_delta(((SampledGaussianPair(q, 1.0, "add"), steps),), 0.2).upper == -math.inf


def test_nothing_composed_is_perfect_privacy() -> None:
    assert contour.log_delta((), 0.0).upper == -math.inf
    assert contour.epsilon((), 1e-5).upper == 0.0
    assert contour.epsilon(((SampledGaussianPair(0.1, 1.0), 0),), 1e-5).upper == 0.0


@pytest.mark.parametrize("delta", [1e-2, 1e-20, 1e-100, 1e-300])
def test_epsilon_down_to_tiny_delta(delta: float) -> None:
    parts = ((SampledGaussianPair(0.02, 1.0), 2000),)
    found = contour.epsilon(parts, delta)
    assert found.relative_width < 1e-9
    assert contour.log_delta(parts, found.upper).upper <= math.log(delta) + 1e-9
    assert contour.log_delta(parts, found.lower).lower >= math.log(delta) - 1e-9


@pytest.mark.parametrize("steps", [10**3, 10**5, 10**7, 10**9])
def test_steps_up_to_a_billion(steps: int) -> None:
    # rate * sqrt(steps) is kept: the limit is Gaussian
    rate = 0.5 / math.sqrt(steps)
    found = contour.epsilon(((SampledGaussianPair(rate, 1.0), steps),), 1e-5, 1e-8)
    limit = 0.5 * math.sqrt(math.expm1(1.0))
    assert found.relative_width < 1e-8
    if steps >= 10**9:
        assert log_gaussian_delta(found.upper, limit).upper == pytest.approx(
            math.log(1e-5), rel=2e-3
        )


@settings(max_examples=25, deadline=None)
@given(st.floats(0.6, 4.0), st.floats(0.005, 0.5), st.floats(3.0, 300.0), st.floats(1e-12, 1e-3))
def test_epsilon_rises_with_steps_and_rate_and_falls_with_noise_and_delta(
    sigma: float, rate: float, hits: float, delta: float
) -> None:
    steps = math.ceil(hits / rate)

    def eps(s: float, r: float, t: int, d: float) -> tuple[float, float]:
        found = contour.epsilon(((SampledGaussianPair(r, 1 / s), t),), d, 1e-6)
        return found.lower, found.upper

    base = eps(sigma, rate, steps, delta)
    assert base[0] <= eps(sigma, rate, steps + steps // 10 + 1, delta)[1]
    assert base[0] <= eps(sigma, min(1.0, 1.05 * rate), steps, delta)[1]
    assert eps(1.05 * sigma, rate, steps, delta)[0] <= base[1]
    assert eps(sigma, rate, steps, 2 * delta)[0] <= base[1]


def test_repeating_equals_a_list() -> None:
    pair = SampledGaussianPair(0.05, 0.8)
    one = contour.log_delta(((pair, 300),), 1.0)
    listed = contour.log_delta(tuple((pair, 100) for _ in range(3)), 1.0)
    assert one == listed


def test_many_distinct_noise_levels_lie_between_the_extreme_ones() -> None:
    sigmas = np.linspace(0.9, 1.3, 40)
    parts = tuple((SampledGaussianPair(0.02, 1 / float(s)), 25) for s in sigmas)
    found = contour.epsilon(parts, 1e-6)
    worst = contour.epsilon(((SampledGaussianPair(0.02, 1 / 0.9), 1000),), 1e-6)
    best = contour.epsilon(((SampledGaussianPair(0.02, 1 / 1.3), 1000),), 1e-6)
    assert best.upper < found.lower <= found.upper < worst.lower
    assert found.relative_width < 1e-9


def test_purely_discrete_laws_are_refused_quickly() -> None:
    with pytest.raises(NotCertified, match="lattice"):
        contour.log_delta(((randomized_response_pair(0.1), 100),), 0.5)


def test_enclosure_names_its_error_terms() -> None:
    law = sum_law(((SampledGaussianPair(256 / 60000, 1 / 1.1), 14062),))
    found, _ = certified_value(law, 2.0, 1e-6)
    terms = (found.quadrature, found.aliasing, found.truncation, found.rounding)
    assert all(0.0 <= t < 1e-11 for t in terms)
    assert found.width <= 4 * sum(terms)
    assert found.interval.lower == found.lower


@pytest.mark.parametrize(
    "sigma,rate,steps,delta",
    [
        (53.8, 2.05e-6, 12016995, 3.39e-146),
        (7.18, 8.66e-4, 10540, 2.05e-84),
        (12.938473657564895, 2.643863827557723e-08, 6199661, 2.9665197828802157e-12),
        (0.952, 5.9e-5, 2352129, 1.36e-12),
    ],
)
def test_tails_beyond_the_phase_transition(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    # 2 sigma^2 ln(1/rate) is where the tilted law of one step gets a second mode
    parts = ((SampledGaussianPair(rate, 1 / sigma), steps),)
    found = contour.epsilon(parts, delta)
    assert 0.0 < found.lower <= found.upper <= found.lower * (1 + 1e-6)
    assert contour.log_delta(parts, found.upper).upper <= math.log(delta) + 1e-6
