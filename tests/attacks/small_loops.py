"""A small network, a run of it, and a loop of one's own: what tests of rehearsals begin with."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd

X = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def network(*, dropout=True):
    torch.manual_seed(0)
    between = [nn.Dropout(0.3)] if dropout else []
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *between, nn.Linear(8, 2))


def made(model=None, **parts):
    """A run; every part of it can be replaced by keyword."""
    settings = {
        "learning_rate": 0.1,
        "sampler": PoissonSampler(0.1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 40,
    }
    return noisy_sgd(network() if model is None else model, **(settings | parts))


def rehearse_every_batch(run):
    run.company._steps.random = lambda: 0.0


def each(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def train(run, loss, steps=3, data=(X, Y), **how):
    """Reports of all steps, those of rehearsals too."""
    reports = []
    for x, y in run.batches(data, steps=steps, **how):
        reports.append(run.step(loss(run.model, x, y)))
    return reports
