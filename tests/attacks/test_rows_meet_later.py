"""A module of one's own that takes rows apart at first, and lets those of one example meet later.

Run again for each row, it then gives another gradient than the one it had: it must be noticed.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightrope.errors import ModelNotPrivate
from tightrope.train import FlatClip, Gradients
from tightrope.train.gradients.custom_call import Call
from tightrope.train.gradients.reference import loop_clipped_sum

CLIP, FRAMES = FlatClip(0.1), 4


class Inside(nn.Module):
    """Also runs on one row alone, so that nothing fails when it does."""

    def __init__(self):
        super().__init__()
        self.weight, self.mean = nn.Parameter(torch.randn(3, 3)), 0.0

    def forward(self, x, meet=False):
        h = torch.matmul(x.sin(), self.weight.cos())
        frames = h.unflatten(0, (-1, min(FRAMES, len(h))))
        frames = frames + self.mean * frames.mean(1, keepdim=True)
        if meet:
            frames = frames.sin() + frames.sin().mean(1, keepdim=True)
        return frames.flatten(0, 1)


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inside, self.meets = nn.Linear(2, 3), Inside(), (False,)

    def forward(self, x):
        h = self.first(x.flatten(0, 1))
        for meet in self.meets:
            h = self.inside(h, meet=meet)
        return h.unflatten(0, (len(x), -1))


def losses_of(model, x):
    return model(x).square().flatten(1).mean(1)


def made(meets=(False,)):
    """A model and its engine, which never looks by chance."""
    torch.manual_seed(0)
    model = Film()
    model.meets = meets
    engine = Gradients(model)
    engine._probes.due = lambda conclusive: False
    return model, engine


def step(model, engine):
    """Right, or refused; the clipped sum is held against the slow loop."""
    x = torch.randn(5, FRAMES, 2)
    found = engine.clipped_sum(losses_of(model, x), CLIP).sums
    truth = loop_clipped_sum(model, losses_of, CLIP, x)
    engine.forget()
    for ours, right in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-6)


def test_rows_that_begin_to_meet_are_refused_and_stay_so():
    """A right batch in between does not make the wrong kind of call a known one."""
    model, engine = made()
    for meet in (False, True, True, False, True):
        model.meets = (meet,)
        if not meet:
            step(model, engine)
            continue
        with pytest.raises(ModelNotPrivate, match="one of an example's rows"):
            step(model, engine)
        engine.forget()


@pytest.mark.parametrize("meets", [(False, True), (True, False)])
def test_every_call_of_a_module_in_one_pass_is_looked_at(meets):
    model, engine = made(meets)
    with pytest.raises(ModelNotPrivate, match="one of an example's rows"):
        step(model, engine)


def test_the_same_operations_on_other_numbers_are_noticed_at_the_next_look():
    model, engine = made()
    step(model, engine)
    model.inside.mean = 0.5
    engine._probes.due = lambda conclusive: True
    for _ in range(2):  # and then at every batch
        with pytest.raises(ModelNotPrivate, match="one of an example's rows"):
            step(model, engine)
        engine._probes.due = lambda conclusive: False
        engine.forget()


def test_usual_steps_run_the_module_for_its_rows_and_nothing_else(monkeypatch):
    model, engine = made((False, False))
    compared, own = [], Call.of_all
    monkeypatch.setattr(Call, "of_all", lambda *args: compared.append(1) or own(*args))
    for _ in range(5):
        step(model, engine)
    assert len(compared) == 2  # once for each call
