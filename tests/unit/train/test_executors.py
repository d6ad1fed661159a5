"""Every executor gives the plain executor's sums; those without a proof, the slow loop's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.slow_gradients import loop_clipped_sum
from torch import Tensor, nn
from torch.nn import functional

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import FlatClip, PerLayerClip
from tightrope.train.executors.compare import ConstantDraws, compare
from tightrope.train.executors.compiled import Compiled
from tightrope.train.executors.cuda_graph import CudaGraph
from tightrope.train.executors.plain import Plain
from tightrope.train.executors.strict import ROWS, Strict
from tightrope.train.executors.unproved import Mapped, OneAtATime
from tightrope.train.noise import BOUND, as_values
from tightrope.train.program import NotCaptured, capture, prove

SIZE, CLIP = 6, FlatClip(0.1)
Batch = tuple[Tensor, ...]


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y, reduction="none")


def network(*, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(dropout),
        nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip


def data(rows: int = SIZE) -> Batch:
    torch.manual_seed(1)
    return torch.randn(rows, 1, 4, 4), torch.randint(0, 3, (rows,))


def weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def proved(kind: Any, model: nn.Module, **more: Any) -> Any:
    program = capture(model, loss, data(), rows=SIZE)
    return kind(program, prove(program, SIZE), SIZE, weights(model), **more)


def strict(model: nn.Module) -> Strict:
    program = capture(model, loss, data(ROWS), rows=ROWS)
    seeds = itertools.count(7)
    return Strict(program, prove(program, ROWS), SIZE, weights(model), lambda: next(seeds))


def near(found: Any, wanted: Any, rtol: float = 1e-5) -> bool:
    off = sum(float((a - b).double().square().sum()) for a, b in zip(found, wanted, strict=True))
    return off**0.5 <= rtol * sum(float(b.double().square().sum()) for b in wanted) ** 0.5


MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "plain": lambda model: proved(Plain, model),
    "compiled": lambda model: proved(Compiled, model),
    "vmap": lambda model: Mapped(model, loss, data(), SIZE, weights(model)),
    "one at a time": lambda model: OneAtATime(model, loss, SIZE, weights(model)),
}


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("clip", [CLIP, PerLayerClip(0.1)])
def test_sums_of_any_number_of_rows(how: str, clip: Any) -> None:
    model = network()
    executor = MAKERS[how](model)
    assert executor.how == how
    for rows in (SIZE, 4, 1, 0):
        batch = tuple(x[:rows] for x in data())
        found, losses = executor.clipped_sum(batch, clip, chain=100)
        assert near(found.sums, loop_clipped_sum(model, loss, clip, *batch), 2e-4)
        assert torch.allclose(losses, loss(model, *batch), atol=1e-6)
        assert found.examples == rows
        assert found.norms.shape == (rows,)


@pytest.mark.parametrize("how", MAKERS)
def test_rows_that_are_not_finite(how: str) -> None:
    model = network()
    executor = MAKERS[how](model)
    x, y = data()
    broken = x.clone()
    broken[0] = torch.nan
    found, _ = executor.clipped_sum((broken[:4], y[:4]), CLIP, chain=100)
    wanted, _ = executor.clipped_sum((x[1:4], y[1:4]), CLIP, chain=100)
    assert found.nonfinite == 1
    assert found.norms[0] == torch.inf
    assert near(found.sums, wanted.sums)


@pytest.mark.parametrize("how", MAKERS)
def test_too_many_rows_are_refused(how: str) -> None:
    with pytest.raises(InvalidInput, match="up to 6 rows"):
        MAKERS[how](network()).clipped_sum(data(7), CLIP, chain=100)


def test_a_recorded_step_gives_the_same(cpu_graphs: Any) -> None:
    """Not compiled: the CPU's double of a graph records operators, and no compiled kernels."""
    model = network()
    plain, graph = proved(Plain, model), proved(CudaGraph, model, compiled=False)
    x, y = data()
    broken = x.clone()
    broken[1] = torch.nan
    nothing = torch.full_like(x, torch.nan)
    for batch in ((x, y), (x[:4], y[:4]), (broken, y), (nothing, y), (x, y), (x[:0], y[:0])):
        found, losses = graph.clipped_sum(batch, CLIP, chain=100)
        wanted, others = plain.clipped_sum(batch, CLIP, chain=100)
        assert near(found.sums, wanted.sums)
        assert torch.allclose(found.norms, wanted.norms)
        assert found.nonfinite == wanted.nonfinite
        assert torch.allclose(losses, others, equal_nan=True)
    assert cpu_graphs.graphs == 1
    model[7].weight.data.mul_(2)
    found, _ = graph.clipped_sum((x, y), CLIP, chain=100)
    assert near(found.sums, plain.clipped_sum((x, y), CLIP, chain=100)[0].sums)
    graph.clipped_sum((x, y), FlatClip(0.2), chain=100)
    assert cpu_graphs.graphs == 2


