"""Is the noise Gaussian, independent and of the stated size? False-alarm rate 1e-6 each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tightrope.train import DiscreteGaussianNoise, GaussianNoise

FALSE_ALARM = 1e-6


def sample(noise, count, sensitivity):
    sums = [torch.zeros(count // 2), torch.zeros(10, count // 20)]
    noise.add_(sums, sensitivity)
    return torch.cat([s.reshape(-1) for s in sums]).double().numpy()


@pytest.mark.parametrize("kind", [GaussianNoise, DiscreteGaussianNoise])
def test_noise_is_gaussian_with_multiplier_times_sensitivity(kind):
    draws = sample(kind(1.3), 200_000, sensitivity=0.7) / (1.3 * 0.7)
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    squares = (draws**2).sum()
    assert (
        2 * min(stats.chi2.sf(squares, draws.size), stats.chi2.cdf(squares, draws.size))
        > FALSE_ALARM
    )
    assert (
        stats.norm.sf(abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) * np.sqrt(draws.size))
        > FALSE_ALARM
    )
    assert abs(draws).max() > 4.0  # the tails are there: false alarm (1 - 6.3e-5)^200000 < 4e-6


@pytest.mark.parametrize("kind", [GaussianNoise, DiscreteGaussianNoise])
def test_two_sources_are_independent(kind):
    a, b = sample(kind(1.0), 100_000, 1.0), sample(kind(1.0), 100_000, 1.0)
    assert stats.pearsonr(a, b).pvalue > FALSE_ALARM


def circles(draws):
    """Where Box and Muller's pairs of 24-bit draws would give whole numbers, for small ones.

    PyTorch fills blocks of 16: entry j and entry j + 8 are one pair, with squares adding up to
    -2 ln(k / 2^24) for a whole number k.
    """
    blocks = draws.reshape(-1, 16)
    squares = blocks[:, :8] ** 2 + blocks[:, 8:] ** 2
    k = np.exp(-squares / 2).reshape(-1) * 2.0**24
    small = k[k < 2000]
    return np.abs(small - np.rint(small))


def test_the_noise_does_not_lie_on_the_generators_circles():
    count = 16 * 250_000
    plain = torch.empty(count).normal_(generator=torch.Generator().manual_seed(1)).double().numpy()
    assert circles(plain).size > 100 and np.median(circles(plain)) < 0.05  # the fault, seen
    ours = torch.zeros(count)
    GaussianNoise(1.0).add_([ours], 1.0)
    distance = circles(ours.double().numpy())
    assert stats.kstest(distance, stats.uniform(0, 0.5).cdf).pvalue > FALSE_ALARM
