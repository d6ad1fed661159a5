"""Hole D2: what a training forward pass writes into the model from the data."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import ModelNotPrivate
from tightrope.train import (
    FlatClip,
    GaussianNoise,
    OneByOne,
    PoissonSampler,
    noisy_sgd,
)


def made(model, **parts):
    return noisy_sgd(
        model,
        learning_rate=0.1,
        sampler=PoissonSampler(0.3),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=18,
        **parts,
    )


def data(n=60):
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def train(run, steps, **how):
    for x, y in run.batches(data(), steps=steps, **how):
        run.step(cross_entropy(run.model(x), y, reduction="none"))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.calls = 0
        self.keep()

    def keep(self):
        pass

    def write(self, x):
        raise NotImplementedError

    def forward(self, x):
        self.calls += 1
        if self.training and len(x):
            with torch.no_grad():
                self.write(x)
        return self.layer(x)


class RunningMean(Base):
    def keep(self):
        self.register_buffer("mean", torch.zeros(5))

    def write(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))


class ReplacedBuffer(RunningMean):
    def write(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)


class Codebook(Base):
    def keep(self):
        self.codes = nn.Parameter(torch.randn(3, 5), requires_grad=False)

    def write(self, x):
        nearest = torch.cdist(x, self.codes).argmin(1)
        for k in range(3):
            if (nearest == k).any():
                self.codes[k] = 0.9 * self.codes[k] + 0.1 * x[nearest == k].mean(0)


class OneRow(RunningMean):
    """Of one example only, the last."""

    def write(self, x):
        self.mean.copy_(x[-1])


class Attribute(Base):
    def keep(self):
        self.mean = torch.zeros(5)

    def write(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)


class ListOfTensors(Base):
    def keep(self):
        self.seen = [torch.zeros(5)]

    def write(self, x):
        self.seen[0] = x.sum(0)


class GrowingQueue(Base):
    def keep(self):
        self.seen = deque(maxlen=5)

    def write(self, x):
        self.seen.append(x[0].clone())


class Dictionary(Base):
    def keep(self):
        self.seen = {"stats": {"mean": torch.zeros(5)}}

    def write(self, x):
        self.seen["stats"]["mean"].add_(x.mean(0))


class Number(Base):
    def keep(self):
        self.largest = 0.0

    def write(self, x):
        self.largest = max(self.largest, float(x.max()))


class Array(Base):
    def keep(self):
        self.mean = np.zeros(5, dtype=np.float32)

    def write(self, x):
        self.mean += x.mean(0).numpy()


class Helper(Base):
    class Statistics:
        def __init__(self):
            self.mean = torch.zeros(5)

    def keep(self):
        self.statistics = self.Statistics()

    def write(self, x):
        self.statistics.mean = x.mean(0)


class OnlyOnce(RunningMean):
    """As layers do that start from the first batch."""

    def write(self, x):
        if not self.mean.any():
            self.mean.copy_(x.mean(0))


LEAKS = [RunningMean, ReplacedBuffer, Codebook, OneRow, Attribute, ListOfTensors, GrowingQueue,
         Dictionary, Number, Array, Helper, OnlyOnce]  # fmt: skip


@pytest.mark.parametrize("model", LEAKS)
def test_statistics_kept_in_the_model_are_refused_before_the_first_release(model):
    run = made(model())
    with pytest.raises(ModelNotPrivate, match="writes to"):
        train(run, 2)
    assert run.ledger.released == 0 and run.record().private


@pytest.mark.parametrize("model", [RunningMean, Codebook, Attribute, OnlyOnce])
def test_one_by_one_is_watched_too(model):
    model = model()
    run = made(model, gradients=OneByOne(model))
    with pytest.raises(ModelNotPrivate, match="writes to"):
        train(run, 1, micro_batch=1)


class Late(RunningMean):
    def write(self, x):
        if self.calls > 40:
            super().write(x)


def test_a_buffer_that_is_written_to_later_ends_the_run_and_its_promise():
    run = made(Late())
    with pytest.raises(ModelNotPrivate, match="mean"):
        train(run, 200)
    record = run.record()
    assert run.ledger.released > 0 and not record.private
    assert any("writes to mean" in why for why in record.not_private_because)


class Counters(Base):
    """Whatever the data, the same: a counter, a schedule, a constant cache, a power iteration."""

    def keep(self):
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("rate", torch.ones(()))
        self.register_buffer("direction", torch.randn(2))
        self.cache, self.names = {}, []

    def write(self, x):
        self.steps += 1
        self.rate.mul_(0.99)
        u = self.layer.weight @ (self.layer.weight.t() @ self.direction)
        self.direction.copy_(u / u.norm())
        self.cache[x.shape[1]] = torch.arange(x.shape[1])


class KeepsActivations(Base):
    """What belongs to the pass itself, with its graph."""

    def forward(self, x):
        self.hidden = self.layer(x)
        return self.hidden


@pytest.mark.parametrize("model", [Counters, KeepsActivations])
@pytest.mark.parametrize("method", ["rules", "one by one"])
def test_what_changes_in_the_same_way_on_other_data_may_stay(model, method):
    torch.manual_seed(0)
    model = model()
    engine = {"gradients": OneByOne(model)} if method == "one by one" else {}
    run = made(model, **engine)
    train(run, 3, micro_batch=1 if engine else None)
    assert run.steps == 3 and run.record().private


def test_looking_leaves_the_model_as_it_was():
    """Two equal models, one of them looked at: the same state afterwards."""
    torch.manual_seed(0)
    watched, plain = Counters(), Counters()
    plain.load_state_dict(watched.state_dict())
    run = made(watched)
    for x, _ in run.batches(data(), steps=1):
        watched(x)
        plain(x)
        break
    assert watched.calls == plain.calls == 1
    for a, b in zip(watched.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)
