"""A loss that is not proved runs under vmap: attempts to let examples meet there.

Black boxes: a model and a loss go in; what comes out is a refusal, or the sum of the slow loop.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightrope.errors import InvalidInput
from tightrope.train.clip import FlatClip
from tightrope.train.isolation import isolate

pytestmark = pytest.mark.filterwarnings("ignore")
N, D = 12, 4


def unknown(h):
    """An operator without a rule, so that no proof is found; it adds nothing."""
    return h + 0 * torch.special.chebyshev_polynomial_t(h, 2)


class OwnRule(torch.autograd.Function):
    """The identity, whose own rule for vmap sees all examples."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def vmap(info, in_dims, x):
        x = x.movedim(in_dims[0], 0)
        return x * x.mean().sign(), 0


@torch.library.custom_op("tightrope_tests::identity", mutates_args=())
def identity(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


identity.register_fake(torch.empty_like)
identity.register_vmap(lambda info, dims, x: (x * x.mean().sign(), dims[0]))


class Counts(nn.Linear):
    def __init__(self):
        super().__init__(D, 1)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen[0:1].add_(1)  # through a view
        return super().forward(x)


def executor(model, loss, size=N):
    found = isolate(
        model, loss, [(torch.zeros(1, D),)], list(model.parameters()), size=size,
        executor="plain", wanted="proved",
    )  # fmt: skip
    assert found.isolation.how == "vmap"
    return found.executor_for((torch.zeros(1, D),))


def slow_sum(model, loss, x):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for row in x:
        found = torch.autograd.grad(loss(model, row[None]).sum(), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in found]).norm()
        for sum_, g in zip(total, found, strict=True):
            sum_ += g * min(1.0, 1.0 / float(norm))
    return total


def test_a_rule_for_vmap_of_a_function_is_not_used():
    torch.manual_seed(0)
    model, x = nn.Linear(D, 3), torch.randn(N, D)
    model.weight.data[0] -= 9  # the mean over the batch is negative, of some examples it is not

    def loss(m, x):
        return unknown(OwnRule.apply(m(x))).square().sum(1)

    found, _ = executor(model, loss).clipped_sum((x,), FlatClip(1.0), 1)
    for ours, slow in zip(found.sums, slow_sum(model, loss, x), strict=True):
        assert torch.allclose(ours, slow, rtol=1e-3)  # the clip keeps 2^-11 for rounding


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        (nn.Linear(D, 1), lambda m, x: unknown(m(identity(x))).sum(1), "no operator of PyTorch's"),
        (Counts(), lambda m, x: unknown(m(x)).sum(1), "writes to a buffer"),
    ],
    ids=["own operator", "buffer through a view"],
)
def test_what_is_not_closed_is_refused(model, loss, words):
    with pytest.raises(InvalidInput, match=words):
        executor(model, loss)


def test_a_shared_draw_is_one_of_each_example():
    """Parts of a batch have no draws in common: of 64 equal examples half have each sign.

    With one draw for each part of 8 the sum is a multiple of 16. With 64 draws it is one in an
    eighth of all runs: six in a row are a false alarm in 260,000.
    """
    model = nn.Linear(1, 1, bias=False)
    found = isolate(
        model, lambda m, x: m(x)[:, 0] * torch.sign(torch.rand(()) - 0.5),
        [(torch.zeros(1, 1),)], list(model.parameters()), size=8, executor="plain",
        wanted="proved",
    )  # fmt: skip
    assert found.isolation.how == "vmap"
    own, sums = found.executor_for((torch.zeros(1, 1),)), set()
    for _ in range(6):
        parts = [own.clipped_sum((torch.ones(8, 1),), FlatClip(1.0), 1)[0] for _ in range(8)]
        sums.add(round(sum(float(p.sums[0]) for p in parts)) % 16)
    assert sums != {0}


def test_a_loss_that_fails_on_one_example_is_refused_before_a_step():
    """It went through, and the first step ended in an IndexError."""

    def loss(m, x):
        numbers = torch.arange(x.shape[0])
        numbers.view(-1)[0] = 3
        return m(x)[numbers].sum(1)

    model = nn.Linear(D, 1)
    with pytest.raises(InvalidInput, match="fails by itself"):
        isolate(
            model, loss, [(torch.zeros(1, D),)], list(model.parameters()), size=N,
            executor="plain", wanted="proved",
        )  # fmt: skip
