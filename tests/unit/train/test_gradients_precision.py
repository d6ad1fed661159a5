"""What one example releases has at most the clip norm, in every precision; worst cases searched."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.conftest import executor_of
from tests.slow_gradients import loop_gradients
from torch import nn
from torch.nn import functional

from tightrope.train.clip import AutomaticClip, FlatClip, PerLayerClip
from tightrope.train.gradients.convolution import Convolution, Patches
from tightrope.train.gradients.forms import Dense, TableRows
from tightrope.train.gradients.outer import Outer, RankOne, gram_squared_norms


def released(batch):
    return sum(float(total.double().square().sum()) for total in batch.sums) ** 0.5


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(2),
        nn.Linear(36, 20),
        nn.LayerNorm(20),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(160, 5),
    )


def losses(model, x, y):
    return functional.cross_entropy(model(x).float(), y, reduction="none")


def sums_of(model, clip, *batch, loss):
    executor = executor_of(model, loss, *batch)
    return executor.clipped_sum(batch, clip, len(batch[0]))[0]


def in_type(dtype):
    """The loss in this precision."""

    def loss(model, x, y):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            return losses(model, x, y)

    return loss


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_one_example_never_releases_more_than_the_clip_norm(dtype):
    """Two equal examples release twice one contribution; 20 random draws for each clip."""
    torch.manual_seed(0)
    model, made = network(), (torch.randn(2, 3, 6, 6), torch.randint(0, 5, (2,)))
    executor = executor_of(model, in_type(dtype), *made)
    for clip in (FlatClip(1e-3), PerLayerClip(1e-3), AutomaticClip(1e-3, 1e-9)):
        worst = 0.0
        for draw in range(20):
            count = 1 + draw % 2
            x = torch.randn(1, 3, 6, 6).repeat(count, 1, 1, 1) * 10 ** torch.randn(1)
            y = torch.randint(0, 5, (1,)).repeat(count)
            worst = max(worst, released(executor.clipped_sum((x, y), clip, 2)[0]) / count)
        assert 0.99 * clip.sensitivity < worst <= clip.sensitivity


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gradients_are_close_to_exact_ones(dtype):
    torch.manual_seed(1)
    model, x, y = network(), torch.randn(6, 3, 6, 6), torch.randint(0, 5, (6,))
    exact = loop_gradients(model, losses, x, y)
    batch = sums_of(model, FlatClip(1e6), x, y, loss=in_type(dtype))
    for mine, truth in zip(batch.sums, exact, strict=True):
        total = truth.sum(0)
        assert mine.dtype is torch.float32
        assert float((mine - total).norm()) <= 0.05 * float(truth.flatten(1).norm(dim=1).sum())


def test_model_stored_in_bfloat16_keeps_ids_apart():
    """Peers compare ids rounded to bfloat16, where 4096 and 4100 collide: 14.8 times the bound."""
    model = nn.Sequential(nn.Embedding(5000, 8), nn.Flatten(), nn.Linear(16, 1)).bfloat16()
    ids = torch.tensor([[4096, 4100], [4100, 4096]])
    batch = sums_of(model, FlatClip(1e-3), ids, loss=lambda m, ids: m(ids).squeeze(1))
    assert batch.sums[0].dtype is torch.float32
    assert batch.sums[0][4096].any()
    assert batch.sums[0][4100].any()
    assert released(batch) <= 2e-3


def adversarial_outer(positions, d, p, generator):
    """Rows that nearly cancel: the computed norm is small against the terms it is made of."""
    a = torch.randn(1, positions, d, generator=generator)
    g = torch.randn(1, positions, p, generator=generator)
    half = positions // 2
    a[:, half : 2 * half] = a[:, :half]
    g[:, half : 2 * half] = -g[:, :half] * (1 + 1e-4 * torch.randn(1, half, 1, generator=generator))
    if positions % 2:
        a[:, -1] *= 1e-3
    return a, g


@pytest.mark.parametrize("size", [(2, 3, 2), (16, 8, 8), (64, 32, 16), (301, 5, 7), (40, 200, 3)])
def test_gram_norm_bounds_the_released_product_under_cancellation(size):
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        a, g = adversarial_outer(*size, generator)
        bound = gram_squared_norms(a, g).sqrt()
        factor = (1.0 / bound).float()
        total = torch.mm((g[0] * factor).t(), a[0]).double()
        exact = (g[0].double().t() @ a[0].double()).norm()
        assert float(total.norm()) <= 1 + 2**-14
        assert float(exact) <= float(bound) * (1 + 2**-14)


def forms(generator):
    r = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    geometry = Convolution(torch.Size((6, 4, 3, 3)), (1, 1), (1, 1), (1, 1), 1)
    return [
        Dense(r(3, 5000)),
        Outer(r(3, 9, 4), r(3, 9, 5)),
        Outer(r(3, 2, 90), r(3, 2, 80)),
        RankOne(r(3, 40), r(3, 30)),
        TableRows(torch.randint(0, 4, (3, 11), generator=generator), r(3, 11, 6), 4),
        Patches(r(3, 4, 5, 5), r(3, 6, 5, 5), geometry),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_forms_agree_with_their_dense_gradients(seed):
    for form in forms(torch.Generator().manual_seed(seed)):
        squares, factors = form.squared_norms(), torch.tensor([0.5, 0.0, 2.0])
        dense = form.dense().double().flatten(1)
        torch.testing.assert_close(squares.double(), dense.square().sum(1), rtol=1e-3, atol=0)
        assert bool((squares.double() * (1 + 2**-13) >= dense.square().sum(1)).all())
        expected = (factors.double()[:, None] * dense).sum(0)
        mine = form.weighted_sum(factors, 3).double().flatten()
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


def test_zeroed_examples_vanish_whatever_they_held():
    bad = torch.tensor([False, True, False])
    twins = (forms(torch.Generator().manual_seed(0)) for _ in range(2))
    for form, twin in zip(*twins, strict=True):
        clean = twin.weighted_sum(torch.tensor([1.0, 0.0, 1.0]), 3)
        for name in ("values", "a", "g", "x"):
            if isinstance(getattr(form, name, None), torch.Tensor):
                getattr(form, name)[1] = torch.nan
        form.zero(bad)
        torch.testing.assert_close(form.weighted_sum(torch.tensor([1.0, 0.0, 1.0]), 3), clean)


def test_norms_over_millions_of_values_are_not_biased():
    """torch's float32 norm over 20 million values is low by more than the margin on some CPUs."""
    values = torch.full((1, 20_000_000), 0.1)
    exact = float(values.double().square().sum()) ** 0.5
    assert float(Dense(values).squared_norms().sqrt()) * (1 + 2**-14) >= exact


def test_a_huge_example_stays_within_the_clip_norm():
    torch.manual_seed(3)
    model, x, y = network(), torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 3])
    x[2, 0, 0, 0] = 1e30
    batch = sums_of(model, FlatClip(0.1), x, y, loss=lambda m, x, y: losses(m, x, y) * 1e25)
    assert released(batch) <= 0.4


def test_no_nan_from_a_gram_norm_that_rounds_below_zero():
    """Peers take the root of a negative number in 48 of 50 runs."""
    torch.manual_seed(0)
    for _ in range(50):
        a, g = adversarial_outer(64, 4, 4, torch.Generator().manual_seed(1))
        g[:, 32:] = -g[:, :32]
        bound = gram_squared_norms(a, g)
        assert bool(bound.isfinite().all())
        assert bool((bound >= 0).all())