def test_strict_sums_are_whole_numbers_and_those_of_the_loop() -> None:
    model, batch = network(), data()
    executor = strict(model)
    found, losses = executor.clipped_sum(batch, CLIP, chain=1)
    assert all(s.dtype is torch.int64 for s in found.sums)
    values = as_values(found.sums, CLIP.sensitivity)
    assert near(values, loop_clipped_sum(model, loss, CLIP, *batch))
    assert torch.allclose(losses, loss(model, *batch), atol=1e-6)


def test_strict_contributions_depend_on_the_example_alone() -> None:
    """The sum of a batch is the sum of its examples, bit for bit, in any order."""
    model, (x, y) = network(), data()
    executor = strict(model)
    whole = executor.clipped_sum((x, y), CLIP, chain=1)[0].sums
    turned = executor.clipped_sum((x.flip(0), y.flip(0)), CLIP, chain=1)[0].sums
    parts = [executor.clipped_sum((x[i : i + 1], y[i : i + 1]), CLIP, 1)[0] for i in range(SIZE)]
    for row, total in enumerate(whole):
        assert torch.equal(total, turned[row])
        assert torch.equal(total, sum(part.sums[row] for part in parts))
    for part in parts:
        assert sum(int((s * s).sum()) for s in part.sums) <= BOUND**2


def test_vmap_draws_for_each_example() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + torch.rand_like(x)

    model = Noisy()
    executor = Mapped(model, lambda m, x: m(x).sum(1), (torch.zeros(4, 2),), 4, weights(model))
    _, losses = executor.clipped_sum((torch.zeros(4, 2),), CLIP, chain=100)
    assert len(set(losses.tolist())) == 4


def test_vmap_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = network(), data()
    values = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("tightrope.train.executors.unproved._MOST", 4 * values)
    executor = Mapped(model, loss, batch, SIZE, weights(model))
    found, losses = executor.clipped_sum(batch, CLIP, chain=100)
    assert near(found.sums, loop_clipped_sum(model, loss, CLIP, *batch), 2e-4)
    assert found.norms.shape == losses.shape == (SIZE,)


def test_vmap_refuses_values_read_in_python() -> None:
    model = network()
    with pytest.raises(NotCaptured, match="one at a time"):
        Mapped(model, lambda m, x, y: loss(m, x, y) * float(x.sum()), data(), SIZE, weights(model))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.linear(x)


def test_a_written_buffer_is_refused_without_a_proof() -> None:
    model, batch = Counter(), (torch.randn(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(NotCaptured, match="writes to a buffer"):
        Mapped(model, loss, batch, 4, weights(model))
    with pytest.raises(ModelNotPrivate, match="buffer"):
        OneAtATime(model, loss, 4, weights(model)).clipped_sum(batch, CLIP, chain=100)


@pytest.mark.parametrize("how", ["plain", "vmap"])
def test_the_check_at_the_start_passes_with_dropout(how: str) -> None:
    model = network(dropout=0.5)
    compare(MAKERS[how](model), model, loss, data(), list(model.parameters()))


def test_the_check_at_the_start_finds_another_program() -> None:
    model = network()
    executor = proved(Plain, model)
    with pytest.raises(InvalidInput, match="does not do what the loss does"):
        compare(
            executor, model, lambda m, x, y: loss(m, x, y) * 1.1, data(), list(model.parameters())
        )


def test_constant_draws_are_constant() -> None:
    x = torch.randn(3, 4)
    with ConstantDraws():
        a, b = functional.dropout(x, 0.5), functional.dropout(x, 0.5)
        assert torch.equal(a, b)
        assert torch.equal(torch.rand(3), torch.rand(3))


def test_attention_is_the_plain_formula_while_programs_are_compared() -> None:
    """Fused kernels draw inside, where constants cannot stand in for what they draw."""
    fused, model, (x, y) = [], nn.Linear(4, 8), (torch.randn(6, 5, 4), torch.zeros(6))

    def attends(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        q = model(x)[:, None]
        kept = functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        return kept.square().mean((1, 2, 3)) + 0 * y

    program = capture(model, attends, (x, y), rows=6)
    executor = Plain(program, prove(program, 6), 6, list(model.parameters()))

    def watched(*batch: Any) -> Tensor:
        fused.append(torch.backends.cuda.mem_efficient_sdp_enabled())
        return attends(*batch)

    compare(executor, model, watched, (x, y), list(model.parameters()))
    assert fused == [False] * 3
