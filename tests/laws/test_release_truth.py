"""Sampled Laplace noise, trees and vectors of discrete noise against slow truths of their own.

Nothing of the package enters a truth. Laplace: cells of the output, their losses rounded down and
up to a lattice, convolved. Trees: the nodes above a leaf, listed, and a Gaussian shift integrated
on a grid. Vectors: every whole shift of the length allowed, the law of its loss summed over whole
numbers.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy.signal import fftconvolve

from tightrope import Adjacency, LaplaceMechanism, account
from tightrope.process import SampledRelease
from tightrope.process.mechanism import DiscreteGaussianVector, TreeAggregation

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 106))]
MESH, CELLS = 2e-4, 40_000
DUST = 1e-11  # of the transforms


# ---- sampled Laplace noise
def laplace_below(x, scale: float):
    return np.where(
        x < 0, 0.5 * np.exp(np.minimum(x, 0) / scale), 1 - 0.5 * np.exp(-np.abs(x) / scale)
    )


def mixture(places: dict[float, float], scale: float, edges):
    """Masses of the cells between the edges, and the log density at the edges."""
    below = sum(w * laplace_below(edges - at, scale) for at, w in places.items())
    density = sum(w * np.exp(-np.abs(edges - at) / scale) for at, w in places.items())
    masses = np.diff(below, prepend=0.0, append=1.0)
    return masses, np.log(density)


def loss_law(one: dict[float, float], other: dict[float, float], scale: float):
    """Masses under the first law of cells whose losses lie between two numbers: L is monotone."""
    edges = np.linspace(-1.0, 1.0, CELLS + 1)  # beyond, the loss does not change
    masses, log_one = mixture(one, scale, edges)
    loss = log_one - mixture(other, scale, edges)[1]
    first, last = np.append(loss[:1], loss), np.append(loss, loss[-1:])
    return masses, np.minimum(first, last), np.maximum(first, last)


def composed(masses, losses, times: int, rounded) -> tuple[float, np.ndarray]:
    """The sum of `times` losses, each rounded to the mesh: its first value, and its masses."""
    place = rounded(losses / MESH).astype(np.int64)
    one = np.bincount(place - place.min(), weights=masses)
    law, power, left = np.ones(1), one, times
    while left:
        law = fftconvolve(law, power) if left % 2 else law
        left //= 2
        power = fftconvolve(power, power) if left else power
    return place.min() * times * MESH, np.maximum(law, 0.0)


def failing(law: tuple[float, np.ndarray], epsilon: float) -> float:
    loss = law[0] + MESH * np.arange(len(law[1]))
    over = loss > epsilon
    return float(law[1][over] @ -np.expm1(epsilon - loss[over]))


@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_laplace_noise(seed: int) -> None:
    rng = np.random.default_rng([1, seed])
    scale, rate = 10 ** rng.uniform(-0.3, 0.7), 10 ** rng.uniform(-2, -0.05)
    times, who = int(rng.integers(1, 21)), list(Adjacency)[seed % 3]
    joined, away = {0.0: 1 - rate, 1.0: rate}, {0.0: 1.0}
    orders = [(joined, away), (away, joined)]
    if who is Adjacency.REPLACE_ONE:
        orders = [(joined, {0.0: 1 - rate, -1.0: rate})]
    laws = [loss_law(*order, scale) for order in orders]
    low, high = (
        [composed(law[0], law[side], times, way) for law in laws]
        for side, way in ((1, np.floor), (2, np.ceil))
    )
    found = account(SampledRelease(LaplaceMechanism(float(scale)), float(rate), who)).guarantee()
    found = found if times == 1 else found**times
    for eps in rng.uniform(0.0, 0.6, 3) * times * float(np.max(laws[0][2])):
        least, most = (max(failing(law, eps) for law in side) for side in (low, high))
        answer = found.delta(float(eps))
        assert answer.upper >= least - DUST and answer.lower <= most + DUST, (scale, rate, times)
        assert answer.upper <= most + DUST, "exact, and not only safe"
    for delta in (1e-3, 1e-6):
        answer = found.epsilon(delta)
        assert max(failing(law, answer.upper) for law in low) <= delta + DUST
        if answer.lower > 0.0:
            assert max(failing(law, answer.lower) for law in high) >= delta - DUST


# ---- trees
def nodes_above(leaf: int, leaves: int) -> int:
    """Released nodes that hold a leaf: blocks of 2^i batches, released when the last one is in."""
    found, size = 0, 1
    while size <= leaves:
        begin = leaf // size * size
        found += begin + size <= leaves
        size *= 2
    return found


def shifted(shift: float, noise: float, epsilon: float) -> float:
    x = np.linspace(-12.0 * noise, shift + 12.0 * noise, 200_001)
    p, q = (np.exp(-0.5 * ((x - at) / noise) ** 2) for at in (shift, 0.0))
    over = np.maximum(p - math.exp(epsilon) * q, 0.0)
    return float(over.sum() * (x[1] - x[0])) / (noise * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_of_sums(seed: int) -> None:
    rng = np.random.default_rng([2, seed])
    leaves, noise = int(10 ** rng.uniform(0, 3)), float(10 ** rng.uniform(0, 1.5))
    who = list(Adjacency)[seed % 3]
    norm = 2.0 if who is Adjacency.REPLACE_ONE else 1.0
    shift = norm * math.sqrt(max(nodes_above(leaf, leaves) for leaf in range(leaves)))
    found = account(TreeAggregation(noise, leaves, who))
    for eps in rng.uniform(0.0, 2.5, 3) * shift / noise:
        truth, answer = shifted(shift, noise, float(eps)), found.delta(float(eps))
        assert answer.lower == pytest.approx(truth, rel=1e-6, abs=1e-9)
        assert answer.upper == pytest.approx(truth, rel=1e-6, abs=1e-9)


# ---- vectors of discrete Gaussian noise
def whole_shifts(length: float, dimension: int) -> list[tuple[int, ...]]:
    reach = range(math.floor(length) + 1)
    every = combinations_with_replacement(reach, dimension)
    return [v for v in every if 0 < sum(c * c for c in v) <= length * length * (1 + 1e-12)]


def vector_loss(shift: tuple[int, ...], sigma: float):
    """Losses and masses of (noise) against (noise + shift): they lie on multiples of 1/(2 s^2)."""
    x = np.arange(-math.ceil(14 * sigma) - 3, math.ceil(14 * sigma) + 4)
    noise = np.exp(-0.5 * (x / sigma) ** 2)
    noise /= noise.sum()
    law, first = np.ones(1), 0
    for moved in (c for c in shift if c):
        spread = np.zeros(2 * moved * (len(x) - 1) + 1)
        spread[:: 2 * moved] = noise
        law, first = np.convolve(law, spread), first + moved * moved + 2 * moved * int(x[0])
    return (first + np.arange(len(law))) / (2 * sigma * sigma), law


@pytest.mark.parametrize("seed", SEEDS[1:])
def test_vectors_of_discrete_noise(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    sigma, length = float(10 ** rng.uniform(-0.4, 1.2)), float(rng.uniform(1.0, 3.5))
    dimension = int(rng.integers(1, 5))
    found = account(DiscreteGaussianVector(sigma, length, dimension))
    laws = [vector_loss(shift, sigma) for shift in whole_shifts(length, dimension)]
    for eps in rng.uniform(0.0, 2.5, 1) * length / sigma:
        truth = max(
            float(law[loss > eps] @ -np.expm1(eps - loss[loss > eps])) for loss, law in laws
        )
        answer = found.delta(float(eps))
        assert answer.upper >= truth * (1 - 1e-9) - 1e-15, (sigma, length, dimension)
        assert answer.lower <= truth * (1 + 1e-9) + 1e-15
    for delta in (1e-2, 1e-6):
        eps = found.epsilon(delta).upper
        truth = max(
            float(law[loss > eps] @ -np.expm1(eps - loss[loss > eps])) for loss, law in laws
        )
        assert truth <= delta * (1 + 1e-9)
