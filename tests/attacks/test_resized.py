"""Is an answer that changes with the size of the batch rounded otherwise, or does it follow it?"""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tightrope.errors import ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd
from tightrope.train.look import Look

HALVES = [
    "autocast",
    "autocast inside",
    "stored",
    "cast",
    "cast and no float64",
    "cast and asserted",
]


class Split(nn.Linear):
    """A product in two parts, as kernels do it, cut in a place that follows the number of rows."""

    def forward(self, x: Tensor) -> Tensor:
        k = self.in_features // (2 + len(x) % 2)
        first = linear(x[..., :k], self.weight[:, :k], self.bias)
        return first + linear(x[..., k:], self.weight[:, k:])


class Contrast(nn.Module):
    """One number for each example, a difference of larger ones."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat @ torch.linspace(-1, 1, flat.shape[1], dtype=flat.dtype)


class Inside(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(x).float()


class Cast(nn.Module):
    """Halves that the model asks for itself, and may count on."""

    def __init__(self, model: nn.Module, how: str) -> None:
        super().__init__()
        self.model, self.how = model, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "cast and no float64" and x.dtype is not torch.float32:
            raise ValueError("float32 is needed")
        weights = {name: p.bfloat16() for name, p in self.model.named_parameters()}
        if self.how == "cast and asserted":
            assert all(p.dtype is torch.bfloat16 for p in weights.values())
        return torch.func.functional_call(self.model, weights, x.bfloat16()).float()


class Follows(nn.Module):
    """Data that are multiplied by a power of the size, before the first layer."""

    def __init__(self, power: float, usual: int) -> None:
        super().__init__()
        self.layer, self.power, self.usual = nn.Linear(6, 4), power, usual

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * (len(x) / self.usual) ** self.power)


def one_number() -> nn.Module:
    return nn.Sequential(Split(40, 1), nn.LeakyReLU(), Contrast())


def deep() -> nn.Module:
    layers = [layer for _ in range(8) for layer in (Split(40, 40), nn.ReLU())]
    return nn.Sequential(*layers, Split(40, 1), nn.Flatten(), Contrast())


def grown(model: nn.Module, x: Tensor, precision: str = "float32") -> float | None:
    if precision == "stored":
        model, x = model.bfloat16(), x.bfloat16()
    if precision == "autocast inside":
        model = Inside(model)
    if precision.startswith("cast"):
        model = Cast(model, precision)
    outside = torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()
    with outside:
        return Look(model.train(), (x,), {}, random.Random(0)).grown()


@pytest.mark.parametrize("precision", [*HALVES, "float32"])
def test_what_is_rounded_otherwise_in_another_batch_is_not_refused(precision):
    for size in [*range(2, 26), 60]:
        assert grown(one_number(), torch.randn(size, 20, 40), precision) <= 1


@pytest.mark.parametrize("precision", [*HALVES[:3], "float32"])
def test_nor_are_answers_of_which_rounding_is_a_large_part(precision):
    """Differences of numbers that are nearly the same, which float64 still tells apart."""
    for size in [*range(2, 26), 60]:
        assert grown(deep(), torch.randn(size, 20, 40), precision) <= 1


@pytest.mark.parametrize("size", [2, 3, 4, 17, 2000])
@pytest.mark.parametrize("precision", [*HALVES, "float32"])
@pytest.mark.parametrize("power", [1, -1, -0.5])
def test_what_follows_the_size_is_found_in_every_precision_and_at_every_size(
    power, precision, size
):
    assert grown(Follows(power, size), torch.randn(size, 6), precision) > 1


def test_in_half_precision_a_run_whose_data_are_divided_by_the_size_is_refused():
    model = Follows(-1, 30)
    run = noisy_sgd(
        model, learning_rate=0.1, sampler=PoissonSampler(0.5), clip=FlatClip(1.0),
        noise=GaussianNoise(1.0), expected_batch_size=30,
    )  # fmt: skip
    with pytest.raises(ModelNotPrivate, match="has an example more"):
        for x in run.batches(torch.randn(60, 6), steps=3):
            with torch.autocast("cpu", torch.bfloat16):
                each = model(x)
            run.step(each.float().square().sum(1))
    assert run.steps == 0


def test_a_model_that_needs_autocast_is_asked_in_it():
    with torch.autocast("cpu", torch.bfloat16):
        look = Look(Follows(-1, 9), (torch.randn(9, 6).bfloat16(),), {}, random.Random(0))
        assert look.grown() > 1


class Precise(Follows):
    """In float64 the size does not matter to it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.dtype is torch.float64 else super().forward(x)


@pytest.mark.parametrize("usual", [9, 30])
def test_float64_is_believed_only_where_it_gives_what_float32_gave(usual):
    assert grown(Precise(-1, usual), torch.randn(9, 6)) > 1


class Narrow(Follows):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 10:
            raise ValueError("not more than 10 rows")
        return super().forward(x)


def test_a_model_that_takes_only_one_example_more_is_asked_with_one():
    assert grown(Narrow(-1, 9), torch.randn(9, 6)) > 1
