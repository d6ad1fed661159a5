"""The clip norm follows a quantile, from released numbers alone, and its cost is in the step."""

from __future__ import annotations

import math

import pytest
import torch
from tests.unit.train.conftest import each_loss
from torch.nn.functional import cross_entropy

from tightrope.audit.training_attack import GradientCanaries
from tightrope.errors import InvalidInput
from tightrope.train import (
    AdaptiveClip,
    DiscreteGaussianNoise,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    noisy_adam,
)


class Spied(GaussianNoise):
    """Writes down what noise is added to, and how much."""

    def add_(self, sums, sensitivity):
        self.seen = [total.clone() for total in sums], sensitivity
        super().add_(sums, sensitivity)


def test_the_norm_comes_to_the_quantile(make_run, take, data):
    for quantile in (0.3, 0.8):
        run = make_run(
            clip=AdaptiveClip(50.0, quantile=quantile, rate=0.5), noise=GaussianNoise(1e-3),
            sampler=PoissonSampler(1.0), expected_batch_size=60, micro_batch=17,
            rule=lambda p: torch.optim.SGD(p, lr=0.01),
        )  # fmt: skip
        take(run, 60)
        norms = []
        for a, b in zip(*data, strict=True):
            loss = cross_entropy(run.model(a[None]), b[None])
            each = torch.autograd.grad(loss, run.model.parameters())
            norms.append(float(sum(g.square().sum() for g in each).sqrt()))
        within = sum(norm <= run.clip.clip_norm for norm in norms) / len(norms)
        assert abs(within - quantile) < 0.06


@pytest.mark.parametrize("norm", [1e-3, 0.5, 1e3])
def test_gradient_and_count_of_one_example_stay_within_the_sensitivity(make_run, take, data, norm):
    """Whatever the example: alone in its batch, the released vector has norm S at most."""
    for share in (0.01, 0.5):
        clip, noise = AdaptiveClip(norm, share=share), Spied(1.0)
        sensitivity = norm / math.sqrt(1 - share)
        assert clip.sensitivity == pytest.approx(sensitivity)
        one = tuple(part[1:2] for part in data)
        run = make_run(
            records=one, sampler=PoissonSampler(1.0), clip=clip, noise=noise, expected_batch_size=1
        )
        take(run, 1)
        sums, charged = noise.seen
        length = math.sqrt(sum(float(s.double().square().sum()) for s in sums))
        assert length <= sensitivity * (1 + 1e-6) and charged >= sensitivity
        assert abs(float(sums[-1])) == pytest.approx(sensitivity * math.sqrt(share))
        gradient = math.sqrt(sum(float(s.double().square().sum()) for s in sums[:-1]))
        assert gradient <= norm


def test_the_account_is_that_of_a_fixed_norm(make_run, take):
    fixed, adaptive = make_run(clip=FlatClip(1.0)), make_run(clip=AdaptiveClip(1.0))
    for run in (fixed, adaptive):
        take(run, 5)
    assert fixed.process == adaptive.process
    assert adaptive.certificate(1e-3)["run"]["clip"] == repr(AdaptiveClip(1.0))


def test_what_needs_one_norm_is_refused(make_run, make_model, data):
    run = make_run(clip=AdaptiveClip(1.0))
    with pytest.raises(InvalidInput, match="Audit the same run"):
        GradientCanaries(run, 8)
    with pytest.raises(InvalidInput, match="strict"):
        make_run(clip=AdaptiveClip(), noise=DiscreteGaussianNoise(1.0), arithmetic="strict")
    with pytest.raises(InvalidInput, match="one variance"):
        noisy_adam(
            make_model(), data, each_loss, learning_rate=1.0, noise=GaussianNoise(1.0),
            correct_noise_bias=True, sampler=PoissonSampler(0.1), clip=AdaptiveClip(),
            expected_batch_size=6, steps=3,
        )  # fmt: skip
    for wrong in ({"quantile": 0}, {"rate": 2.0}, {"share": 1.0}, {"clip_norm": 0.0}):
        with pytest.raises(InvalidInput, match="must"):
            AdaptiveClip(**wrong)
