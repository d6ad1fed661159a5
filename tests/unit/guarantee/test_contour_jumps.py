"""Sharply cut losses and the hard regime, in which few large losses decide."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from tightrope.errors import NotCertified
from tightrope.guarantee.loss import contour, profile
from tightrope.guarantee.loss.contour import certified_value, without_rare
from tightrope.guarantee.loss.pairs import GaussianPair, SampledGaussianPair
from tightrope.guarantee.loss.pairs.sampled import SampledCumulant
from tightrope.guarantee.loss.pairs.sampled_cut import PartCumulant
from tightrope.guarantee.loss.pairs.sampling import log_ratio, point_of_log_ratio

RATE, MU = 1e-4, 1.3
PAIR = SampledGaussianPair(RATE, MU)


def slow_mass(w: complex, low: float, high: float) -> mpmath.mpc:
    """int phi r^w on [low, high] by brute force."""

    def integrand(s: mpmath.mpf) -> mpmath.mpc:
        b = RATE * mpmath.exp(MU * s - mpmath.mpf(MU) ** 2 / 2)
        return mpmath.npdf(s) * mpmath.exp(w * mpmath.log(1 - RATE + b))

    return mpmath.quad(integrand, list(np.linspace(low, high, 30)))


@pytest.mark.parametrize("tilt", [0.0, 40.0])
@pytest.mark.parametrize("frequency", [0.0, 900.0])
def test_a_law_that_is_cut_encloses_a_slow_integral(tilt: float, frequency: float) -> None:
    nodes = PartCumulant([PAIR], [1], np.array([7.0])).nodes(tilt, frequency, 34.0)
    with mpmath.workdps(20):
        truth = slow_mass(1 + tilt + 1j * frequency, -9.0, 7.0)
    x, error = nodes.transform(max(frequency, 1.0), 2 if frequency else 1)
    value = (1.0 + x[0, -1]) * np.exp(1j * frequency * nodes.centre[0] + nodes.log_mass[0])
    size = math.exp(nodes.log_mass[0])
    allowed = size * (error[0, -1] + nodes.log_mass_error[0] + 1e-13)
    assert abs(complex(truth) - value) <= allowed
    assert allowed < 1e-9 * size


def one_step_delta(epsilon: np.ndarray, rate: float, mu: float) -> np.ndarray:
    """delta of one sampled release, theory D: q Phi(mu - s) - (e^eps - 1 + q) Phi(-s)."""
    kappa = np.expm1(epsilon) + rate
    safe = np.maximum(kappa, 1e-300)
    s = (np.log(safe / rate) + 0.5 * mu * mu) / mu
    inside = rate * ndtr(mu - s) - safe * ndtr(-s)
    return np.where(kappa > 0.0, inside, -np.expm1(epsilon))


@pytest.mark.parametrize("epsilon", [0.4, 3.0, 16.0])
def test_two_steps_against_one_integral_of_the_closed_form(epsilon: float) -> None:
    rate, mu = 0.05, 1 / 0.3
    # one step's delta bends sharply where e^eps/r = 1 - q: panels halve on the way there
    corner = float(point_of_log_ratio(epsilon - math.log1p(-rate), rate, mu))
    near = 2.0 ** -np.arange(60.0)
    edges = np.unique(np.concatenate([np.linspace(-10, 17, 109), corner - near, corner + near]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = 0.5 * np.diff(edges)[:, None]
    s = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes
    losses = log_ratio(s, rate, mu)
    density = np.exp(losses - 0.5 * s * s) / math.sqrt(2 * math.pi)
    truth = float(np.sum(half * weights * density * one_step_delta(epsilon - losses, rate, mu)))
    found = profile.delta(((SampledGaussianPair(rate, mu), 2),), epsilon)
    assert found.lower * (1 - 1e-10) <= truth <= found.upper * (1 + 1e-10)
    assert found.relative_width <= 1e-4


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta", "truth"),
    [  # truths: intervals of other plans of the lattice
        (1e-5, 0.5, 10**4, 1e-8, (0.91014, 0.91017)),
        (1e-3, 0.6, 100, 1e-6, (1.38805, 1.38814)),
        (1e-6, 1.0, 1000, 1e-9, (1.87352e-4, 1.87354e-4)),
        (0.05, 0.3, 2, 1e-5, (16.8945, 16.8950)),
    ],
)
def test_hard_regime(
    rate: float, noise: float, steps: int, delta: float, truth: tuple[float, float]
) -> None:
    parts = ((SampledGaussianPair(rate, 1 / noise), steps),)
    found = profile.epsilon(parts, delta)
    assert truth[0] <= found.lower <= found.upper <= truth[1]
    assert found.relative_width <= 1e-6
    assert profile.delta(parts, found.upper).lower <= delta
    assert profile.delta(parts, found.lower).upper >= delta


@pytest.mark.parametrize("tilt", [1.0, 30.0])
@pytest.mark.parametrize("frequency", [0.0, 40.0, 900.0])
def test_foreseen_points_are_not_more_than_come(tilt: float, frequency: float) -> None:
    pairs = [SampledGaussianPair(0.01, 1.0), SampledGaussianPair(0.2, 0.3)]
    parts = PartCumulant(pairs, [2, 3], np.array([6.0, 6.0])), SampledCumulant(pairs, [2, 3])
    for part in parts:
        came = part.nodes(tilt, frequency, 30.0).size
        assert part.fewest_points(tilt, frequency) <= came
        if frequency == 900.0:
            assert part.fewest_points(tilt, frequency) > 0.02 * came


def test_no_rare_losses_are_refused_with_a_next_step() -> None:
    with pytest.raises(NotCertified, match="lattice"):
        without_rare(((GaussianPair(1.0), 1),), -20.0, 1e-6)


def test_what_is_left_out_is_bounded() -> None:
    parts = ((SampledGaussianPair(0.01, 1.0), 1000),)
    whole = contour.log_delta(parts, 2.0)
    for width in (1e-2, 1e-6):
        law, missing = without_rare(parts, whole.upper, width)
        cut = certified_value(law, 2.0, 1e-6)[0]
        assert cut.lower <= whole.upper
        assert math.exp(whole.lower) <= math.exp(cut.upper) + math.exp(missing)
        assert missing < whole.upper + math.log(width)


def test_a_refusal_carries_what_was_proved() -> None:
    parts = ((SampledGaussianPair(1e-6, 1.0), 1000),)
    with pytest.raises(NotCertified) as refusal:
        certified_value(without_rare(parts, -20.7, 1e-6)[0], 1.87e-4, 1e-13)
    reached = refusal.value.reached
    assert reached is not None and reached[0] < reached[1] < reached[0] + 1e-3
