"""Gradients that are handed over during the backward pass: right or refused, never lost.

Random small graphs of norm layers, broadcast parameters and tables of positions against the slow
loop, with layers used twice, tied or frozen, branches cut off, in-place operations, checkpoints and
hooks of the user's own.
"""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import FlatClip, PerLayerClip
from tightrope.train.gradients import Gradients, passes
from tightrope.train.gradients.reference import loop_clipped_sum
from tightrope.train.standard_convolution import standardised, taken_back

T, D = 3, 4
METHODS = ("auto", "two-pass")


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.again = nn.Linear(D, D), nn.Linear(D, D, bias=False)
        self.norm, self.root, self.group = nn.LayerNorm(D), nn.RMSNorm(D), nn.GroupNorm(2, D)
        self.conv, self.table = nn.Conv1d(D, D, 3, padding=1), nn.Embedding(5, D, padding_idx=2)
        self.g, self.h = nn.Parameter(torch.randn(D)), nn.Parameter(torch.randn(1, T, D))
        self.s = nn.Parameter(torch.randn(()))


def across(layer, x):
    return layer(x.transpose(1, 2)).transpose(1, 2)


def unread(m, x):
    m.norm(x), across(m.group, x)
    return x


def with_hook(out):
    if out.requires_grad:
        out.register_hook(lambda g: 1.5 * g)
    return out


# Each makes a value from the one before and from one further back.
STEPS = {
    "linear": lambda m, x, y: m.linear(x),
    "again": lambda m, x, y: m.again(y),
    "norm": lambda m, x, y: m.norm(x),
    "root": lambda m, x, y: m.root(y),
    "group": lambda m, x, y: across(m.group, x),
    "conv": lambda m, x, y: across(m.conv, x),
    "norm of first": lambda m, x, y: x + m.norm(y.detach()),
    "cut off": lambda m, x, y: y + across(m.group, x).detach(),
    "unread": lambda m, x, y: unread(m, x),
    "rest": lambda m, x, y: x + y,
    "gate": lambda m, x, y: x * y.tanh(),
    "scale and shift": lambda m, x, y: x * m.g + m.g,
    "square": lambda m, x, y: m.g * m.g * x,
    "twice": lambda m, x, y: (x * m.h) * m.h,
    "quotient": lambda m, x, y: (m.h - x) / (2 + m.g.square()),
    "both": lambda m, x, y: torch.where(x > 0, m.g, m.g),
    "in place": lambda m, x, y: m.norm(x).mul(1.0).mul_(m.g).add_(m.h),
    "over the norm": lambda m, x, y: torch.relu_(m.root(x)),
    "places": lambda m, x, y: x + m.table(torch.tensor([1, 4, 1])),
    "places in a row": lambda m, x, y: y * m.table(torch.tensor([[0, 2, 3]])),
    "one place": lambda m, x, y: x + m.table(torch.tensor(3)),
    "hook": lambda m, x, y: with_hook(m.norm(x)),
    "hook on a meeting": lambda m, x, y: with_hook(x * m.g),
    "hook on a layer": lambda m, x, y: with_hook(m.linear(x)),
    "checkpoint": lambda m, x, y: checkpoint(
        lambda v: m.norm(m.linear(v) * m.g), x, use_reentrant=False
    ),
}
ENDS = {
    "square": lambda m, x: x.square().flatten(1).sum(1),
    "scaled": lambda m, x: x.sin().flatten(1).sum(1) * m.s,
    "norm": lambda m, x: functional.softplus(m.norm(x)).flatten(1).sum(1),
}


