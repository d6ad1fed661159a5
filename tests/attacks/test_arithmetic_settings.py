"""Siblings of hole A1: settings of PyTorch under which sums and norms would be computed otherwise.

Autocast around the step, lower precision of products, threads that share memory, scales and sizes
at the ends of float32: one example contributes at most the clip norm, and sums stay float32.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.attacks.conftest import executor_of
from torch import Tensor, nn

from tightrope.train import FlatClip
from tightrope.train.gradients.batch import combine
from tightrope.train.gradients.forms import (
    TableRows,
    chained_product,
    chained_total,
    scratch,
    scratch_scope,
)
from tightrope.train.gradients.outer import Outer
from tightrope.train.gradients.rounding import exact_products, gamma, precision_of_products

CPU = torch.device("cpu")


def distance(first: Any, second: Any) -> float:
    pairs = zip(first.sums, second.sums, strict=True)
    return math.sqrt(sum(float((a.double() - b.double()).square().sum()) for a, b in pairs))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "vectors": lambda: (nn.Linear(16, 8), torch.randn(64, 16)),
    "positions": lambda: (nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.randn(64, 5, 16)),
    "images": lambda: (nn.Conv2d(2, 4, 3), torch.randn(64, 2, 6, 6)),
    "recurrent": lambda: (Last(), torch.randn(64, 5, 3)),
}


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]


def in_bfloat16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x).float().flatten(1).square().sum(1)


def in_float32(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).flatten(1).square().sum(1)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("loss", [in_float32, in_bfloat16])
def test_a_step_inside_autocast_adds_in_float32_all_the_same(name, loss):
    torch.manual_seed(0)
    model, x = NETWORKS[name]()
    executor = executor_of(model, loss, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = executor.clipped_sum((x,), FlatClip(1.0), 64)
    outside, _ = executor.clipped_sum((x,), FlatClip(1.0), 64)
    assert all(total.dtype is torch.float32 for total in inside.sums)
    assert distance(inside, outside) == 0.0


def test_rows_inside_autocast_add_up(rows: int = 257):
    """In bfloat16 a sum of 256 ones and one more would stay where it is, or jump by two."""
    model, x = nn.Linear(1, 1, bias=False), torch.ones(rows, 1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).squeeze(1)

    found, _ = executor_of(model, loss, x).clipped_sum((x,), FlatClip(2.0), rows)
    assert float(found.sums[0]) == rows


WAYS = [(None, "medium"), (None, "high"), ("cuda", "tf32"), ("mkldnn", "bf16"), ("all", "tf32")]


@contextmanager
def lower_precision(backend: str | None, value: str) -> Iterator[None]:
    """As a user would ask for it: for all, by the old name, or for one backend by the new one."""
    before = precision_of_products()
    if backend is None:
        torch.set_float32_matmul_precision(value)
    elif backend == "all":
        torch.backends.fp32_precision = value
    else:
        getattr(torch.backends, backend).matmul.fp32_precision = value
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.fp32_precision = "none"
        torch.backends.cuda.matmul.fp32_precision = before[0]
        torch.backends.mkldnn.matmul.fp32_precision = before[1]


@pytest.fixture
def seen(monkeypatch) -> list[tuple[str, ...]]:
    """What precision was set whenever a product over examples or positions was computed."""
    found: list[tuple[str, ...]] = []

    def watched(kind: str) -> Callable[..., Tensor]:
        real = getattr(torch, kind)

        def call(*args: Any, **named: Any) -> Tensor:
            found.append(precision_of_products())
            return real(*args, **named)

        return call

    for kind in ("mm", "mv", "bmm"):
        monkeypatch.setattr(torch, kind, watched(kind))
    return found


@pytest.mark.parametrize(("backend", "value"), WAYS)
def test_products_whose_rounding_is_bounded_are_never_computed_in_less(seen, backend, value):
    """Also by the newer names of the setting, of which the older ones say nothing."""
    outer = Outer(torch.randn(3, 2, 64), torch.randn(3, 2, 64))
    assert not outer.instantiated
    with lower_precision(backend, value):
        asked = precision_of_products()
        outer.squared_norms()
        outer.weighted_sum(torch.ones(3), 20)
        chained_product(torch.randn(50, 3), torch.randn(50, 2), 20)  # shorter chains: float64
        chained_total(torch.randn(50, 3), torch.ones(50), 20)
        assert precision_of_products() == asked
    assert len(seen) >= 6
    assert all(now in ("none", "ieee", "highest") for each in seen for now in each)


def test_one_thread_does_not_put_the_precision_back_under_another():
    inside, leave = threading.Event(), threading.Event()
    seen: list[tuple[str, ...]] = []

    def other() -> None:
        inside.wait(10)
        with exact_products():
            seen.append(precision_of_products())

    thread = threading.Thread(target=other)
    with lower_precision(None, "medium"):
        thread.start()
        with exact_products():
            inside.set()
            leave.wait(0.1)
            assert not seen  # it waits, rather than count on what is about to be put back
        thread.join(10)
    assert seen == [("ieee", "ieee")]


def test_runs_in_two_threads_do_not_share_the_memory_of_their_gradients():
    """A sweep by a pool of threads: what one has free, the other may be using."""
    got: list[Tensor] = []
    first_has, first_ends = threading.Event(), threading.Event()

    def first() -> None:
        with scratch_scope():
            got.append(scratch((2**17,), torch.float32, CPU).fill_(1.0))
            first_has.set()
            first_ends.wait(10)

    thread = threading.Thread(target=first)
    with scratch_scope():
        thread.start()
        first_has.wait(10)
    with scratch_scope():
        scratch((2**17,), torch.float32, CPU).fill_(2.0)
    assert bool((got[0] == 1.0).all())
    first_ends.set()
    thread.join(10)


def test_a_scope_that_an_exception_left_open_takes_no_memory_of_others():
    def parts() -> Iterator[Tensor]:
        with scratch_scope():
            yield scratch((2**17,), torch.float32, CPU)

    left = parts()  # as a traceback keeps it
    with pytest.raises(KeyboardInterrupt), scratch_scope():
        next(left)
        raise KeyboardInterrupt
    with scratch_scope():
        mine = scratch((2**17,), torch.float32, CPU).fill_(1.0)
        left.close()
        with scratch_scope():
            scratch((2**17,), torch.float32, CPU).fill_(2.0)
        assert bool((mine == 1.0).all())


def test_a_norm_that_overflows_below_zero_is_not_taken_for_a_small_one():
    """It was: the example contributed 279 times the clip norm.

    Two positions that cancel, and a third; of all products only that of the first two overflows.
    """
    x, y = float.fromhex("0x1.6a0a9cp+32"), float.fromhex("0x1.6a0aa8p+32")
    p, q = float.fromhex("0x1.6a0930p+31"), float.fromhex("0x1.6a0924p+31")
    a, g = torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)
    a[0, :2, 0], g[0, :2, 0] = torch.tensor([x, -y]), torch.tensor([p, q])
    a[0, 2, 1], g[0, 2, 1] = 1e9, 1.5e10
    off = (a[0, 0, 0] * a[0, 1, 0]) * (g[0, 0, 0] * g[0, 1, 0])
    assert off == -torch.inf and (a * a).isfinite().all() and (g * g).isfinite().all()
    form = Outer(a, g)
    assert not form.instantiated
    true = float((g.double().transpose(1, 2) @ a.double()).norm())
    assert float(form.squared_norms().sqrt()) >= true


def test_reads_of_a_tied_table_are_bounded_before_they_cancel(monkeypatch):
    """Their squares may lack gamma(4096); what is left after cancellation is far smaller."""
    width = 64
    v = torch.randn(1, 1, width)
    c = torch.randn(width)
    rows = TableRows(torch.arange(width)[None], -c[None, :, None] * v, width)
    low = rows.squared_norms().double() * (1 - gamma(4096))
    monkeypatch.setattr(TableRows, "squared_norms", lambda self: low)
    left = torch.zeros(1, 1, width).index_fill_(2, torch.tensor(0), float(v.norm()) * 1e-3)
    tied = combine([rows, Outer(v + left, c[None, None])])
    exact = c[:, None].double() * left[0].double()
    assert float(tied.squared_norms().sqrt()) >= float(exact.norm())
