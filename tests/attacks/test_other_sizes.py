"""Loops of one's own whose losses follow the size of the batch, in whatever way: a rehearsal with
half of the batch shows it before anything is released. Loops that do not are left alone.
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, one_hot

from tightrope import Adjacency
from tightrope.errors import ModelNotPrivate
from tightrope.train import CropAndFlip, FixedSizeSampler, FullBatchSampler, PoissonSampler
from tightrope.train.augment import losses_of_views

sys.path.insert(0, str(Path(__file__).parent))
from small_loops import X, Y, each, made, rehearse_every_batch, train


# ---- losses that follow the size ----------------------------------------------------------------
def by_labels(model, x, y):
    return -(model(x).log_softmax(1) * one_hot(y, 2) / len(x)).sum(1)


def by_gradient(model, x, y):
    out = model(x)
    out.register_hook(lambda g: g / len(g))
    return cross_entropy(out, y, reduction="none")


def by_place(model, x, y):
    return each(model, x, y) * torch.tensor([1.0, -1.0]).repeat(200)[: len(x)]


def in_half(model, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        return each(model, x, y) * len(x) ** -0.5


FOLLOWS = {
    "root": lambda m, x, y: each(m, x, y) * len(x) ** -0.5,
    "one more": lambda m, x, y: each(m, x, y) / (len(x) + 1),
    "logarithm": lambda m, x, y: each(m, x, y) * np.log(len(x)),
    "a part of it": lambda m, x, y: each(m, x, y) * (1 + 1 / len(x)),
    "alpha": lambda m, x, y: torch.add(torch.zeros(len(x)), each(m, x, y), alpha=1 / len(x)),
    "matrix": lambda m, x, y: each(m, x, y)[:, None] @ torch.tensor([1 / len(x)]),
    "data": lambda m, x, y: each(m, x * 40 / len(x), y),
    "labels": by_labels,
    "gradient alone": by_gradient,
    "place in the batch": by_place,  # whoever comes before moves all others
    "bfloat16": in_half,
    "plain": lambda m, x, y: each(m, x, y) / len(x),
}


@pytest.mark.parametrize("name", FOLLOWS)
@pytest.mark.parametrize("how", [{}, {"micro_batch": 16}])
def test_what_follows_the_size_is_refused_before_anything_is_released(name, how):
    run = made()
    with pytest.raises(ModelNotPrivate, match="half as large"):
        train(run, FOLLOWS[name], **how)
    assert run.ledger.released == 0


@pytest.mark.parametrize("rows", [2, 3, 4, 7])
def test_places_are_found_in_small_batches(rows):
    """An example that was first stayed first by chance, and one of eight looks sufficed."""

    def weighed(model, x, y):
        return each(model, x, y) * torch.linspace(1.0, 2.0, len(x))

    run = made()
    with pytest.raises(ModelNotPrivate, match="half as large"):
        train(run, weighed, micro_batch=rows)
    assert run.ledger.released == 0


def test_what_begins_to_follow_the_size_is_found_later():
    run = made()
    rehearse_every_batch(run)

    def loss(model, x, y):
        return each(model, x, y) * (1 if run.steps < 4 else len(x) ** -0.5)

    with pytest.raises(ModelNotPrivate, match="half as large"):
        train(run, loss, steps=9)
    assert run.ledger.released == 4 and not run.record().private


# ---- no false alarms ----------------------------------------------------------------------------
def dropped(model, x, y):
    return each(model, dropout(x, 0.2), y)


def noisy(model, x, y):
    return each(model, x + 0.1 * torch.randn_like(x), y)


def scaled(model, x, y):
    return each(model, x, y) * (0.5 + random.random()) * (0.5 + np.random.random())  # noqa: NPY002


def halves(model, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        return each(model, x, y)


SOUND = {
    "dropout as a layer": each,
    "dropout as a function": dropped,
    "noise": noisy,
    "random numbers": scaled,
    "bfloat16": halves,
    "a constant": lambda m, x, y: each(m, x, y) / 40,
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("how", [{}, {"micro_batch": 3}])
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_other_loops_are_left_alone(name, how, rate):
    half = {"arithmetic": "uncovered"} if name == "bfloat16" else {}
    run = made(sampler=PoissonSampler(rate), expected_batch_size=400 * rate, **half)
    rehearse_every_batch(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(run, SOUND[name], steps=8, **how)
    assert run.steps == 8 and run.record().private


def test_a_loop_may_ask_how_many_examples_come():
    run = made()
    for x, y in run.batches((X, Y), steps=3):
        size = run.next_size
        run.step(each(run.model, x[:size], y[:size]))
    assert run.steps == 3


def test_a_removed_record_changes_the_size_of_a_full_batch():
    run = made(sampler=FullBatchSampler(), expected_batch_size=400)
    with pytest.raises(ModelNotPrivate, match="half as large"):
        train(run, FOLLOWS["plain"])
    assert run.ledger.released == 0


def test_a_replaced_record_does_not():
    sampler = FullBatchSampler(adjacency=Adjacency.REPLACE_ONE)
    with pytest.warns(UserWarning, match="how many examples were drawn"):
        train(made(sampler=sampler, expected_batch_size=400), FOLLOWS["plain"])


def test_batches_of_a_fixed_size_may_be_divided_by_it():
    run = made(sampler=FixedSizeSampler(20, 400), expected_batch_size=20)
    with pytest.warns(UserWarning, match="how many examples were drawn"):
        train(run, FOLLOWS["plain"])
    assert run.record().private


def test_views_are_random_and_no_alarm():
    pictures = torch.rand(60, 1, 8, 8), torch.arange(60) % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    run = made(model, sampler=PoissonSampler(0.2), expected_batch_size=12, views=2)
    rehearse_every_batch(run)

    def losses(outputs, labels):
        return cross_entropy(outputs, labels, reduction="none")

    for batch in run.batches(pictures, steps=4):
        run.step(losses_of_views(model, losses, batch, 2, CropAndFlip(padding=1)))
    assert run.steps == 4 and run.record().private
