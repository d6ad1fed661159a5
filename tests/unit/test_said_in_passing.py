"""What the papers say in passing and the library relies on or improves: a check each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.renyi.closed_forms import classical_epsilon
from tightrope.process.convex import ContractiveIteration, ConvexLoss
from tightrope.theorems.last_iterate.descent import HiddenHull
from tightrope.theorems.poisson_renyi import renyi_guarantee
from tightrope_reproduce.plan.smoothing import smoothed


@pytest.mark.parametrize("distance", [0.5, 2.0])
@pytest.mark.parametrize("steps", [1, 10])
def test_starts_a_wasserstein_distance_apart(distance, steps):
    """Theorem 22 with W_inf(X_0, X_0') <= d: identity maps give mu = d/(s sqrt(T))."""
    run = ContractiveIteration(
        sensitivities=(0.0,) * steps,
        contractions=(1.0,) * steps,
        noise_scales=(1.5,) * steps,
        start_distance=distance,
    )
    mu = distance / (1.5 * math.sqrt(steps))
    found = HiddenHull.guarantee(run)
    assert found.renyi(3.0).upper == pytest.approx(1.5 * mu * mu, rel=1e-9)
    assert found.epsilon(1e-5).upper == pytest.approx(profile.epsilon(1e-5, mu), rel=1e-6)


def test_the_order_grid_of_the_papers_accountant():
    """Footnote 13's orders give 13.33 where Table 1 prints 13.27; tenths of orders give 13.27."""
    run = NoisySGD(PoissonSampling(256 / 60000), 0.6, 14531)
    curve = renyi_guarantee(run, "classical").curve
    coarse = np.array([*np.arange(1.25, 2.6, 0.25), 3, 3.5, 4, 4.5, *range(5, 65), 128, 256, 512.0])
    fine = np.concatenate([1.0 + np.arange(1, 100) / 10.0, np.arange(12.0, 64.0)])
    epsilons = [float(np.min(classical_epsilon(o, curve(o), 1e-5))) for o in (coarse, fine)]
    assert epsilons == [pytest.approx(13.33, abs=0.01), pytest.approx(13.27, abs=0.005)]
    assert account(run).epsilon(1e-5).upper < epsilons[1]


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_the_tail_criterion_is_enough_and_not_needed(mu, epsilon):
    """Survey, Theorem II.1: P(loss >= eps) <= delta gives (eps, delta)-DP; Gaussian losses."""
    tail = float(ndtr(mu / 2 - epsilon / mu))
    assert profile.delta(epsilon, mu) < tail


def test_generalised_linear_models_are_smoothed_in_one_dimension():
    """f(w) = |<w, x>|: convolving |.| with N(0, (scale |x|)^2) has the promised constants."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=4)
    x /= np.linalg.norm(x)
    scale = 0.3
    made = smoothed(ConvexLoss(1.0, math.inf), scale, 1)

    def value(w):
        z = w @ x / scale
        return scale * (z * (2 * ndtr(z) - 1) + 2 * math.exp(-z * z / 2) / math.sqrt(2 * math.pi))

    def gradient(w):
        return (2 * ndtr(w @ x / scale) - 1) * x

    for _ in range(200):
        v, w = rng.normal(size=(2, 4))
        assert -1e-14 <= value(w) - abs(w @ x) <= made.error * (1 + 1e-12)
        moved = np.linalg.norm(gradient(v) - gradient(w))
        assert moved <= made.loss.smoothness * np.linalg.norm(v - w) * (1 + 1e-9)
    near = np.linalg.norm(gradient(1e-6 * x) - gradient(-1e-6 * x)) / 2e-6
    assert near == pytest.approx(made.loss.smoothness, rel=1e-6)
    assert made.error < smoothed(ConvexLoss(1.0, math.inf), scale, 4).error
