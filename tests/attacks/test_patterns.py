"""Hole F again: parameters used in ways that people write by hand: right or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tightrope.errors import ModelNotPrivate, TightropeError
from tightrope.train import FlatClip
from tightrope.train.gradients import Gradients
from tightrope.train.gradients.reference import loop_clipped_sum

B = 6
chance = torch.Generator().manual_seed(0)
ROWS = torch.randn(B, 5, generator=chance)
STEPS = torch.randn(B, 7, 4, generator=chance)
IDS = torch.randint(0, 11, (B, 7), generator=chance)
LENGTHS = torch.tensor([7, 3, 5, 2, 6, 4])
MASK = torch.arange(7)[None] >= LENGTHS[:, None]


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


class Model(nn.Module):
    def __init__(self, parts: dict[str, Any], run: Callable[..., Tensor]) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, *given: Tensor) -> Tensor:
        return self.run(self, *given)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def tied(layer: type[nn.Module], other: nn.Module) -> nn.Module:
    found = layer(4, 11, bias=False)
    found.weight = other.weight
    return found


def packed(model: Any, x: Tensor, lengths: Tensor) -> Tensor:
    given = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last = model.r(given)
    last = last[0] if isinstance(last, tuple) else last
    told = pad_packed_sequence(out, batch_first=True)[0].sum(1)
    return torch.cat([told, last.transpose(0, 1).reshape(len(x), -1)], 1)


def cells(model: Any, x: Tensor) -> Tensor:
    state = None
    for t in range(x.shape[1]):
        state = model.r(x[:, t], state)
    return state[0]


def swapped(model: Any, x: Tensor) -> Tensor:
    other = {"weight": model.a.weight * 2, "bias": model.a.bias}
    return torch.func.functional_call(model.a, other, (x,))


def _embedding() -> dict[str, nn.Module]:
    table = nn.Embedding(11, 4)
    return {"e": table, "o": tied(nn.Linear, table)}


def _symmetric() -> dict[str, nn.Module]:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return {"a": layer}


LAYER, SQUARE = (lambda: {"a": nn.Linear(5, 3)}), (lambda: {"a": nn.Linear(5, 5)})
ATTENTION = lambda: {"a": nn.MultiheadAttention(4, 2, batch_first=True)}  # noqa: E731
LORA = lambda: {"a": nn.Linear(5, 4), "A": weight(2, 5), "B": weight(4, 2)}  # noqa: E731
PATTERNS: dict[str, tuple[Any, Any, tuple[Tensor, ...]]] = {
    "tied table": (_embedding, lambda m, i: m.o(m.e(i).mean(1).tanh()), (IDS,)),
    "a layer and its weight": (SQUARE, lambda m, x: F.linear(m.a(x).tanh(), m.a.weight), (ROWS,)),
    "a weight turned around": (LAYER, lambda m, x: m.a(x) @ m.a.weight, (ROWS,)),
    "half of a weight": (
        lambda: {"a": nn.Linear(5, 4)},
        lambda m, x: F.linear(x, m.a.weight[:2]) + F.linear(x, m.a.weight[2:]) ** 2,
        (ROWS,),
    ),
    "einsum twice": (
        lambda: {"w": weight(5, 5)},
        lambda m, x: torch.einsum(
            "bi,ij->bj", torch.einsum("bi,ij->bj", x, m.w).tanh(), m.w
        ),
        (ROWS,),
    ),
    "einsum of three": (
        lambda: {"w": weight(5, 5, 3)},
        lambda m, x: torch.einsum("bi,ijk,bj->bk", x, m.w, x),
        (ROWS,),
    ),
    "weight norm": (
        lambda: {"a": parametrizations.weight_norm(nn.Linear(5, 3))},
        lambda m, x: m.a(x),
        (ROWS,),
    ),
    "symmetric": (_symmetric, lambda m, x: m.a(m.a(x).tanh()), (ROWS,)),
    "low rank": (LORA, lambda m, x: m.a(x) + F.linear(F.linear(x, m.A), m.B), (ROWS,)),
    "low rank, merged": (LORA, lambda m, x: F.linear(x, m.a.weight + m.B @ m.A, m.a.bias), (ROWS,)),
    "a module twice": (
        lambda: {"a": nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))},
        lambda m, x: m.a(m.a(x)),
        (ROWS,),
    ),
    "a layer at two shapes": (
        lambda: {"a": nn.Linear(4, 4)},
        lambda m, x: m.a(x).mean(1) + m.a(x[:, 0]),
        (STEPS,),
    ),
    "bag": (lambda: {"e": nn.EmbeddingBag(11, 4)}, lambda m, i: m.e(i), (IDS,)),
    "bag with offsets": (
        lambda: {"e": nn.EmbeddingBag(11, 4)},
        lambda m, i: m.e(i.reshape(-1), torch.arange(0, i.numel(), i.shape[1])),
        (IDS,),
    ),
    "LSTM, packed": (
        lambda: {"r": nn.LSTM(4, 3, bidirectional=True, batch_first=True)},
        packed,
        (STEPS, LENGTHS),
    ),
    "GRU, packed": (
        lambda: {"r": nn.GRU(4, 3, 2, bidirectional=True, batch_first=True)},
        packed,
        (STEPS, LENGTHS),
    ),
    "trained first state": (
        lambda: {"r": nn.GRU(4, 3, batch_first=True), "h": weight(1, 1, 3)},
        lambda m, x: m.r(x, m.h.expand(1, len(x), 3).contiguous())[0].sum(1),
        (STEPS,),
    ),
    "cells": (lambda: {"r": nn.LSTMCell(4, 3)}, cells, (STEPS,)),
    "attention, masked": (
        ATTENTION,
        lambda m, x, mask: m.a(x, x, x, key_padding_mask=mask)[0].mean(1),
        (STEPS, MASK),
    ),
    "encoder, masked": (
        lambda: {"a": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)},
        lambda m, x, mask: m.a(x, src_key_padding_mask=mask).mean(1),
        (STEPS, MASK),
    ),
    "functional call": (LAYER, swapped, (ROWS,)),
    "functional call, own weights": (
        LAYER,
        lambda m, x: torch.func.functional_call(m.a, dict(m.a.named_parameters()), (x,)),
        (ROWS,),
    ),
    "a token before the others": (
        lambda: {"c": weight(1, 1, 4), "a": nn.Linear(4, 3)},
        lambda m, x: m.a(torch.cat([m.c.expand(len(x), 1, 4), x], 1)).mean(1),
        (STEPS,),
    ),
    "a kernel turned around": (
        lambda: {"a": nn.Conv1d(4, 4, 3, padding=1)},
        lambda m, x: F.conv_transpose1d(m.a(x.mT), m.a.weight, padding=1).mean(2),
        (STEPS,),
    ),
    "rows of a table": (
        lambda: {"w": weight(11, 3)},
        lambda m, i: m.w[i[:, 0]] * m.w[i[:, 1]],
        (IDS,),
    ),
    "one weight for each example": (
        lambda: {"w": weight(4, 3)},
        lambda m, x: torch.bmm(x, m.w.expand(len(x), 4, 3)).mean(1),
        (STEPS,),
    ),
    "weights made of the example": (
        lambda: {"a": nn.Linear(5, 20)},
        lambda m, x: torch.bmm(m.a(x).view(-1, 4, 5), x[:, :, None])[:, :, 0],
        (ROWS,),
    ),
    "checkpoint": (
        SQUARE,
        lambda m, x: m.a(
            torch.utils.checkpoint.checkpoint(lambda v: m.a(v).tanh() * 2, x, use_reentrant=False)
        ),
        (ROWS,),
    ),
}  # fmt: skip


def losses(model: nn.Module, *given: Tensor) -> Tensor:
    return model(*given).square().flatten(1).sum(1) * 0.3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["auto", "two-pass"])
@pytest.mark.parametrize("name", PATTERNS)
def test_right_or_refused(name: str, method: str) -> None:
    parts, run, given = PATTERNS[name]
    torch.manual_seed(1)
    model = Model(parts(), run)
    truth = loop_clipped_sum(copy.deepcopy(model), losses, FlatClip(0.3), *given)
    try:
        found = Gradients(model, method).clipped_sum(losses(model, *given), FlatClip(0.3)).sums
    except TightropeError:
        return
    mine, right = (torch.cat([t.double().flatten() for t in sums]) for sums in (found, truth))
    assert float((mine - right).norm()) <= 2e-3 * float(right.norm())


def test_a_weight_that_was_exchanged_is_refused() -> None:
    """A rule for the layer's own weight was applied to twice the weight: wrong by 17 %."""
    for exchange in (swapped, assigned):
        model = Model(LAYER(), exchange)
        engine = Gradients(model)
        with pytest.raises(ModelNotPrivate, match="ran with another `weight`"):
            engine.clipped_sum(losses(model, ROWS), FlatClip(0.3))


def assigned(model: Any, x: Tensor) -> Tensor:
    model.a.weight = nn.Parameter(model.a.weight.detach().clone())
    return model.a(x)
