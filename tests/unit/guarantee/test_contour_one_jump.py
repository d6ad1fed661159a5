"""Where one large step decides: the expansion against the transform, a fine sum and the lattice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.gaussian import profile as gaussian
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss.closed_form import log_delta_single
from tightrope.guarantee.loss.contour_one_jump import OneJump
from tightrope.guarantee.loss.gaussian import log_ratio, point_of_log_ratio
from tightrope.guarantee.loss.pair import GaussianPair, SampledGaussianPair
from tightrope.validate import FloatArray


def steps_of(rate: float, noise: float, steps: int, direction: str = "remove") -> Components:
    return ((SampledGaussianPair(rate, 1.0 / noise, direction), steps),)  # type: ignore[arg-type]


# rate, noise, steps, delta; refused by every transform
HARD = [
    (4.77e-7, 2.19, 56, 7.7e-183),
    (1.31e-7, 0.723, 9, 6.7e-36),
    (1.33e-6, 1.28, 195, 2.6e-108),
    (2.5e-8, 1.27, 220_000, 2e-147),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), HARD)
def test_settings_that_no_transform_reaches(
    rate: float, noise: float, steps: int, delta: float
) -> None:
    held = steps_of(rate, noise, steps)
    found = contour.epsilon(held, delta)
    assert found.relative_width <= 1e-6
    assert found.meets(lattice.epsilon(held, delta))
    for thorough in (False, True):
        profile.confirm_epsilon((held,), delta, found, thorough)
    middle = 0.5 * (found.lower + found.upper)
    at = contour.log_delta(held, middle)
    assert at.lower - 1e-4 <= math.log(delta) <= at.upper + 1e-4


@pytest.mark.parametrize(("epsilon", "noise"), [(1e-3, 1.0), (0.05, 1.0), (1.0, 0.8)])
def test_two_steps_against_a_fine_sum(epsilon: float, noise: float) -> None:
    """delta of two steps is E_P delta_1(epsilon - L), summed here over a fine grid of s."""
    rate, mu = 1e-7, 1.0 / noise
    pair = SampledGaussianPair(rate, mu, "remove")
    guess = math.log(2.0) + log_delta_single(pair, epsilon).upper
    found = OneJump(pair, 2, guess, 1e-6).enclosure(epsilon)
    # up to L = epsilon, where the integrand is negligible, and from there on, where it has a kink
    kink = float(point_of_log_ratio(epsilon, rate, mu))
    s, step = np.linspace(-12.0, kink, 40_001, retstep=True)
    nodes, weights = np.polynomial.legendre.leggauss(30)
    panels = kink + 0.25 * np.arange(20)[:, None]
    far = (panels + 0.125 * (nodes + 1.0)).reshape(-1)
    points = np.concatenate([s, far])
    masses = np.concatenate([np.full(len(s), step), np.tile(0.125 * weights, 20)])
    losses = log_ratio(points, rate, mu)
    log_density = losses - 0.5 * points * points - 0.5 * math.log(2.0 * math.pi)
    truth = math.log(float((masses * np.exp(log_density)) @ _one_step(pair, epsilon - losses)))
    assert found.lower - 1e-8 <= truth <= found.upper + 1e-8
    assert found.width <= 1e-4


def _one_step(pair: SampledGaussianPair, epsilons: FloatArray) -> FloatArray:
    """delta of one step for any real epsilon: rate times the Gaussian one at ln kappa (A19)."""
    kappa = (np.expm1(epsilons) + pair.rate) / pair.rate
    found = -np.expm1(np.minimum(epsilons, 0.0))
    inside = kappa > 0.0
    found[inside] = pair.rate * np.asarray(gaussian.delta(np.log(kappa[inside]), pair.mu))
    return found


@pytest.mark.parametrize("steps", [2, 50, 3000])
def test_it_agrees_with_the_transform_with_jumps(steps: int) -> None:
    held, delta = steps_of(1e-7, 0.5, steps), 1e-25
    found = OneJump.of(held, math.log(delta), 1e-5).epsilon(1.0, 1e-13)
    other = lattice.epsilon(held, delta)
    assert found.relative_width <= 1e-5 and found.meets(other)


def test_refusals() -> None:
    for held in (steps_of(1e-6, 1.0, 10, "add"), ((GaussianPair(1.0), 3),), steps_of(1e-6, 1.0, 1)):
        with pytest.raises(NotCertified, match="one kind"):
            OneJump.of(held, -50.0, 1e-6)
    usual = OneJump.of(steps_of(0.01, 1.0, 1000), math.log(1e-5), 1e-6)
    assert not usual.is_plausible
    with pytest.raises(NotCertified, match="lattice"):
        usual.enclosure(1.8)
    two = OneJump.of(steps_of(2.3e-8, 0.577, 3), math.log(1.4e-188), 1e-6)
    assert not two.is_plausible  # two jumps reach further than one
    with pytest.raises(NotCertified):
        two.epsilon(30.0, 1e-13)
