"""Copies of a model in private training are ordinary models with weights of their own."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.cell = nn.LSTM(3, 4, batch_first=True), nn.GRUCell(4, 4)
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)

    def forward(self, x):
        z = self.memory(x)[0]
        z = self.mix(z, z, z, need_weights=False)[0][:, -1]
        return self.head(self.cell(z) * self.scale)


def test_a_copy_runs_on_its_own_weights_and_trains_in_the_open():
    torch.manual_seed(0)
    model, x, y = Network(), torch.randn(20, 5, 3), torch.randint(0, 2, (20,))
    run = noisy_sgd(
        model,
        learning_rate=1.0,
        sampler=PoissonSampler(0.5),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=10,
    )
    average = torch.optim.swa_utils.AveragedModel(model)
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        before = teacher(x)
    for a, b in run.batches((x, y), steps=3):
        target = teacher(a)  # not under no_grad: must not be taken for a use of the model
        losses = cross_entropy(model(a), b, reduction="none")
        run.step(losses + (model(a) - target.detach()).square().sum(1))
        average.update_parameters(model)
    with torch.no_grad():
        assert torch.equal(teacher(x), before)
        assert not torch.equal(average(x), model(x))
    cross_entropy(teacher(x), y).backward()
    assert all(p.grad is not None for p in teacher.parameters())
    assert run.steps == 3