def drawn(seed):
    """A model, and its losses."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    model = Parts()
    if chance.random() < 0.3:
        model.root.weight = model.norm.weight
    if chance.random() < 0.2:
        model.group.bias = model.norm.bias
    if chance.random() < 0.2:
        model.g = model.group.weight
    for parameter in model.parameters():
        parameter.requires_grad_(chance.random() < 0.9)
    steps = [(chance.choice(list(STEPS.values())), chance.randrange(9)) for _ in range(5)]
    end = chance.choice(list(ENDS.values()))

    def losses(m, x):
        values = [x]
        for step, back in steps:
            values.append(step(m, values[-1], values[back % len(values)]))
        return end(m, values[-1])

    return model, losses, chance


def agree(engine, model, losses, clip, x):
    found = engine.clipped_sum(losses(model, x), clip)
    expected = loop_clipped_sum(copy.deepcopy(model).double(), losses, clip, x.double())
    for mine, truth in zip(found.sums, expected, strict=True):
        torch.testing.assert_close(mine.double(), truth, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_agree_with_the_slow_loop(block, monkeypatch):
    if block % 2:
        monkeypatch.setattr(passes, "_LARGE_INPUT", 0)  # as if all layers were large
    done = 0
    for seed in range(20 * block, 20 * block + 20):
        model, losses, chance = drawn(seed)
        engine = Gradients(model, chance.choice(METHODS))
        clip = chance.choice([FlatClip(0.7), PerLayerClip(1.0)])
        try:
            for _ in range(2):
                agree(engine, model, losses, clip, torch.randn(chance.choice([1, 2, 4, 5]), T, D))
                done += 1
        except (InvalidInput, ModelNotPrivate):
            continue
    assert done > 30


class CutOff(nn.Module):
    """The last operation of all is where a parameter meets the batch."""

    def __init__(self):
        super().__init__()
        self.layer, self.s, self.cut = nn.Linear(D, 1), nn.Parameter(torch.tensor(0.3)), False

    def forward(self, x):
        out = self.layer(x)[:, 0]
        return (out.detach() if self.cut else out) * self.s


@pytest.mark.parametrize("method", METHODS)
def test_what_was_detached_later_is_right_or_refused(method):
    model = CutOff()
    engine, x = Gradients(model, method), torch.randn(3, D)
    engine.clipped_sum(model(x), FlatClip(100.0))
    model.cut = True
    try:
        found = engine.clipped_sum(model(x), FlatClip(100.0))
    except InvalidInput:
        return
    torch.testing.assert_close(found.sums[0], model.layer(x).sum().detach())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [1, 5])
def test_hooks_of_the_user_change_what_the_layers_get(method, batch):
    model = nn.Sequential(nn.Linear(D, D), nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D))

    def losses(m, x):
        for layer in m:
            x = with_hook(layer(x))
        return x.sin().sum(1)

    x = torch.randn(batch, D)
    engine = Gradients(model, method)
    for _ in range(2):
        agree(engine, model, losses, FlatClip(0.5), x)


def test_standardised_weights_in_half_precision_are_taken_back_in_float32():
    weight = torch.randn(8, 4, 3, 3).bfloat16()
    along = standardised(weight.double())[0].float()
    rows = (torch.randn(5, 8, 4, 3, 3) + 1000 * along).flatten(1)  # nearly all of it goes
    exact = taken_back(rows.double(), weight.double())
    found = taken_back(rows, weight)
    assert found.dtype is torch.float32
    assert (found - exact).norm() < 1e-4 * exact.norm()


class Switched(nn.Module):
    """Two graphs with the same layers and as many operations; a parameter enters otherwise."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind, self.other = nn.Linear(4, 3), kind, False
        self.g = nn.Parameter(torch.rand(3) + 0.5)

    def forward(self, x):
        h = self.layer(x)
        if self.kind == "twice":
            return (h * self.g) * self.g if self.other else h.sin() * self.g
        return h * self.g if self.other else h * 2.0


@pytest.mark.parametrize("kind", ["twice", "at times"])
def test_a_graph_that_changes_behind_the_same_layers_is_seen_at_once(kind):
    torch.manual_seed(0)
    model, x = Switched(kind), torch.randn(8, 4)
    engine = Gradients(model)
    for number in range(12):
        model.other = number % 2 == 1
        found = engine.clipped_sum(model(x).square().sum(1), FlatClip(1e6)).sums
        total = model(x).square().sum()
        engine.forget()
        truth = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        for mine, one in zip(found, truth, strict=True):
            torch.testing.assert_close(mine, torch.zeros_like(mine) if one is None else one)
