"""Networks of linear layers on vectors take a way of their own; it must give the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tightrope.train.clip import AutomaticClip, FlatClip, PerLayerClip
from tightrope.train.gradients import Gradients, vectors
from tightrope.train.gradients.reference import loop_clipped_sum

CLIP = FlatClip(0.3)


class Network(nn.Module):
    """Two layers, and one that is called or not."""

    def __init__(self, called=True):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3)
        self.unused, self.called = nn.Linear(5, 2), called

    def forward(self, x):
        if self.called:
            self.unused(x)
        return self.second(self.first(x).tanh())


def losses_of(model, x, y):
    return functional.cross_entropy(model(x), y, reduction="none")


def made(batch=6, **options):
    torch.manual_seed(0)
    return Network(**options), torch.randn(batch, 5), torch.randint(0, 3, (batch,))


@pytest.fixture
def taken(monkeypatch):
    """How often the way was taken."""
    calls = []

    def watched(work, clip):
        calls.append(work)
        return original(work, clip)

    original = vectors.sum_of_vectors
    monkeypatch.setattr("tightrope.train.gradients.engine.sum_of_vectors", watched)
    return calls


@pytest.mark.parametrize("clip", [CLIP, FlatClip(1e6), AutomaticClip(0.3)])
@pytest.mark.parametrize("called", [True, False])
def test_it_equals_one_example_at_a_time(clip, called, taken):
    model, x, y = made(called=called)
    truth = loop_clipped_sum(model, losses_of, clip, x, y)
    found = Gradients(model, loss_scale=4.0).clipped_sum(losses_of(model, x, y), clip)
    assert len(taken) == 1
    for a, b in zip(found.sums, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_examples_that_are_not_finite_contribute_zero(taken):
    model, x, y = made()
    bad = x.clone()
    bad[2, 1], bad[4, 0] = float("nan"), float("inf")
    kept = torch.tensor([0, 1, 3, 5])
    engine = Gradients(model)
    truth = engine.clipped_sum(losses_of(model, x[kept], y[kept]), CLIP)
    found = engine.clipped_sum(losses_of(model, bad, y), CLIP)
    assert len(taken) == 2 and found.nonfinite == 2
    assert found.norms[[2, 4]].isinf().all()
    for a, b in zip(found.sums, truth.sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_rows_that_fill_up_contribute_zero(taken):
    model, x, y = made()
    engine = Gradients(model)
    truth = engine.clipped_sum(losses_of(model, x[:4], y[:4]), CLIP)
    found = engine.clipped_sum(losses_of(model, x, y), CLIP, present=torch.arange(6) < 4)
    assert len(taken) == 2
    for a, b in zip(found.sums, truth.sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_layers_of_different_precision(taken):
    model, x, y = made()
    model.second.double()

    def each(x, y):
        return functional.cross_entropy(model.second(model.first(x).double()), y, reduction="none")

    found = Gradients(model).clipped_sum(each(x, y), FlatClip(1e6))
    truth = torch.autograd.grad(each(x, y).sum(), [*model.first.parameters()])
    assert len(taken) == 1
    for a, b in zip(found.sums[:2], truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.second.weight.requires_grad_(False),
        lambda model: setattr(model.second, "bias", None),
        lambda model: setattr(model, "second", nn.LayerNorm(4)),
    ],
    ids=["frozen", "no bias", "other layer"],
)
def test_anything_else_goes_the_general_way(change, taken):
    model, x, y = made()
    change(model)
    truth = loop_clipped_sum(model, losses_of, CLIP, x, y)
    found = Gradients(model).clipped_sum(losses_of(model, x, y), CLIP)
    assert not taken
    for a, b in zip(found.sums, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_other_clips_passes_and_positions_go_the_general_way(taken):
    model, x, y = made()
    engine = Gradients(model)
    engine.clipped_sum(losses_of(model, x, y), PerLayerClip(0.3))
    engine.clipped_sum(model(x[:, None].expand(-1, 7, -1)).square().mean((1, 2)), CLIP)
    engine.clipped_sum(losses_of(model, x, y) + losses_of(model, x * 2, y), CLIP)
    engine.detach()
    Gradients(model, "two-pass").clipped_sum(losses_of(model, x, y), CLIP)
    assert not taken
