"""What a form holds, and that it lets go of it."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from tightrope.train import FlatClip, Gradients
from tightrope.train.gradients import passes
from tightrope.train.gradients.forms import Convolution, Outer, Patches
from tightrope.train.gradients.forms import bundle as bundles

# A kernel of few taps over a large image: the gradient is much smaller than what it is made from.
SMALL = Convolution(torch.Size((4, 3, 2, 2)), (1, 1), (0, 0), (1, 1), 1)
# Few positions and many taps: the other way round.
LARGE = Convolution(torch.Size((40, 30, 3, 3)), (1, 1), (1, 1), (1, 1), 1)


def memory_of(tensor):
    return weakref.ref(tensor.untyped_storage())


def settled(convolution, side, out):
    outputs, inputs = convolution.weight_shape[:2]
    x, g = torch.randn(2, inputs, side, side), torch.randn(2, outputs, out, out)
    held = [memory_of(x), memory_of(g)]
    form = Patches(x, g, convolution)
    form.settle()
    return form, held


def test_small_gradients_replace_the_images_they_come_from():
    form, held = settled(SMALL, 12, 11)
    assert [memory() for memory in held] == [None, None]
    assert form.dense().shape == (2, 4, 3, 2, 2)
    torch.testing.assert_close(form.squared_norms(), form.dense().flatten(1).square().sum(1))


def test_large_gradients_wait():
    _, held = settled(LARGE, 3, 3)
    assert all(memory() is not None for memory in held)


def products(sizes, batch=3):
    torch.manual_seed(0)
    return {
        row: Outer(*(torch.randn(batch, 5, n).bfloat16() for n in size))
        for row, size in enumerate(sizes)
    }


def test_bundled_products_are_those_of_each_layer_and_free_their_operands():
    group = products([(8, 16), (7, 5), (24, 8)])
    expected = {row: torch.bmm(f.g.transpose(1, 2), f.a) for row, f in group.items()}
    held = [memory_of(t) for form in group.values() for t in (form.a, form.g)]
    bundle = bundles._multiplied(group)
    assert not group
    assert [memory() for memory in held] == [None] * 6
    for row, gradients in enumerate(expected.values()):
        for example in range(3):
            parts = bundle.split(bundle.form.values[example])
            torch.testing.assert_close(parts[row], gradients[example])
    squares = sum(g.double().flatten(1).square().sum(1) for g in expected.values())
    torch.testing.assert_close(bundle.form.squared_norms().double(), squares, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("room", "count"), [(2**29, 1), (2 * 3 * 8 * 8, 5), (2 * 3 * 8 * 24, 2)])
def test_bundles_hold_what_there_is_room_for(monkeypatch, room, count):
    monkeypatch.setattr(bundles, "_LARGEST_BUFFER", room)
    monkeypatch.setattr(Outer, "stored_in_half", True)
    forms = products([(8, 8)] * 5)
    made = bundles._bundle_products(forms)
    assert not forms
    assert len(made) == count
    assert [row for bundle in made for row in bundle.rows] == list(range(5))


@pytest.mark.parametrize("padded", [False, True])
def test_layers_handled_during_the_backward_pass_have_the_same_sums(monkeypatch, padded):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2),
        nn.Flatten(2), nn.LayerNorm(16), nn.Conv1d(4, 3, 2), nn.Flatten(), nn.Linear(45, 1),
    )  # fmt: skip
    engine, clip = Gradients(model), FlatClip(0.1)
    x = torch.randn(5, 2, 10, 10)
    expected = engine.clipped_sum(model(x).flatten(), clip)
    monkeypatch.setattr(passes, "_LARGE_INPUT", 0)
    present = torch.ones(5, dtype=torch.bool) if padded else None
    found = engine.clipped_sum(model(x).flatten(), clip, present=present)
    for one, other in zip(found.sums, expected.sums, strict=True):
        torch.testing.assert_close(one, other)


def test_casting_hooks_come_with_autocast_and_go_with_the_engine():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    engine, x = Gradients(model), torch.randn(2, 4)
    engine.clipped_sum(model(x).flatten(), FlatClip(1.0))
    assert not any(layer._forward_pre_hooks for layer in model)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            losses = model(x).flatten()
        engine.clipped_sum(losses.float(), FlatClip(1.0))
    assert [len(layer._forward_pre_hooks) for layer in model] == [1, 0]  # the second reads half
    engine.detach()
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in model)
