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
    check_run,
    noisy_sgd,
)
from tightrope.train.gradients.batch import combine
from tightrope.train.gradients.forms import TableRows
from tightrope.train.gradients.outer import Outer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def make_cuda_run(data, seed=None, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 2)).cuda()
    return noisy_sgd(
        model,
        data,
        losses,
        learning_rate=0.5,
        sampler=PoissonSampler(0.2, seed=seed),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0, seed=seed),
        expected_batch_size=12,
        **({"steps": 1_000} | more),
    )


def test_noise_on_the_gpu_is_gaussian_and_continues_from_its_state():
    draws = torch.zeros(200_000, device="cuda")
    GaussianNoise(1.5).add_([draws], 2.0)
    values = (draws / 3.0).double().cpu().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-6
    noise, again = GaussianNoise(1.5, seed=1), GaussianNoise(1.5)
    noise.add_([draws], 2.0)
    again.restore(json.loads(json.dumps(noise.state())))
    first, second = (torch.zeros(1000, device="cuda") for _ in range(2))
    noise.add_([first], 2.0)
    again.add_([second], 2.0)
    assert torch.equal(first, second)


@pytest.mark.parametrize("executor", ["plain", "compiled", "cuda graph"])
def test_a_run_on_the_gpu_is_healthy(data, executor):
    diagnosis = check_run(make_cuda_run(data, executor=executor))
    assert diagnosis.healthy, str(diagnosis)


@pytest.mark.parametrize("executor", ["compiled", "cuda graph"])
def test_executors_give_the_same_weights_on_the_gpu(data, take, executor):
    plain, other = make_cuda_run(data, 3), make_cuda_run(data, 3, executor=executor)
    take(plain, 5)
    take(other, 5)
    for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_run_on_the_gpu_is_stored_and_resumed(data, take, tmp_path):
    run = make_cuda_run(data, folder=tmp_path)
    take(run, 3)
    run.folder.save()
    run.close()
    again = make_cuda_run(data, folder=tmp_path)
    assert again.steps == again.ledger.released == 3
    for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_bfloat16_products_formed_twice_are_the_same_numbers():
    torch.manual_seed(0)
    for positions, d, p in ((128, 768, 768), (197, 320, 100), (70, 3072, 24)):
        a = torch.randn(24, positions, d, device="cuda", dtype=torch.bfloat16)
        form = Outer(a, torch.randn(24, positions, p, device="cuda", dtype=torch.bfloat16))
        first, again = ([part.clone() for _, part in form.parts()] for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("kind", ["float32", "tf32", "bfloat16"])
def test_a_tied_table_releases_at_most_the_clip_norm(kind, monkeypatch):
    """Reads and products that nearly cancel; the norm must be that of what is added."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", kind == "tf32")
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    torch.manual_seed(0)
    for positions, width, rows in ((20, 64, 3000), (160, 40, 500), (300, 256, 4000)):
        a = torch.randn(3, positions, width, device="cuda").to(dtype)
        g = torch.randn(3, positions, rows, device="cuda").to(dtype)
        ids = torch.randint(0, rows, (3, positions), device="cuda")
        products = torch.bmm(g.float().transpose(1, 2), a.float())
        reads = -products.gather(1, ids[..., None].expand(-1, -1, width)).to(dtype)
        form = combine([TableRows(ids, reads, rows), Outer(a, g)])
        norms = form.squared_norms().double().sqrt()
        for example in range(3):
            one = torch.zeros(3, device="cuda")
            one[example] = 1
            released = form.weighted_sum(one, 100).double().norm()
            assert 0.98 * norms[example] <= released <= norms[example] * (1 + 2**-11)
