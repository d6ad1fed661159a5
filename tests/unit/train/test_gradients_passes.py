"""Two passes, micro-batches, repeated steps and compiled models give the same sums."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tightrope.train.clip import FlatClip, PerLayerClip
from tightrope.train.gradients import Gradients

CLIP = FlatClip(0.2)


def model_and_data(batch=6):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Linear(32, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3),
    )  # fmt: skip
    return model, torch.randn(batch, 3, 8), torch.randint(0, 3, (batch,))


def losses(model, x, y):
    return functional.cross_entropy(model(x), y, reduction="none")


def assert_same(first, second, **tolerance):
    for a, b in zip(first.sums, second.sums, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or {"rtol": 1e-5, "atol": 1e-7}))
    torch.testing.assert_close(first.norms, second.norms)


@pytest.mark.parametrize("clip", [CLIP, PerLayerClip(0.2)])
def test_two_pass_equals_book_keeping(clip):
    model, x, y = model_and_data()
    one = Gradients(model, "book-keeping")
    first = one.clipped_sum(losses(model, x, y), clip)
    one.detach()
    two = Gradients(model, "two-pass")
    assert_same(first, two.clipped_sum(losses(model, x, y), clip))


def test_micro_batches_add_up_to_the_batch():
    model, x, y = model_and_data()
    engine = Gradients(model)
    whole = engine.clipped_sum(losses(model, x, y), CLIP)
    parts = [engine.clipped_sum(losses(model, x[s], y[s]), CLIP)
             for s in (slice(0, 1), slice(1, 4), slice(4, 4), slice(4, 6))]  # fmt: skip
    for i, total in enumerate(whole.sums):
        torch.testing.assert_close(sum(p.sums[i] for p in parts), total, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(torch.cat([p.norms for p in parts]), whole.norms)


def test_two_forward_passes_in_one_loss_are_uses_of_one_parameter():
    model, x, y = model_and_data()
    engine = Gradients(model)
    both = engine.clipped_sum(losses(model, x, y) + losses(model, x.flip(2), y), FlatClip(1e6))
    expected = torch.autograd.grad(
        (losses(model, x, y) + losses(model, x.flip(2), y)).sum(), engine.parameters
    )
    for mine, truth in zip(both.sums, expected, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-4, atol=1e-6)


def test_repeated_steps_do_not_remember_each_other():
    model, x, y = model_and_data()
    engine = Gradients(model)
    first = engine.clipped_sum(losses(model, x, y), CLIP)
    engine.clipped_sum(losses(model, x * 5, y), CLIP)
    assert_same(first, engine.clipped_sum(losses(model, x, y), CLIP))
    assert all(p.grad is None for p in model.parameters())


def test_sums_are_not_overwritten_by_the_next_step():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(300, 300)), torch.randn(8, 5, 300)
    engine = Gradients(model)
    first = engine.clipped_sum(model(x).square().mean((1, 2)), CLIP)
    copies = [total.clone() for total in first.sums]
    engine.clipped_sum(model(x * 3 + 1).square().mean((1, 2)), CLIP)
    for total, copy in zip(first.sums, copies, strict=True):
        assert torch.equal(total, copy)


def test_norms_and_clipped_fraction_are_reported():
    model, x, y = model_and_data()
    engine = Gradients(model)
    free = engine.clipped_sum(losses(model, x, y), FlatClip(1e6))
    bound = float(free.norms.sort().values[2:4].mean())
    half = engine.clipped_sum(losses(model, x, y), FlatClip(bound))
    assert float(free.clipped_fraction) == 0
    assert float(half.clipped_fraction) == 0.5
    assert half.nonfinite == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # read by torch.compile itself
@pytest.mark.parametrize("order", ["attach first", "compile first"])
def test_compiled_model_gives_the_same_sums(order):
    model, x, y = model_and_data()
    plain = Gradients(model)
    expected = plain.clipped_sum(losses(model, x, y), CLIP)
    plain.detach()
    torch.compiler.reset()
    if order == "attach first":
        engine, compiled = Gradients(model), torch.compile(model, backend="aot_eager")
    else:
        compiled = torch.compile(model, backend="aot_eager")
        engine = Gradients(compiled)
    for _ in range(2):
        assert_same(expected, engine.clipped_sum(losses(compiled, x, y), CLIP))
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_model_compiled_and_run_before_attaching_is_never_silently_wrong():
    model, x, y = model_and_data()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    losses(compiled, x, y)
    engine = Gradients(model)
    expected = engine.clipped_sum(losses(model, x, y), CLIP)
    try:
        batch = engine.clipped_sum(losses(compiled, x, y), CLIP)
    except (ValueError, RuntimeError) as error:
        assert "torch.compiler.reset" in str(error) or "attach before compiling" in str(error)
    else:
        assert_same(expected, batch)
    torch.compiler.reset()
