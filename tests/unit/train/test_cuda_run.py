"""The same parts on a GPU; skipped where there is none. False-alarm rate 1e-6 each."""

from __future__ import annotations

import json

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import (
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    check_run,
    noisy_sgd,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


def make_cuda_run(seed=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 2)).cuda()
    return noisy_sgd(
        model,
        learning_rate=0.5,
        sampler=PoissonSampler(0.2, seed=seed),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0, seed=seed),
        expected_batch_size=12,
    )


def test_noise_on_the_gpu_is_gaussian_and_continues_from_its_state():
    noise = GaussianNoise(1.5)
    draws = torch.zeros(200_000, device="cuda")
    noise.add_([draws], 2.0)
    values = (draws / 3.0).double().cpu().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-6
    again = GaussianNoise(1.5)
    again.restore(json.loads(json.dumps(noise.state())))
    first, second = (torch.zeros(1000, device="cuda") for _ in range(2))
    noise.add_([first], 2.0)
    again.add_([second], 2.0)
    assert torch.equal(first, second)


def test_a_run_on_the_gpu_is_healthy(data):
    diagnosis = check_run(make_cuda_run(), losses, data)
    assert diagnosis.healthy, str(diagnosis)


def test_a_run_on_the_gpu_is_stored_and_resumed(data, tmp_path):
    run, folder = make_cuda_run(), RunFolder(tmp_path)
    folder.attach(run, data)
    for x, y in run.batches(data, steps=3):
        assert x.is_cuda
        run.step(losses(run.model(x), y))
    folder.save()
    folder.close()
    again = make_cuda_run()
    RunFolder(tmp_path).attach(again, data)
    assert again.steps == again.ledger.released == 3
    for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
