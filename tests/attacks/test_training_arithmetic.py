"""Hole A1: sums of clipped gradients that move by more than one record may.

The attack (Casacuberta et al. 2022, CCS): small rows that add to 0 drift in float32, above a power
of two in another direction than below it, so that one record decides where the sum goes.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attacks.conftest import executor_of
from torch import Tensor, nn

from tightrope.train import CyclicSampler, FlatClip, GaussianNoise, PerLayerClip, noisy_sgd
from tightrope.train.arithmetic import bounded
from tightrope.train.gradients.batch import combine
from tightrope.train.gradients.forms import Dense, TableRows, evenly, slices, sum_of_parts
from tightrope.train.gradients.outer import Outer, RankOne
from tightrope.train.gradients.rounding import LARGEST_RHO, gamma, longest_chain, rho_for

CLIP = 2.0


class Seen:
    """Noise of zero that keeps the sums as they come, and the sensitivity that is charged."""

    splits_over_ranks = True
    noise_multiplier, private, description = 1.0, True, "none"

    def __init__(self) -> None:
        self.sums: list[list[Tensor]] = []
        self.charged: list[float] = []

    def add_(self, sums: Any, sensitivity: float) -> None:
        self.sums.append([total.double().clone() for total in sums])
        self.charged.append(sensitivity)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class OneNumber(nn.Module):
    """The gradient of an example is its only feature."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1)


