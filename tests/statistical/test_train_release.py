"""What a private step releases has exactly the law that is accounted. False-alarm rate 1e-6 each.

One example with gradient norm 5, clipped to 1: each step must release a draw of
(1 - rate) N(0, sigma^2) + rate N(-1, sigma^2), divided by the public constant.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tightrope.train import (
    AdaptiveClip,
    DiscreteGaussianNoise,
    FlatClip,
    GaussianNoise,
    PerLayerClip,
    PoissonSampler,
    noisy_sgd,
)

FALSE_ALARM = 1e-6
RATE, SIGMA, CONSTANT, STEPS = 0.3, 0.4, 7.0, 1500


def output(model, x):
    return model(x)[:, 0]


def releases(noise, examples, micro_batch=None, arithmetic="bounded"):
    torch.set_num_threads(1)
    model = nn.Linear(1, 1, bias=False)
    run = noisy_sgd(
        model,
        torch.full((examples, 1), -5.0),
        output,
        learning_rate=1.0,
        sampler=PoissonSampler(RATE),
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=CONSTANT,
        steps=STEPS,
        micro_batch=micro_batch,
        arithmetic=arithmetic,
    )
    weights = [model.weight.item()]
    weights += [model.weight.item() for _ in run]
    return -np.diff(weights) * CONSTANT


def mixture(examples):
    counts = np.arange(examples + 1)
    chances = stats.binom.pmf(counts, examples, RATE)
    return lambda x: (chances * stats.norm.cdf(np.asarray(x)[:, None], -counts, SIGMA)).sum(axis=1)


@pytest.mark.parametrize(
    ("noise", "arithmetic"),
    [
        (GaussianNoise, "bounded"),
        (DiscreteGaussianNoise, "bounded"),
        (DiscreteGaussianNoise, "strict"),
    ],
)
@pytest.mark.parametrize(("examples", "micro_batch"), [(1, None), (3, None), (3, 1)])
def test_each_step_releases_the_accounted_mixture(noise, arithmetic, examples, micro_batch):
    drawn = releases(noise(SIGMA), examples, micro_batch, arithmetic)
    assert drawn.size == STEPS
    assert stats.kstest(drawn, mixture(examples)).pvalue > FALSE_ALARM
    lag = np.corrcoef(drawn[:-1], drawn[1:])[0, 1] * np.sqrt(STEPS)
    assert 2 * stats.norm.sf(abs(lag)) > FALSE_ALARM


def test_the_test_would_notice_another_divisor_or_a_little_less_noise():
    drawn = releases(GaussianNoise(SIGMA), 3)
    assert stats.kstest(drawn * 0.8, mixture(3)).pvalue < FALSE_ALARM
    assert stats.kstest(releases(GaussianNoise(SIGMA / 2), 1), mixture(1)).pvalue < FALSE_ALARM


CLIPS = {
    "flat": (lambda: FlatClip(0.3), 0.3),
    "per layer": (lambda: PerLayerClip(0.3), 0.3),
    "adaptive": (lambda: AdaptiveClip(0.3, share=0.19, rate=1e-9), 0.3 / 0.9),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_stated_deviation_in_every_coordinate(clip, dtype):
    """Nobody is drawn, so each step is its noise: sigma * sensitivity / constant, times 1 + rho."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 20), nn.Linear(20, 5)).to(dtype)
    make, sensitivity = CLIPS[clip]
    run = noisy_sgd(
        model,
        torch.zeros(3, 40, dtype=dtype),
        lambda model, x: model(x).sum(1),
        learning_rate=1.0,
        sampler=PoissonSampler(0.0),
        clip=make(),
        noise=GaussianNoise(2.0),
        expected_batch_size=CONSTANT,
        steps=40,
    )
    assert run.noise.noise_multiplier == 2.0 and run.clip.sensitivity == pytest.approx(sensitivity)
    weights = [vector(model), *(vector(model) for _ in run)]
    deviation = 2.0 * run.sensitivity_charged / CONSTANT
    assert sensitivity < run.sensitivity_charged < 1.02 * sensitivity
    drawn = np.diff(np.stack(weights), axis=0) / deviation  # (steps, coordinates)
    assert stats.kstest(drawn.reshape(-1), "norm").pvalue > FALSE_ALARM
    square = (drawn**2).sum()
    assert 2 * min(stats.chi2.sf(square, drawn.size), stats.chi2.cdf(square, drawn.size)) > 1e-6
    means = drawn.mean(0) * np.sqrt(len(drawn))  # of coordinates, and of steps
    assert stats.kstest(means, "norm").pvalue > FALSE_ALARM
    means = drawn.mean(1) * np.sqrt(drawn.shape[1])
    assert stats.kstest(means, "norm").pvalue > FALSE_ALARM


def vector(model):
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()]).numpy()
