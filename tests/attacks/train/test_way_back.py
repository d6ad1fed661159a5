"""Gradients of examples that meet on the way back only, by torch's own derivatives.

Black boxes: a record more or less moves the clipped sum by the clip norm at most, or the loss is
refused.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightrope.train.clip import FlatClip
from tightrope.train.isolation import isolate
from tightrope.train.program import Mixes

N, D = 12, 4


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return x + self.shift


def moved_by_each(loss, x):
    """How far the clipped sum moves when each record in turn is left out."""
    model = Shifted()
    found = isolate(
        model, loss, [(x[:1],)], list(model.parameters()), size=len(x), executor="plain",
        wanted="proved",
    ).executor_for((x[:1],))  # fmt: skip

    def total(rows):
        return found.clipped_sum((rows,), FlatClip(1.0), len(rows))[0].sums[0].double()

    whole = total(x)
    return [float((whole - total(torch.cat([x[:i], x[i + 1 :]]))).norm()) for i in range(len(x))]


@pytest.mark.parametrize(
    "product",
    [
        lambda h: h.prod(1),
        lambda h: h.prod(-1, keepdim=True)[:, 0],
        lambda h: h.view(-1, 2, D // 2).prod(1).sum(1),
        lambda h: h.cumprod(1).sum(1),
        lambda h: h.new_ones(len(h), 1).scatter_reduce(
            1, torch.zeros_like(h, dtype=torch.long), h, "prod"
        )[:, 0],
    ],
    ids=["prod", "prod, kept", "prod of pairs", "cumprod", "scattered"],
)
def test_a_zero_of_one_example_changes_no_other_gradient(product):
    """The derivative of torch's prod is another one where the batch has a zero: it was 11.7."""
    x = torch.tensor([1e-25, 1e-25, 1e30, 1.0]).repeat(N, 1)
    x[3] = torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert max(moved_by_each(lambda m, x: product(m(x)), x)) <= 1 + 1e-3


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_products_and_their_gradients_are_those_of_the_slow_loop(count):
    torch.manual_seed(0)
    x = torch.randn(N, D, count)
    x[1, 0, 0], x[2, :, 0] = 0.0, 0.0
    loss = lambda m, x: (x + m.shift[:, None]).prod(2).square().sum(1)  # noqa: E731
    model = Shifted()
    found = isolate(
        model, loss, [(x[:1],)], [model.shift], size=N, executor="plain", wanted="proved"
    )
    assert found.isolation.how == "proved"
    batch, losses = found.executor_for((x,)).clipped_sum((x,), FlatClip(1e9), N)
    (slow,) = torch.autograd.grad(loss(model, x).sum(), [model.shift])
    assert torch.allclose(losses, loss(model, x), rtol=1e-4)
    assert torch.allclose(batch.sums[0], slow, rtol=2e-3, atol=1e-5)


def test_no_place_of_the_batch_is_without_a_gradient():
    """It was 1.7: who comes before a record decides whether it stands at the place without one."""

    def loss(m, x):
        own = torch.embedding(m(x), torch.arange(len(x)), padding_idx=5)
        return 10 * own.tanh().sum(1)

    with pytest.raises(Mixes, match="padding_idx"):
        moved_by_each(loss, torch.randn(N, D))
