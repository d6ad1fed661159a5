"""Hole A1 on a GPU: tf32 and bfloat16 kernels under data made to break their sums.

What one record contributes, as the kernels compute it, is at most the clip norm; and taking it away
moves the sum by at most (1 + rho) times that, for the rho that is charged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, PrivateOptimizer, noisy_sgd
from tightrope.train.arithmetic import bounded
from tightrope.train.gradients import ClippedBatch, Gradients
from tightrope.train.padded import PaddedBatch, Program

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
CLIP = 0.5
SIZES = {"one": 24, "many": 600}


class Mean(nn.Module):
    """Over all but the first dimension, with weights that keep the positions apart."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat @ torch.linspace(-1, 1, flat.shape[1], device=x.device, dtype=flat.dtype)


def linear(positions: int, d: int, p: int) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(d, p), nn.LeakyReLU(), Mean()), (positions, d)


def convolution(channels: int, p: int, side: int, **how: int) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Conv2d(channels, p, 3, **how), nn.LeakyReLU(), Mean()), (
        channels,
        side,
        side,
    )


def vectors() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(40, 30), nn.LeakyReLU(), nn.Linear(30, 1), Mean()), (40,)


def norm() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.LeakyReLU(), Mean()), (5, 24)


MODELS = {
    "vectors": vectors,
    "one vector beside positions": lambda: linear(1, 33, 65),
    "one input": lambda: linear(20, 1, 40),
    "one output": lambda: linear(20, 40, 1),
    "few positions": lambda: linear(7, 130, 70),
    "as many positions as examples": lambda: linear(24, 200, 64),
    "many positions": lambda: linear(200, 64, 48),
    "small convolution": lambda: convolution(3, 8, 9, stride=2),
    "convolution": lambda: convolution(16, 40, 14, padding=1),
    "depthwise": lambda: convolution(16, 16, 10, groups=16),
    "norm": norm,
}


def data(kind: str, count: int, shape: tuple[int, ...]) -> Tensor:
    """One example is the attack, the others keep it company."""
    torch.manual_seed(len(kind) + count)
    x = torch.randn(count, *shape, device=DEVICE)
    if kind == "huge beside tiny":
        x *= 1e-6
        x[count // 2] *= 1e14
    elif kind == "cancelling":  # positions and pairs of examples that nearly add to 0
        x[1::2] = -x[: 2 * (count // 2) : 2] * (1 + 2.0**-12)
        if len(shape) > 1:
            x = (
                torch.cat([x[:, : shape[0] // 2], -x[:, : (shape[0] + 1) // 2]], 1)
                if shape[0] > 1
                else x
            )
    elif kind == "denormal":
        x *= 1e-40
    elif kind == "powers of two":  # where the rounding of a running sum changes
        x = x.sign() * 2.0 ** torch.arange(count, device=DEVICE).view(
            -1, *(1,) * len(shape)
        ).remainder(30)
    return x


@pytest.fixture(params=["tf32", "bfloat16", "float32"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if request.param == "tf32" else "highest")
    yield request.param
    torch.set_float32_matmul_precision(before)


class Summed:
    """Clipped sums of rows of x, added as a run with batches of len(x) adds them.

    In half precision always in batches of one shape, as a run insists.
    """

    def __init__(self, model: nn.Module, x: Tensor, precision: str) -> None:
        self.model, self.x, self.half = model, x, precision == "bfloat16"
        self.engine, self.arithmetic = Gradients(model), bounded(len(x), DEVICE)

    def __call__(self, rows: Tensor) -> Tensor:
        if self.half:
            program = Program(self.padded, PaddedBatch((self.x[rows],), len(self.x)))
            batch, _ = program.run((self.x[rows],))
        else:
            batch, _ = self.clipped((self.x[rows],))
        return torch.cat([total.double().flatten() for total in batch.sums])

    def padded(self, values: tuple[Tensor], present: Tensor) -> tuple[ClippedBatch, Tensor]:
        return self.clipped(values, present=present)

    def clipped(self, values: tuple[Tensor], **how: Tensor) -> tuple[ClippedBatch, Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.half):
            losses = self.model(values[0]).float().reshape(-1)
        chain = self.arithmetic.chain(len(losses), 1)
        return self.engine.clipped_sum(losses, FlatClip(CLIP), chain=chain, **how), losses

    @property
    def charged(self) -> float:
        return self.arithmetic.charged(CLIP)


def reference(model: nn.Module, x: Tensor, precision: str) -> Tensor:
    """The clipped gradient of one example, in the same precision, by autograd alone."""
    with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bfloat16"):
        loss = model(x[None]).float().sum()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    flat = torch.cat([g.double().flatten() for g in grads])
    return flat * min(1.0, CLIP / max(float(flat.norm()), CLIP))


@pytest.mark.parametrize("count", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    "kind", ["plain", "huge beside tiny", "cancelling", "denormal", "powers of two"]
)
@pytest.mark.parametrize("name", MODELS)
def test_one_record_moves_the_sums_of_the_kernels_by_what_is_charged(name, kind, count, precision):
    model, shape = MODELS[name]()
    model = model.to(DEVICE).train()
    x = data(kind, count, shape)
    expected = reference(model, x[count // 2], precision)  # before hooks
    summed = Summed(model, x, precision)
    everybody = torch.arange(count, device=DEVICE)
    whole = summed(everybody)
    for number in (0, count // 2, count - 1):
        alone = summed(everybody[number : number + 1])
        assert float(alone.norm()) <= CLIP * (1 + 2.0**-20)
        moved = whole - summed(everybody[everybody != number])
        assert float(moved.norm()) <= summed.charged * (1 + 1e-12)
        if kind == "plain" and number == count // 2:
            tolerance = {"float32": 1e-3, "tf32": 0.02, "bfloat16": 0.1}[precision]
            assert float((alone - expected).norm()) <= tolerance * CLIP
            assert float((moved - expected).norm()) <= tolerance * CLIP
    everyone_else = everybody[torch.randperm(count, device=DEVICE)]
    assert float((whole - summed(everyone_else)).norm()) <= summed.charged - CLIP + 1e-12
    assert math.isfinite(float(whole.norm()))


def made_run(model: nn.Module, arithmetic: str = "bounded") -> PrivateOptimizer:
    return noisy_sgd(
        model, learning_rate=0.1, sampler=PoissonSampler(0.5), clip=FlatClip(CLIP),
        noise=GaussianNoise(1.0), expected_batch_size=30, arithmetic=arithmetic,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "arithmetic"), [("eager", "bounded"), ("eager", "uncovered"), ("capture", "bounded")]
)
def test_half_precision_takes_batches_of_one_shape_or_says_that_nothing_is_covered(how, arithmetic):
    """One output, 600 rows or 599: removing one record moved the sums by 1.25 clip norms."""
    model = MODELS["one output"]()[0].to(DEVICE).train()
    run = made_run(model, arithmetic)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            return model(x).float().reshape(-1) * y

    step = run.capture(losses) if how == "capture" else lambda *batch: run.step(losses(*batch))
    refused = how == "eager" and arithmetic == "bounded"
    with pytest.raises(InvalidInput, match="half precision") if refused else nullcontext():
        x, y = torch.randn(60, 20, 40, device=DEVICE), torch.ones(60, device=DEVICE)
        for batch in run.batches((x, y), steps=3):
            step(*batch)
    assert run.steps == (0 if refused else 3)