def crafted(rows: int) -> Tensor:
    """Ones up to just below a power of two, then triples that add to 0: sums drift down, above up.

    Below the power +1.4u, -0.7u, -0.7u are rounded to +u, -u, -u; above it to +2u, 0, 0.
    """
    power = 2 ** round(math.log2(rows / 10))
    u = power * 2.0**-24  # a unit in the last place just below the power of two
    ones = torch.ones(power - 1)
    triple = torch.tensor([1.4 * u, -0.7 * u, -0.7 * u])
    rest = triple.repeat((rows - len(ones) - 1) // 3)
    return torch.cat([ones, torch.tensor([0.5]), rest])[:, None]


def replaced(x: Tensor) -> Tensor:
    other = x.clone()
    other[x.flatten() == 0.5] = 1.0
    return other


def output(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


def released(x: Tensor, **how: Any) -> tuple[Tensor, float]:
    """What the noise of one full-batch step was added to, and the sensitivity charged."""
    seen = Seen()
    run = noisy_sgd(
        OneNumber(), x, output, learning_rate=0.1, sampler=CyclicSampler(1),
        clip=FlatClip(CLIP), noise=seen, expected_batch_size=len(x), steps=1, **how,
    )  # fmt: skip
    run.take_step()
    run.close()
    return torch.cat([total.flatten() for total in seen.sums[0]]), seen.charged[0]


@pytest.mark.parametrize("rows", [24_576, pytest.param(163_840, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", [{}, {"micro_batch": 4096}])
def test_crafted_rows_move_the_sum_by_no_more_than_is_charged(rows, how):
    x = crafted(rows)
    first, charged = released(x, **how)
    second, _ = released(replaced(x), **how)
    assert float((first - second).norm()) <= charged
    assert charged <= CLIP * (1 + LARGEST_RHO)


def test_crafted_rows_in_any_order(rows=24_576):
    x = crafted(rows)
    exact = float(x.double().sum())
    for order in (torch.arange(len(x)), torch.arange(len(x)).flip(0), torch.randperm(len(x))):
        found, charged = released(x[order])
        assert abs(float(found) - exact) <= (charged - CLIP) / 2


@pytest.mark.parametrize("examples", [1, 2, 16, 256, 289, 512, 4096, 16_000, 17_000, 10**6, 10**9])
@pytest.mark.parametrize("rho", [1e-2, 1e-3, 1e-5])
def test_the_longest_chain_is_the_longest_that_rho_allows(examples, rho):
    chain = longest_chain(examples, rho)
    if chain:
        assert 2 * gamma(chain + 5) * examples <= rho
    assert 2 * gamma(chain + 6) * examples > rho


@pytest.mark.parametrize("examples", [0.1, 1, 16, 256, 4096, 1e6, 1e12])
def test_rho_allows_one_chain_for_nearly_every_batch_and_is_never_large(examples):
    rho = rho_for(examples)
    assert 0 < rho <= LARGEST_RHO
    if rho < LARGEST_RHO:
        reach = math.ceil(examples + 6 * math.sqrt(examples))
        assert longest_chain(reach, rho) >= reach - 1


def drifting(examples: int, width: int) -> Tensor:
    """(n, width) contributions of norm at most one whose float32 sum drifts as far as it can."""
    start = torch.zeros(examples, width)
    start[: examples // 2] = 1 / math.sqrt(width)
    reached = examples / 2 / math.sqrt(width)
    ulp = 2.0 ** (math.floor(math.log2(reached)) - 23)
    start[examples // 2 :] = 0.51 * ulp  # rounded up each time
    return start


FORMS = {
    "written out": lambda x: Dense(x),
    "outer product": lambda x: RankOne(x, torch.ones(len(x), 1)),
    "positions": lambda x: Outer(x[:, None, :].repeat(1, 3, 1) / 3, torch.ones(len(x), 3, 1)),
    "table": lambda x: TableRows(torch.zeros(len(x), 1, dtype=torch.long), x[:, None], 2),
    "tied table": lambda x: combine(
        [
            TableRows(torch.zeros(len(x), 1, dtype=torch.long), x[:, None] / 2, 2),
            Outer(x[:, None] / 2, torch.tensor([1.0, 0.0]).expand(len(x), 1, 2)),
        ]
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_adds_within_its_bound(name):
    """|released - sum of the stored contributions| <= gamma(k + 5) n C <= rho C / 2."""
    for examples in (700, 3000, 20_000):
        form, factors = FORMS[name](drifting(examples, 4)), torch.ones(examples)
        exact = form.dense().double().sum(0)
        total = form.weighted_sum(factors, longest_chain(examples, LARGEST_RHO)).double()
        assert float((total - exact).norm()) <= LARGEST_RHO / 2


def test_one_long_chain_would_be_noticed():
    """The rows above do break a bound of the same size where chains are too long."""
    x = drifting(20_000, 4)
    in_order = torch.zeros(4)
    for row in x:
        in_order += row
    assert float((in_order.double() - x.double().sum(0)).norm()) > LARGEST_RHO


def cancelling(positions: int, width: int, size: float) -> tuple[Tensor, Tensor]:
    """One example whose positions cancel to almost nothing."""
    torch.manual_seed(0)
    a = torch.randn(1, positions, width) * size
    g = torch.randn(1, positions, width)
    half = positions // 2
    a[:, half:], g[:, half:] = a[:, :half], -g[:, :half]
    g[:, 0] *= 1 + 1e-6
    return a, g


@pytest.mark.parametrize(("positions", "width"), [(2, 400), (8, 300), (16, 200)])
def test_cancellation_inside_an_example_stays_inside_it(positions, width):
    """The norm bounds what the products write, and a batch of such examples adds up exactly."""
    a, g = cancelling(positions, width, 1e3)
    n = 64
    form = Outer(a.repeat(n, 1, 1), g.repeat(n, 1, 1))
    assert not form.instantiated
    bound = form.squared_norms().double().sqrt()
    for _, part in form.parts():
        assert bool((part.double().flatten(1).norm(dim=1) <= bound.max()).all())
    factors = FlatClip(CLIP).factors(form.squared_norms()[None])[0].float()
    one = Outer(a, g).weighted_sum(factors[:1], 1).double()
    total = form.weighted_sum(factors, longest_chain(n, LARGEST_RHO)).double()
    assert float(one.norm()) <= CLIP
    assert float((total - n * one).norm()) <= LARGEST_RHO / 2 * CLIP


def test_reads_and_products_that_cancel_are_added_before_examples_are():
    """A tied table whose two uses cancel within each example."""
    n, width = 2000, 4
    big = torch.full((n, 1, width), 1e4)
    rows = TableRows(torch.zeros(n, 1, dtype=torch.long), -big * (1 - 1e-5), 2)
    tied = combine([rows, Outer(big, torch.tensor([1.0, 0.0]).expand(n, 1, 2))])
    factors = FlatClip(CLIP).factors(tied.squared_norms()[None])[0].float()
    total = tied.weighted_sum(factors, longest_chain(n, LARGEST_RHO)).double()
    exact = (tied.dense().double() * factors.double()[:, None, None]).sum(0)
    assert float((total - exact).norm()) <= LARGEST_RHO / 2 * CLIP
    assert float(exact.norm()) <= n * CLIP


def test_norms_that_underflow_do_not_hide_a_contribution():
    """Inputs of 1e19 and output gradients of 1e-23: the square of the latter is lost in float32."""
    model = nn.Linear(4, 3, bias=False)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * 1e-23).flatten(1).sum(1)

    for shape in ((2, 4), (2, 5, 4)):
        x = torch.full(shape, 3e18)
        batch, _ = executor_of(model, loss, x).clipped_sum((x,), FlatClip(1e-6), 2)
        norm = math.sqrt(sum(float(total.double().square().sum()) for total in batch.sums))
        assert 0 < norm <= 2 * 1e-6


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.cells = nn.Embedding(50, 5), nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cells(self.tokens(ids))[0][:, -1])


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1)


NETWORKS = {
    "convolutional": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        torch.randn(96, 1, 8, 8),
    ),
    "dense": lambda: (
        nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(96, 9)
    ),
    "recurrent": lambda: (Recurrent(), torch.randint(0, 50, (96, 12))),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_orders_splits_and_threads_agree_within_rho(name):
    torch.manual_seed(1)
    model, x = NETWORKS[name]()
    executor, rho = executor_of(model, squares, x), rho_for(len(x))
    chain, threads = longest_chain(len(x), rho), torch.get_num_threads()

    def total(clip: Any, order: Tensor, sizes: list[int]) -> Tensor:
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in executor.parameters]
        for part in torch.split(order, sizes):
            batch, _ = executor.clipped_sum((x[part],), clip, chain)
            for mine, new in zip(sums, batch.sums, strict=True):
                mine += new
        return torch.cat([s.flatten() for s in sums])

    for clip in (FlatClip(0.1), PerLayerClip(0.1)):
        first = total(clip, torch.arange(96), [96])
        for order, sizes in itertools.product(
            (torch.arange(96).flip(0), torch.randperm(96)), ([32] * 3, [1, 2, 93])
        ):
            torch.set_num_threads(3 - torch.get_num_threads() % 2)
            assert float((total(clip, order, sizes) - first).norm()) <= rho * clip.sensitivity
    torch.set_num_threads(threads)


@pytest.mark.parametrize("expected", [4, 50_000])
def test_the_charged_sensitivity_scales_the_noise_and_is_on_the_certificate(expected):
    run = noisy_sgd(
        OneNumber(), torch.randn(8, 1), output, learning_rate=0.1, sampler=CyclicSampler(2),
        clip=FlatClip(0.5), noise=GaussianNoise(1.0), expected_batch_size=expected, steps=2,
    )  # fmt: skip
    assert run.sensitivity_charged == 0.5 * (1 + rho_for(expected))
    assert len(list(run)) == 2
    settings = run.certificate(1e-5)["run"]["settings"]
    assert settings["arithmetic"] == "bounded"
    assert settings["rho"] == rho_for(expected)
    assert settings["sensitivity_charged"] == run.sensitivity_charged


@given(count=st.integers(1, 5000), most=st.integers(1, 6000))
def test_products_come_in_parts_of_one_size_where_that_can_be(count, most):
    """What is left over for the end would meet another kernel on a GPU."""
    size = evenly(count, most)
    assert 1 <= size <= max(most, 1)
    if any(count % s == 0 for s in range(most // 4 + 1, min(count, most) + 1)):
        assert count % size == 0


@pytest.mark.parametrize("examples", [1, 16, 128, 10_000])
def test_on_a_gpu_rho_leaves_room_for_kernels(examples):
    gpu, cpu = bounded(examples, "cuda"), bounded(examples)
    assert gpu.rho == LARGEST_RHO >= cpu.rho == rho_for(examples)
    assert gpu.chain(examples, 1) >= cpu.chain(examples, 1)  # of which the proof takes its part


@pytest.mark.parametrize("chain", [0, 10, 1023, 1024])
@pytest.mark.parametrize("size", [1, 7, 600])
def test_gradients_that_come_in_parts_are_added_in_chains_no_longer_than_allowed(
    chain: int, size: int
) -> None:
    values = torch.full((1024, 3), 2.0**-25)  # each is lost beside the first one
    values[0] = 1.0
    parts = ((part, values[part]) for part in slices(len(values), size))
    found = sum_of_parts(parts, torch.ones(len(values)), chain)
    exact = values.double().sum(0)
    assert ((found - exact).abs() <= gamma(chain + 5) * exact).all()
