"""Laws of clipped sums, over random architectures."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow_gradients import loop_clipped_sum
from torch import nn

from tightrope.train.clip import FlatClip
from tightrope.train.gradients import Gradients


@st.composite
def networks(draw):
    """A chain of layers on (B, C, T), some of them used again."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    channels, length = draw(st.integers(1, 4)) * 2, draw(st.integers(3, 6))
    groups = st.sampled_from((1, 2))
    makers = {
        "conv": lambda: nn.Conv1d(channels, channels, 3, padding=1, groups=draw(groups)),
        "linear": lambda: nn.Linear(length, length, bias=draw(st.booleans())),
        "group": lambda: nn.GroupNorm(2, channels),
        "layer": lambda: nn.LayerNorm(length),
        "tanh": nn.Tanh,
        "instance": lambda: nn.InstanceNorm1d(channels, affine=True),
    }
    kinds = draw(st.lists(st.sampled_from(sorted(makers)), min_size=1, max_size=4))
    layers = [makers[kind]() for kind in kinds]
    if draw(st.booleans()):
        layers.append(layers[0])
    layers.append(nn.Linear(length, 2))
    return nn.Sequential(*layers), torch.randn(draw(st.integers(1, 4)), channels, length)


def losses_of(model, x):
    return model(x).square().mean((1, 2)) + model(x).sum((1, 2)) * 0.1


def clipped(model, x, clip, method="auto"):
    engine = Gradients(model, method)
    try:
        losses = losses_of(model, x) if len(x) else torch.zeros(0)
        return engine.clipped_sum(losses, clip)
    finally:
        engine.detach()


@settings(max_examples=40, deadline=None)
@given(networks(), st.floats(0.01, 10), st.sampled_from(("book-keeping", "two-pass")))
def test_clipped_sum_equals_the_loop(case, clip_norm, method):
    model, x = case
    batch = clipped(model, x, FlatClip(clip_norm), method)
    expected = loop_clipped_sum(model, losses_of, FlatClip(clip_norm), x)
    for mine, truth in zip(batch.sums, expected, strict=True):
        torch.testing.assert_close(mine, truth, rtol=2e-3, atol=2e-4 * clip_norm)


@settings(max_examples=25, deadline=None)
@given(networks(), st.floats(0.01, 1))
def test_removing_one_example_moves_the_sum_by_at_most_the_clip_norm(case, clip_norm):
    model, x = case
    clip = FlatClip(clip_norm)
    whole, rest = clipped(model, x, clip), clipped(model, x[1:], clip)
    moved = sum(float((a - b).double().square().sum()) for a, b in
                zip(whole.sums, rest.sums, strict=True)) ** 0.5  # fmt: skip
    # The sums themselves are float32: their own rounding is not the example's contribution.
    assert moved <= clip_norm * (1 + 1e-5 * len(x))


@settings(max_examples=25, deadline=None)
@given(networks(), st.randoms(use_true_random=False))
def test_order_of_the_examples_does_not_matter(case, random):
    model, x = case
    order = list(range(len(x)))
    random.shuffle(order)
    first, second = clipped(model, x, FlatClip(0.5)), clipped(model, x[order], FlatClip(0.5))
    for a, b in zip(first.sums, second.sums, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.norms[order], second.norms, rtol=1e-4, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(networks(), st.integers(0, 3))
def test_batch_splits_into_micro_batches(case, cut):
    model, x = case
    whole = clipped(model, x, FlatClip(0.5))
    parts = clipped(model, x[:cut], FlatClip(0.5)), clipped(model, x[cut:], FlatClip(0.5))
    for i, total in enumerate(whole.sums):
        torch.testing.assert_close(parts[0].sums[i] + parts[1].sums[i], total, rtol=1e-4, atol=1e-5)
