"""Noise: zero, refusals, storing, keying, and the grid's exactness."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from tightrope.errors import InvalidInput
from tightrope.train import DiscreteGaussianNoise, GaussianNoise

KINDS = [GaussianNoise, DiscreteGaussianNoise]


def draw(noise, count=64):
    total = torch.zeros(count)
    noise.add_([total], 1.0)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_zero_noise_changes_nothing(kind):
    total = torch.arange(5.0)
    kind(0.0).add_([total], 1.0)
    assert torch.equal(total, torch.arange(5.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise_multiplier", [-1.0, float("nan"), float("inf"), "1"])
def test_impossible_noise_is_refused(kind, noise_multiplier):
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        kind(noise_multiplier)
    with pytest.raises(InvalidInput, match="8192"):
        DiscreteGaussianNoise(1e4)


@pytest.mark.parametrize("kind", KINDS)
def test_stored_seeded_noise_continues_exactly(kind):
    noise = kind(1.0, seed=2)
    draw(noise)
    other = kind(1.0)
    other.restore(json.loads(json.dumps(noise.state())))
    assert torch.equal(draw(noise), draw(other)) and not other.private


@pytest.mark.parametrize("kind", KINDS)
def test_private_noise_never_repeats_whatever_is_restored_or_seeded(kind):
    noise, other = kind(1.0), kind(1.0)
    other.restore(json.loads(json.dumps(noise.state())))
    assert noise.state() == other.state()
    torch.manual_seed(0)
    first = draw(noise)
    torch.manual_seed(0)
    assert not torch.equal(first, draw(other))


def test_seeds_equal_modulo_two_to_the_32_differ():
    # torch.Generator.manual_seed keeps 32 bits; the keyed generator keeps all of them.
    assert not torch.equal(
        draw(GaussianNoise(1.0, seed=1)), draw(GaussianNoise(1.0, seed=1 + 2**32))
    )


def test_grid_noise_lies_on_the_grid_whatever_the_sum():
    total = torch.tensor([math.pi, -1e3, 1e-9, 0.1], dtype=torch.float64)
    DiscreteGaussianNoise(1.0).add_([total], 1.0)
    steps = total.numpy() * 2.0**30
    assert np.array_equal(steps, np.rint(steps))


def test_sums_beyond_the_grid_are_cut_off_and_nothing_is_refused_for_their_values():
    far = torch.tensor([1e12, -1e300], dtype=torch.float64)
    DiscreteGaussianNoise(1.0).add_([far], 1.0)
    assert torch.allclose(far, torch.tensor([2.0**32, -(2.0**32)], dtype=torch.float64), atol=10)


def test_whole_sums_get_whole_noise_of_the_accounted_size():
    sums = [torch.full((4, 500), 7), torch.zeros(2000, dtype=torch.int64)]
    DiscreteGaussianNoise(1.5).add_whole_(sums, 2**20)
    draws = torch.cat([(sums[0] - 7).reshape(-1), sums[1]])
    assert draws.dtype is torch.int64 and len(draws.unique()) > 3900
    square = float((draws.double() / (1.5 * 2**20)).square().sum())
    assert 2 * min(stats.chi2.sf(square, 4000), stats.chi2.cdf(square, 4000)) > 1e-6


def test_whole_noise_wants_whole_sums():
    with pytest.raises(InvalidInput, match="whole numbers"):
        DiscreteGaussianNoise(1.0).add_whole_([torch.zeros(3)], 10)


def test_every_tensor_gets_its_own_noise_whatever_the_grouping(monkeypatch):
    sums = [torch.zeros(7), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(0), torch.zeros(50)]
    sums += [torch.zeros(5, 6).t()]  # not to be cut by a view
    monkeypatch.setattr("tightrope.train.noise._IN_CACHE", 5)
    monkeypatch.setattr("tightrope.train.noise._LARGEST_KEPT", 0)
    GaussianNoise(1.0).add_(sums, 1.0)
    values = torch.cat([s.double().reshape(-1) for s in sums])
    assert len(values.unique()) == 99 and (values != 0).all()


def test_noise_in_parts_has_the_law_of_noise_at_once(monkeypatch):
    monkeypatch.setattr("tightrope.train.noise._IN_CACHE", 1000)
    monkeypatch.setattr("tightrope.train.noise._LARGEST_KEPT", 0)
    noise, sums = GaussianNoise(2.0), [torch.zeros(100, 100)]
    for _ in range(2):
        before = sums[0].clone()
        noise.add_(sums, 1.0)
        drawn = (sums[0] - before).double()
        assert abs(float(drawn.std()) / 2 - 1) < 0.05
        assert abs(float(drawn.mean())) < 0.1
        parts = drawn.view(10, 1000)
        assert (
            float((parts @ parts.t() / 4000 - torch.eye(10, dtype=drawn.dtype)).abs().max()) < 0.3
        )
