"""Laws of clipped sums, over random architectures."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.conftest import executor_of
from tests.slow_gradients import loop_clipped_sum
from torch import nn

from tightrope.train.clip import FlatClip


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
    return nn.Sequential(*layers), torch.randn(draw(st.integers(2, 4)), channels, length)


def losses_of(model, x):
    return model(x).square().mean((1, 2)) + model(x).sum((1, 2)) * 0.1


@settings(max_examples=20, deadline=None)
@given(networks(), st.floats(0.01, 10), st.randoms(use_true_random=False))
def test_clipped_sums_of_any_network(case, clip_norm, random):
    """They equal the slow loop's in any order and in parts; one example moves them by its clip."""
    model, x = case
    clip, executor = FlatClip(clip_norm), executor_of(model, losses_of, x)

    def clipped(rows):
        return executor.clipped_sum((rows,), clip, len(x))[0]

    whole, rest = clipped(x), clipped(x[1:])
    expected = loop_clipped_sum(model, losses_of, clip, x)
    for mine, truth in zip(whole.sums, expected, strict=True):
        torch.testing.assert_close(mine, truth, rtol=2e-3, atol=2e-4 * clip_norm)

    moved = sum(float((a - b).double().square().sum()) for a, b in
                zip(whole.sums, rest.sums, strict=True)) ** 0.5  # fmt: skip
    # The sums themselves are float32: their own rounding is not the example's contribution.
    assert moved <= clip_norm * (1 + 1e-5 * len(x))

    order = random.sample(range(len(x)), len(x))
    cut = random.randint(0, len(x))
    other, parts = clipped(x[order]), (clipped(x[:cut]), clipped(x[cut:]))
    torch.testing.assert_close(whole.norms[order], other.norms, rtol=1e-4, atol=1e-6)
    for i, total in enumerate(whole.sums):
        near = {"rtol": 1e-4, "atol": 1e-5 * clip_norm * len(x)}
        torch.testing.assert_close(other.sums[i], total, **near)
        torch.testing.assert_close(parts[0].sums[i] + parts[1].sums[i], total, **near)
