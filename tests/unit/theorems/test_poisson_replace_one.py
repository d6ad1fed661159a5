"""The interpolation lemma by finite differences, and the domination over angles and lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope import NoisySGD, PoissonSampling
from tightrope.guarantee.loss.pairs import GaussianMixturePair
from tightrope.process import Adjacency, FixedSizeSampling
from tightrope.theorems.sampling import PoissonReplaceOneExact

_AXIS = np.linspace(-8.0, 8.0, 241)
_X = np.stack(np.meshgrid(_AXIS, _AXIS, indexing="ij"), axis=-1)
_CELL = float(_AXIS[1] - _AXIS[0]) ** 2


def _density(point: np.ndarray, noise: float) -> np.ndarray:
    square = ((_X - point) ** 2).sum(axis=-1)
    return np.exp(-0.5 * square / noise**2) / (2.0 * math.pi * noise**2)


def _soft(f: np.ndarray, width: float) -> np.ndarray:
    """A smooth convex psi near (.)_+."""
    return 0.5 * (f + np.sqrt(f * f + width * width))


@pytest.mark.parametrize("seed", range(4))
def test_the_derivative_is_that_of_the_lemma(seed: int) -> None:
    """For a smooth psi, the term with f kept: finite differences against the formula."""
    rng = np.random.default_rng(seed)
    points, moves = rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    weights, noise, width = rng.normal(size=4), float(rng.uniform(0.7, 1.5)), 0.1

    def whole(t: float) -> float:
        parts = [_density(p, noise) for p in points + t * moves]
        value = _soft(np.tensordot(weights, parts, 1), width) - 0.5 * width
        return float(value.sum()) * _CELL

    found = (whole(1e-4) - whole(-1e-4)) / 2e-4
    phi = [_density(p, noise) for p in points]
    f = np.tensordot(weights, phi, 1)
    bent = 0.5 * width**2 / (f * f + width * width) ** 1.5  # psi''
    total = 0.0
    for i in range(4):
        inner = ((_X - points[i]) * moves[i]).sum(axis=-1)
        total -= float((bent * f * weights[i] * phi[i] * inner).sum()) * _CELL / noise**2
        for j in range(i):
            apart = 2.0 * float((moves[i] - moves[j]) @ (points[i] - points[j]))
            both = float((bent * phi[i] * phi[j]).sum()) * _CELL
            total -= weights[i] * weights[j] * apart * both / (2.0 * noise**2)
    assert found == pytest.approx(total, rel=2e-5, abs=1e-8)


def _divergence(
    rate: float, noise: float, epsilon: float, g: np.ndarray, other: np.ndarray
) -> float:
    """H of (1-q) N(0) + q N(g) against (1-q) N(0) + q N(g'), on a grid."""
    base, first, second = (_density(p, noise) for p in (np.zeros(2), g, other))
    f = (1 - rate) * (1 - math.exp(epsilon)) * base + rate * (first - math.exp(epsilon) * second)
    return float(np.maximum(f, 0.0).sum()) * _CELL


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 0.7), (0.3, 1.6), (0.8, 1.0)])
def test_the_antiparallel_pair_dominates(rate: float, noise: float) -> None:
    east = np.array([1.0, 0.0])
    for epsilon in (0.0, 0.02, 0.6):
        worst = _divergence(rate, noise, epsilon, east, -east)
        last = -1.0
        for angle in np.linspace(0.0, math.pi, 5):
            turned = np.array([math.cos(angle), math.sin(angle)])
            found = _divergence(rate, noise, epsilon, east, turned)
            assert found >= last - 1e-6  # rises with the angle
            last = found
            for long, longer in ((1.0, 0.5), (0.5, 1.0), (0.3, 0.3), (0.0, 1.0), (1.0, 0.0)):
                short = _divergence(rate, noise, epsilon, long * east, longer * turned)
                assert short <= worst + 1e-6
        pair = GaussianMixturePair(rate, 1.0 / noise, 1, 1)
        assert worst == pytest.approx(math.exp(pair.log_delta_single(epsilon).upper), abs=2e-4)


def test_both_orders_have_the_same_law() -> None:
    pair = GaussianMixturePair(0.1, 1.0, 1, 1)
    assert pair.reversed() == pair
    loss = np.linspace(-3.0, 3.0, 13)
    assert np.allclose(pair.log_survival(loss)[0], pair.log_cdf(-loss)[1], atol=1e-12)


def test_runs_at_the_corners() -> None:
    def told(rate: float, noise: float, steps: int) -> float:
        run = NoisySGD(PoissonSampling(rate), noise, steps, Adjacency.REPLACE_ONE)
        return PoissonReplaceOneExact.guarantee(run).epsilon(1e-5).upper

    assert told(0.0, 1.0, 10) == told(0.1, 1.0, 0) == 0.0
    assert told(0.1, 0.0, 1) == math.inf
    assert told(1.0, 1.0, 1) == pytest.approx(told(1.0 - 1e-12, 1.0, 1), rel=1e-6)
    assert 0.0 <= told(0.1, 1e7, 10) < 0.1
    assert 0.0 < told(0.1, 0.01, 10) < math.inf


def test_other_samplers_and_neighbours_are_refused() -> None:
    for run in (
        NoisySGD(FixedSizeSampling(0.1), 1.0, 1, Adjacency.REPLACE_ONE),
        NoisySGD(PoissonSampling(0.1), 1.0, 1),
    ):
        assert PoissonReplaceOneExact.applies(run) is not None
