"""Hole A1 on a GPU, in strict mode: the same whole numbers in every order."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts

from tightrope.errors import InvalidInput
from tightrope.train import DiscreteGaussianNoise, FlatClip, FullBatchSampler, noisy_sgd

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def settings_put_back():
    yield
    torch.use_deterministic_algorithms(False)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 196, 3)
    )


CASES = {
    "attention": (Tokens, torch.randint(0, 50, (40, 20))),
    "convolution": (convolutional, torch.randn(40, 3, 16, 16)),
}


def loss(model, x, y):
    return cross_entropy(model(x).float(), y, reduction="none")


def loss_in_half(model, x, y):
    with torch.autocast("cuda", torch.bfloat16):
        return loss(model, x, y)


def whole_sums(model, data, loss=loss, steps=1):
    """The whole numbers that noise is added to, of each step."""
    run = noisy_sgd(
        model.cuda(), data, loss, learning_rate=0.1, sampler=FullBatchSampler(),
        clip=FlatClip(0.5), noise=DiscreteGaussianNoise(1.0), expected_batch_size=10,
        arithmetic="strict", steps=steps,
    )  # fmt: skip
    seen, add = [], run.noise.add_whole_

    def spy(sums, bound):
        seen.append(torch.cat([total.reshape(-1).cpu() for total in sums]))
        add(sums, bound)

    run.noise.add_whole_ = spy
    assert len(list(run)) == steps
    run.close()
    assert all(p.isfinite().all() for p in model.parameters())
    return seen


def whole_sum(kind, rows, half=False):
    build, x = CASES[kind]
    torch.manual_seed(0)
    labels = torch.arange(len(x)) % 3
    return whole_sums(build(), (x[rows], labels[rows]), loss_in_half if half else loss)[0]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", CASES)
def test_every_order_gives_the_same_sum(kind, half):
    rows = torch.arange(40)
    whole = whole_sum(kind, rows, half)
    assert whole.any()
    assert torch.equal(whole_sum(kind, rows.flip(0), half), whole)
    alone = whole_sum(kind, rows[:1], half)
    assert torch.equal(whole_sum(kind, rows[1:], half), whole - alone)


def test_random_layers_draw_anew_for_each_example():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 3))
    data = (torch.ones(1, 64), torch.zeros(1, dtype=torch.long))
    masks = [total != 0 for total in whole_sums(model, data, steps=6)]
    assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


def test_cuda_without_a_deterministic_work_space_is_refused(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with pytest.raises(InvalidInput, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        whole_sum("convolution", torch.arange(2))
