"""Clipped sums of the proved graph are those of the slow loop in float64, operator by operator.

Layers with all their options are in test_layer_grid.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.slow_gradients import loop_clipped_sum, loop_gradients
from torch import Tensor, nn
from torch.nn import functional

from tightrope.train.clip import AutomaticClip, FlatClip, PerLayerClip
from tightrope.train.executors.plain import Plain
from tightrope.train.program import capture, prove

ROWS = 5
Loss = Callable[..., Tensor]


def squares(model: nn.Module, *batch: Tensor) -> Tensor:
    out = model(*batch)
    out = out[0] if isinstance(out, tuple) else out
    return out.flatten(1).square().mean(1)


class Apply(nn.Module):
    """Modules, and a forward pass of them."""

    def __init__(self, run: Callable[..., Tensor], *modules: nn.Module, **own: Tensor) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(modules)
        for name, value in own.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *batch: Tensor) -> Tensor:
        return self.run(self, *batch)


def normal(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape)


def words(*shape: int, most: int = 9) -> Tensor:
    return torch.randint(0, most, (ROWS, *shape))


def conv(layer: nn.Module, *shape: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return layer, (normal(*shape),)


def tied() -> nn.Module:
    table = nn.Embedding(9, 4)
    return Apply(lambda m, ids: m.parts[0](ids) @ m.parts[0].weight.t(), table)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    model[2].requires_grad_(False)
    model[0].bias.requires_grad_(False)
    return model


def standardised(m: Apply, x: Tensor) -> Tensor:
    w = m.parts[0].weight
    flat = w.flatten(1)
    w = (w - flat.mean(1)[:, None, None, None]) / flat.std(1)[:, None, None, None]
    return functional.conv2d(x, w, m.parts[0].bias)


def hyper(m: Apply, x: Tensor) -> Tensor:
    """One network makes the scale and the shift of another."""
    scale, shift = m.parts[0](x).chunk(2, 1)
    return m.parts[1](x) * scale + shift


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "linear": lambda: (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), (normal(4),)),
    "linear, positions": lambda: (nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (normal(7, 4),)),
    "linear on transposed": lambda: (
        Apply(lambda m, x: m.parts[0](x.transpose(0, 1)).transpose(0, 1), nn.Linear(4, 3)),
        (normal(6, 4),),
    ),
    "linear, examples folded": lambda: (
        Apply(lambda m, x: m.parts[0](x.flatten(0, 1)).view(len(x), 6, 3), nn.Linear(4, 3)),
        (normal(6, 4),),
    ),
    "linear used twice": lambda: (
        Apply(lambda m, x: m.parts[0](m.parts[0](x).tanh()), nn.Linear(4, 4)), (normal(4),)
    ),
    "addmm": lambda: (
        Apply(lambda m, x: torch.addmm(m.b, x, m.w), w=torch.randn(4, 3), b=torch.randn(3)),
        (normal(4),),
    ),
    "matmul": lambda: (Apply(lambda m, x: x @ m.w, w=torch.randn(4, 3)), (normal(6, 4),)),
    "matmul by a vector": lambda: (Apply(lambda m, x: x @ m.w, w=torch.randn(4)), (normal(6, 4),)),
    "weights on the left": lambda: (
        Apply(lambda m, x: (m.w @ x.t()).t(), w=torch.randn(3, 4)), (normal(4),)
    ),
    "einsum": lambda: (
        Apply(lambda m, x: torch.einsum("btd,dk->btk", x, m.w), w=torch.randn(4, 3)),
        (normal(6, 4),),
    ),
    "einsum of heads": lambda: (
        Apply(lambda m, x: torch.einsum("bthd,hdk->bthk", x, m.w), w=torch.randn(2, 4, 3)),
        (normal(6, 2, 4),),
    ),
    "conv2d": lambda: conv(nn.Conv2d(2, 4, 3, stride=2, padding=1), 2, 7, 7),
    "conv2d, examples folded": lambda: (
        Apply(lambda m, x: m.parts[0](x.flatten(0, 1)).view(len(x), -1), nn.Conv2d(2, 3, 3)),
        (normal(3, 2, 5, 5),),
    ),
    "embedding, long table": lambda: (nn.Embedding(50, 4, padding_idx=1), (words(12, most=5),)),
    "tied head": lambda: (tied(), (words(6),)),
    "places of a longer table, some of them twice": lambda: (
        Apply(
            lambda m, ids: m.parts[0](ids) * m.parts[1](torch.arange(ids.shape[1]) // 2).tanh(),
            nn.Embedding(9, 4), nn.Embedding(20, 4, padding_idx=1),
        ),
        (words(6),),
    ),
    "positions": lambda: (
        Apply(
            lambda m, ids: m.parts[0](ids) + m.parts[1](torch.arange(ids.shape[1])),
            nn.Embedding(9, 4), nn.Embedding(8, 4),
        ),
        (words(6),),
    ),
    "layer norm": lambda: (nn.LayerNorm((3, 4)), (normal(6, 3, 4),)),
    "batch norm in evaluation": lambda: (nn.BatchNorm2d(3).eval(), (normal(3, 4, 4),)),
    "lstm": lambda: (nn.LSTM(3, 4, batch_first=True), (normal(5, 3),)),
    "attention": lambda: (
        Apply(lambda m, x: m.parts[0](x, x, x)[0], nn.MultiheadAttention(4, 2, batch_first=True)),
        (normal(6, 4),),
    ),
    "weight norm": lambda: (
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (normal(4),)
    ),
    "standardised weights": lambda: (
        Apply(standardised, nn.Conv2d(2, 3, 3)), (normal(2, 5, 5),)
    ),
    "one number over positions": lambda: (
        Apply(lambda m, x: (x * m.scale + m.shift) / m.width,
              scale=torch.randn(1), shift=torch.randn(6, 1), width=torch.rand(4) + 1),
        (normal(6, 4),),
    ),
    "hypernetwork": lambda: (Apply(hyper, nn.Linear(4, 6), nn.Linear(4, 3)), (normal(4),)),
    "class token": lambda: (
        Apply(lambda m, x: torch.cat([m.token.expand(len(x), -1, -1), m.parts[0](x)], 1),
              nn.Linear(4, 4), token=torch.randn(1, 1, 4)),
        (normal(6, 4),),
    ),
    "frozen parts": lambda: (frozen(), (normal(4),)),
    "unused weights": lambda: (
        Apply(lambda m, x: m.parts[0](x), nn.Linear(4, 3), nn.Linear(4, 3)), (normal(4),)
    ),
    "weights used only detached": lambda: (
        Apply(lambda m, x: m.parts[0](x) + m.parts[1].weight.detach().sum(),
              nn.Linear(4, 3), nn.Linear(4, 3)),
        (normal(4),),
    ),
    "weights under where": lambda: (
        Apply(lambda m, x: torch.where(x > 0, m.w, x), w=torch.randn(4)), (normal(6, 4),)
    ),
    "softmax of weights": lambda: (
        Apply(lambda m, x: x @ m.w.softmax(0), w=torch.randn(4, 3)), (normal(4),)
    ),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    return model, batch


def plain(
    model: nn.Module, batch: tuple[Any, ...], loss: Loss = squares, size: int = ROWS
) -> Plain:
    program = capture(model, loss, batch, rows=size)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return Plain(program, prove(program, size), size, parameters)


def wide(values: Any) -> Any:
    return values.double() if values.is_floating_point() else values


def distance(found: Any, wanted: Any) -> float:
    pairs = list(zip(found, wanted, strict=True))
    off = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for b in wanted)
    return float((off / max(size, 1e-30)) ** 0.5)


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_slow_loop(name: str) -> None:
    """And the sum of one example alone is never longer than its norm."""
    model, batch = made(name)
    executor = plain(model, batch)
    exact = copy.deepcopy(model).double()
    for clip in (FlatClip(1e-2), FlatClip(1e3)):
        found, losses = executor.clipped_sum(batch, clip, chain=100)
        wanted = loop_clipped_sum(exact, squares, clip, *map(wide, batch))
        assert distance(found.sums, wanted) < (2e-4 if clip.clip_norm < 1 else 3e-6)
        assert [s.shape for s in found.sums] == [w.shape for w in wanted]
    assert torch.allclose(losses.double(), squares(exact, *map(wide, batch)), rtol=1e-4)
    for row in range(ROWS):
        one = tuple(x[row : row + 1] for x in batch)
        found, _ = executor.clipped_sum(one, FlatClip(1e3), chain=100)
        length = sum(float(s.double().square().sum()) for s in found.sums) ** 0.5
        assert length <= float(found.norms[0]) * (1 + 2**-11)


@pytest.mark.parametrize("name", ["linear", "conv2d", "tied head", "attention"])
def test_other_clips(name: str) -> None:
    model, batch = made(name)
    executor, exact = plain(model, batch), copy.deepcopy(model).double()
    for clip in (PerLayerClip(0.1), AutomaticClip(0.1)):
        found, _ = executor.clipped_sum(batch, clip, chain=100)
        wanted = loop_clipped_sum(exact, squares, clip, *map(wide, batch))
        assert distance(found.sums, wanted) < 1e-3


def test_filling_up_changes_nothing() -> None:
    model, (x,) = made("linear")
    executor = plain(model, (x,), size=8)
    found, losses = executor.clipped_sum((x,), FlatClip(0.1), chain=100)
    again, _ = executor.clipped_sum((torch.cat([x, x[:3]]),), FlatClip(0.1), chain=100)
    alone, _ = executor.clipped_sum((x[:3],), FlatClip(0.1), chain=100)
    assert found.examples == ROWS
    assert losses.shape == found.norms.shape == (ROWS,)
    assert found.factors.shape == (1, ROWS)
    for a, b, c in zip(found.sums, again.sums, alone.sums, strict=True):
        assert torch.allclose(a, b - c, atol=1e-6)
    empty, losses = executor.clipped_sum((x[:0],), FlatClip(0.1), chain=100)
    assert (empty.examples, losses.shape) == (0, (0,))
    assert all(not s.any() for s in empty.sums)


@pytest.mark.parametrize("name", ["linear", "linear, positions", "conv2d", "layer norm", "lstm"])
def test_rows_that_are_not_finite_count_as_nothing(name: str) -> None:
    model, (x,) = made(name)
    executor, clip = plain(model, (x,), size=8), FlatClip(0.1)
    for row, bad in ((0, torch.nan), (3, torch.inf)):  # row 0 also fills a batch up
        broken = x.clone()
        broken[row] = bad
        found, _ = executor.clipped_sum((broken,), clip, chain=100)
        others = torch.cat([x[:row], x[row + 1 :]])
        wanted, _ = executor.clipped_sum((others,), clip, chain=100)
        assert found.nonfinite == 1
        assert found.norms[row] == torch.inf
        assert found.factors[0, row] == 0
        for a, b in zip(found.sums, wanted.sums, strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_weights_are_read_as_they_are_now() -> None:
    model, batch = made("linear")
    executor, clip = plain(model, batch), FlatClip(10.0)
    executor.clipped_sum(batch, clip, chain=100)
    with torch.no_grad():
        model[0].weight.mul_(2)
    model[2].weight = nn.Parameter(model[2].weight.detach() * 3)
    found, _ = executor.clipped_sum(batch, clip, chain=100)
    wanted = loop_clipped_sum(model, squares, clip, *batch)
    assert distance(found.sums, wanted) < 1e-6


def test_each_loss_trains_its_own_parameters() -> None:
    """Two players: each loss goes back through both networks, to the weights of its own."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"g": nn.Linear(3, 4), "d": nn.Linear(4, 1)})

    def loss(model: nn.ModuleDict, x: Tensor, z: Tensor) -> dict[str, Tensor]:
        made = model["g"](z).tanh()
        return {
            "d": functional.softplus(-model["d"](x) + model["d"](made.detach())).squeeze(1),
            "g": functional.softplus(-model["d"](made)).squeeze(1),
        }

    batch = (normal(4), normal(3))
    program = capture(model, loss, batch, rows=ROWS)
    groups = {name: list(model[name].parameters()) for name in ("d", "g")}
    executor = Plain(program, prove(program, ROWS), ROWS, groups)
    clip = FlatClip(0.3)
    found, losses = executor.clipped_sum(batch, clip, chain=100)
    grads = []
    for name in ("d", "g"):
        model.requires_grad_(False)
        model[name].requires_grad_(True)
        grads += loop_gradients(model, lambda m, *b, n=name: loss(m, *b)[n], *batch)
    squared = torch.stack([g.flatten(1).square().sum(1) for g in grads])
    wanted = [torch.tensordot(clip.factors(squared)[0], g, dims=1) for g in grads]
    assert losses.shape == (ROWS, 2)
    assert distance(found.sums, wanted) < 1e-6


@pytest.mark.parametrize("name", ["linear, positions", "conv2d", "tied head", "attention"])
def test_half_precision(name: str) -> None:
    """Weights in bfloat16: sums come in float32, no further from the truth than one gradient is."""
    model, batch = made(name)
    model = model.bfloat16()
    batch = tuple(x.bfloat16() if x.is_floating_point() else x for x in batch)
    found, _ = plain(model, batch).clipped_sum(batch, FlatClip(0.01), chain=100)
    exact = copy.deepcopy(model).double()
    wanted = loop_clipped_sum(exact, squares, FlatClip(0.01), *map(wide, batch))
    assert all(s.dtype is torch.float32 for s in found.sums)
    assert distance(found.sums, wanted) < 0.05
