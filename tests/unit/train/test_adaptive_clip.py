"""The clip norm follows a quantile, from released numbers alone, and its cost is in the step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.audit.gradient_attack import GradientCanaries
from tightrope.errors import InvalidInput
from tightrope.train import (
    AdaptiveClip,
    DiscreteGaussianNoise,
    FlatClip,
    GaussianNoise,
    OneByOne,
    PoissonSampler,
    RunFolder,
    check_run,
    noisy_adam,
    noisy_sgd,
)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def made(clip, model=None, rate=1.0, noise=1.0, **parts):
    return noisy_sgd(
        network() if model is None else model, learning_rate=0.01, sampler=PoissonSampler(rate),
        clip=clip, noise=GaussianNoise(noise), expected_batch_size=60 * rate, **parts,
    )  # fmt: skip


def trained(run, data, steps, **how):
    for x, y in run.batches(data, steps=steps, **how):
        run.step(cross_entropy(run.model(x), y, reduction="none"))


class Spied(GaussianNoise):
    """Writes down what noise is added to, and how much."""

    def add_(self, sums, sensitivity):
        self.seen = [total.clone() for total in sums], sensitivity
        super().add_(sums, sensitivity)


def test_the_norm_comes_to_the_quantile(data):
    for quantile in (0.3, 0.8):
        clip = AdaptiveClip(50.0, quantile=quantile, rate=0.5)
        run = made(clip, noise=1e-3)
        trained(run, data, 60, micro_batch=17)
        x, y = data
        norms = []
        for a, b in zip(x, y, strict=True):
            loss = cross_entropy(run.model(a[None]), b[None])
            each = torch.autograd.grad(loss, run.model.parameters())
            norms.append(float(sum(g.square().sum() for g in each).sqrt()))
        within = sum(norm <= clip.clip_norm for norm in norms) / len(norms)
        assert abs(within - quantile) < 0.06


@pytest.mark.parametrize("norm", [1e-3, 0.5, 1e3])
def test_gradient_and_count_of_one_example_together_stay_within_the_sensitivity(data, norm):
    """Whatever the example: alone in its batch, the released vector has norm S at most."""
    for share in (0.01, 0.5):
        for one in range(3):
            clip = AdaptiveClip(norm, share=share)
            sensitivity = norm / math.sqrt(1 - share)
            assert clip.sensitivity == pytest.approx(sensitivity)
            run = noisy_sgd(
                network(), learning_rate=0.1, sampler=PoissonSampler(1.0), clip=clip,
                noise=(noise := Spied(1.0)), expected_batch_size=1,
            )  # fmt: skip
            trained(run, tuple(part[one : one + 1] for part in data), 1)
            sums, charged = noise.seen
            length = math.sqrt(sum(float(s.double().square().sum()) for s in sums))
            assert length <= sensitivity * (1 + 1e-6) and charged >= sensitivity
            assert abs(float(sums[-1])) == pytest.approx(sensitivity * math.sqrt(share))
            gradient = math.sqrt(sum(float(s.double().square().sum()) for s in sums[:-1]))
            assert gradient <= norm


def test_the_account_is_that_of_a_fixed_norm(data):
    fixed, adaptive = made(FlatClip(1.0), rate=0.2), made(AdaptiveClip(1.0), rate=0.2)
    for run in (fixed, adaptive):
        trained(run, data, 5)
    assert fixed.process == adaptive.process
    assert adaptive.certificate(1e-3)["run"]["clip"] == repr(AdaptiveClip(1.0))


def test_the_norm_is_stored_and_resumed(data, tmp_path):
    run = made(AdaptiveClip(1.0), rate=0.2)
    folder = RunFolder(tmp_path / "run")
    folder.attach(run, data)
    trained(run, data, 5)
    folder.save()
    folder.close()
    again = made(AdaptiveClip(1.0), rate=0.2)
    RunFolder(tmp_path / "run").attach(again, data)
    assert again.clip.clip_norm == run.clip.clip_norm != 1.0


def test_one_by_one_counts_too(data):
    model = network()
    clip = AdaptiveClip(1e6, rate=0.9)
    trained(made(clip, model, noise=1e-6, gradients=OneByOne(model)), data, 1, micro_batch=1)
    assert clip.clip_norm == pytest.approx(1e6 * math.exp(-0.45), rel=1e-3)


def test_what_needs_one_norm_is_refused(data):
    run = made(AdaptiveClip(1.0))
    with pytest.raises(InvalidInput, match="capture"):
        run.capture(lambda x, y: run.model(x).sum(1))
    with pytest.raises(InvalidInput, match=r"clip=FlatClip\(1\)"):
        check_run(run, lambda out, y: cross_entropy(out, y, reduction="none"), data)
    with pytest.raises(InvalidInput, match="Audit the same run"):
        GradientCanaries(run, 8)
    parts = {"sampler": PoissonSampler(0.1), "clip": AdaptiveClip(), "expected_batch_size": 6}
    with pytest.raises(InvalidInput, match="strict"):
        noise = DiscreteGaussianNoise(1.0)
        noisy_sgd(network(), learning_rate=1.0, noise=noise, arithmetic="strict", **parts)
    with pytest.raises(InvalidInput, match="one variance"):
        noise = GaussianNoise(1.0)
        noisy_adam(network(), learning_rate=1.0, noise=noise, correct_noise_bias=True, **parts)
    for wrong in ({"quantile": 0}, {"rate": 2.0}, {"share": 1.0}, {"clip_norm": 0.0}):
        with pytest.raises(InvalidInput, match="must"):
            AdaptiveClip(**wrong)
