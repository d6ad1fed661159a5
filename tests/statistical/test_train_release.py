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
    DiscreteGaussianNoise,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    noisy_sgd,
)

FALSE_ALARM = 1e-6
RATE, SIGMA, CONSTANT, STEPS = 0.3, 0.4, 7.0, 1500


def releases(noise, examples, micro_batch=None):
    torch.set_num_threads(1)
    model = nn.Linear(1, 1, bias=False)
    run = noisy_sgd(
        model,
        learning_rate=1.0,
        sampler=PoissonSampler(RATE),
        clip=FlatClip(1.0),
        noise=noise,
        expected_batch_size=CONSTANT,
    )
    data, drawn = torch.full((examples, 1), -5.0), []
    for x in run.batches(data, steps=STEPS, micro_batch=micro_batch):
        with torch.no_grad():
            before = model.weight.clone()
        if run.step(model(x)[:, 0]).released:
            drawn.append(float((before - model.weight.detach()) * CONSTANT))
    return np.array(drawn)


def mixture(examples):
    counts = np.arange(examples + 1)
    chances = stats.binom.pmf(counts, examples, RATE)
    return lambda x: (chances * stats.norm.cdf(np.asarray(x)[:, None], -counts, SIGMA)).sum(axis=1)


@pytest.mark.parametrize("noise", [GaussianNoise, DiscreteGaussianNoise])
@pytest.mark.parametrize(("examples", "micro_batch"), [(1, None), (3, None), (3, 1)])
def test_each_step_releases_the_accounted_mixture(noise, examples, micro_batch):
    drawn = releases(noise(SIGMA), examples, micro_batch)
    assert drawn.size == STEPS
    assert stats.kstest(drawn, mixture(examples)).pvalue > FALSE_ALARM
    lag = np.corrcoef(drawn[:-1], drawn[1:])[0, 1] * np.sqrt(STEPS)
    assert 2 * stats.norm.sf(abs(lag)) > FALSE_ALARM


def test_the_test_would_notice_another_divisor_or_a_little_less_noise():
    drawn = releases(GaussianNoise(SIGMA), 3)
    assert stats.kstest(drawn * 0.8, mixture(3)).pvalue < FALSE_ALARM
    assert stats.kstest(releases(GaussianNoise(SIGMA / 2), 1), mixture(1)).pvalue < FALSE_ALARM
