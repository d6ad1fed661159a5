"""Frames that the loop lays side by side, and a model in which those of one film meet.

It is refused for mixing rows, and told what it looks like: several rows for each example.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightrope.errors import ModelNotPrivate
from tightrope.train import FlatClip, FullBatchSampler, GaussianNoise, noisy_sgd

FILMS, FRAMES = 6, 3


class Meeting(nn.Module):
    """Every frame looks at the one before it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, rows):
        films = self.first(rows).tanh().unflatten(0, (-1, FRAMES))
        return self.last((films + films.roll(1, 1)).flatten(0, 1))


class Standardised(Meeting):
    """Statistics of all rows: other examples have a part in them."""

    def forward(self, rows):
        return super().forward(rows - rows.mean(0))


class Whole(Meeting):
    """Takes films, as the message says."""

    def forward(self, films):
        return super().forward(films.flatten(0, 1))


def in_films(model, x):
    return model(x.flatten(0, 1)).square().mean(1).view(len(x), -1).mean(1)


def in_frames(model, x):
    return model(x.flatten(0, 1)).square().mean(1)


def in_turns(model, x):
    return model(x.transpose(0, 1).flatten(0, 1)).square().mean(1).view(-1, len(x)).mean(0)


def in_whole(model, x):
    return model(x).square().mean(1).view(len(x), -1).mean(1)


def train(model, losses, **more):
    """How many steps were released, and what was told where it was refused."""
    run = noisy_sgd(
        model, learning_rate=0.1, sampler=FullBatchSampler(), clip=FlatClip(0.5),
        noise=GaussianNoise(1.0), expected_batch_size=FILMS, **more,
    )  # fmt: skip
    try:
        for x in run.batches(torch.randn(FILMS, FRAMES, 5), steps=2):
            run.step(losses(model, x))
    except ModelNotPrivate as refusal:
        return run.ledger.released, str(refusal)
    return run.ledger.released, ""


@pytest.mark.parametrize("views", [1, FRAMES])
@pytest.mark.parametrize("losses", [in_films, in_frames])
def test_frames_that_meet_are_told_to_be_several_rows_of_each_example(losses, views):
    released, told = train(Meeting(), losses, views=views)
    assert released == 0 and "If not, the model mixes examples" in told
    assert "18 rows for 6 examples" in told and "look like 3 rows for each example" in told
    assert "shape (6, 3, ...)" in told and "views=3" in told


def test_what_is_told_can_be_done():
    assert train(Whole(), in_whole) == (2, "")


@pytest.mark.parametrize("losses", [in_films, in_frames])
def test_statistics_of_all_rows_stay_mixing(losses):
    released, told = train(Standardised(), losses)
    assert released == 0 and "it mixes examples" in told and "views" not in told


def test_frames_in_turns_are_refused_too():
    """Groups side by side are of different films, which nobody can see in the model's rows."""
    released, told = train(Meeting(), in_turns)
    assert released == 0 and "If not, the model mixes examples" in told


def test_rows_that_are_no_multiple_of_the_batch_are_not_spoken_of():
    def with_more(model, x):
        rows = x.flatten(0, 1)
        return model(torch.cat([rows, rows[:FRAMES]])).square().mean(1)[:FILMS]

    released, told = train(Meeting(), with_more)
    assert released == 0 and "it mixes examples" in told and "views" not in told
