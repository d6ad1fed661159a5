"""Statistics of the batch before the first trainable layer: no gradient shows them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import ModelNotPrivate
from tightrope.train import (
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateOptimizer,
    noisy_sgd,
)


def made(model):
    return noisy_sgd(
        model,
        learning_rate=0.5,
        sampler=PoissonSampler(0.3),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=18,
    )


class Standardised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer((x - x.mean(0)) / (1 + x.square().mean(0)))


def test_a_model_that_standardises_its_batch_is_refused_in_a_plain_loop(data, train):
    run = made(Standardised())
    before = run.model.layer.weight.detach().clone()
    with pytest.raises(ModelNotPrivate, match="mixes examples"):
        train(run, data, steps=2)
    assert run.ledger.released == 0 and torch.equal(before, run.model.layer.weight)


class Writing(nn.Module):
    """Shifts what it is given in place, and may standardise it then."""

    def __init__(self, mixes):
        super().__init__()
        self.inner, self.mixes = Standardised(), mixes

    def forward(self, x):
        x = x.sub_(1.0).div_(2.0)
        return self.inner(x) if self.mixes else self.inner.layer(x)


def test_a_model_that_writes_to_its_batch_hides_nothing_and_is_given_it_once(data):
    """Once it was asked, the batch would be another one, and the model taken for restless."""
    run = made(Writing(mixes=True))
    with pytest.raises(ModelNotPrivate, match="mixes examples"):
        for x, _ in run.batches(data, steps=1):
            run.model(x)
    run = made(Writing(mixes=False))
    for x, y in run.batches(data, steps=1):
        right = (x - 1.0) / 2.0
        run.step(cross_entropy(run.model(x), y, reduction="none"))
        assert torch.equal(x, right)


def test_a_run_around_any_optimizer_is_watched(data, train):
    model = Standardised()
    run = PrivateOptimizer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        sampler=PoissonSampler(0.3),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=18,
    )
    with pytest.raises(ModelNotPrivate, match="mixes examples"):
        train(run, data, steps=2)


def test_a_frozen_batch_norm_stays_frozen_whatever_the_mode(data, train):
    norm = nn.BatchNorm1d(5).requires_grad_(False).eval()
    run = made(nn.Sequential(norm, nn.Linear(5, 2)))
    run.model.train()  # wakes the norm up; training must not see that
    train(run, data, steps=3)
    assert not norm.training and torch.equal(norm.running_mean, torch.zeros(5))
    run.close()
    run.model.train()
    run.model(data[0])
    assert norm.training and not torch.equal(norm.running_mean, torch.zeros(5))


class Chancy(nn.Module):
    """Dropout, and draws of Python, NumPy and of a generator of its own."""

    def __init__(self, own):
        super().__init__()
        self.layer, self.dropout = nn.Linear(5, 2), nn.Dropout(0.5)
        self.own = torch.Generator().manual_seed(0) if own else None

    def forward(self, x):
        x = self.dropout(x) * (1 + random.random()) + np.random.rand()  # noqa: NPY002
        return self.layer(x + torch.rand(len(x), 1, generator=self.own))


@pytest.mark.parametrize("own", [False, True])
def test_randomness_is_not_taken_for_mixing_and_is_left_as_it_was(data, own):
    def seeded():
        random.seed(2)
        np.random.seed(2)  # noqa: NPY002
        torch.manual_seed(2)

    run, plain = made(Chancy(own)), Chancy(own)
    for x, y in run.batches(data, steps=1):
        seeded()
        plain(x)
        expected = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
        seeded()
        losses = cross_entropy(run.model(x), y, reduction="none")
        found = random.random(), np.random.rand(), float(torch.rand(()))  # noqa: NPY002
        assert found == expected
        run.step(losses)
    assert run.steps == 1


def test_no_seed_waits_for_an_accelerator_that_is_used_later(data, train):
    """torch.manual_seed queued one for each look, whose draws would then have been known."""
    before = len(torch.cuda._queued_calls)
    train(made(Chancy(False)), data, steps=1)
    assert len(torch.cuda._queued_calls) == before


class Odd(nn.Module):
    """Answers in a dictionary, takes keywords, and a mask without examples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, *, inputs, mask, scale):
        return {"logits": self.layer(inputs * mask) * scale, "count": torch.tensor(3)}


def test_keywords_dictionaries_and_single_examples_pass(data):
    run = made(Odd())
    for micro_batch in (1, None):
        for x, y in run.batches(data, steps=1, micro_batch=micro_batch):
            out = run.model(inputs=x, mask=torch.ones(5), scale=2.0)
            run.step(cross_entropy(out["logits"], y, reduction="none"))
    assert run.steps == 2


class Statistics(nn.Module):
    """A mean of all data, in a tensor, an array or a number."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(5, 2), kind
        self.mean = kind(torch.zeros(()))

    def forward(self, x):
        self.mean = self.kind(x.detach().mean())
        return self.layer(x)


@pytest.mark.parametrize("kind", [torch.clone, torch.Tensor.numpy, float])
def test_a_record_without_a_number_does_not_hide_what_is_written(make_run, kind):
    """All that is written is then no number, on these and on other data."""
    run = make_run(Statistics(kind), sampler=PoissonSampler(1.0))
    x = torch.randn(8, 5)
    x[3] = torch.nan
    with pytest.raises(ModelNotPrivate, match="mean"):
        for batch in run.batches(x, steps=2):
            run.step(run.model(batch).square().sum(1))
