"""Small private runs for tests of training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, PrivateRun

# Two test processes share two cores: more threads only wait for each other.
torch.set_num_threads(1)


def each_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One loss for each example."""
    return cross_entropy(model(x), y, reduction="none")


def weights_of(model: nn.Module) -> Tensor:
    """All weights in one vector, copied."""
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def make_model() -> Any:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))

    return build


@pytest.fixture
def make_run(make_model: Any, data: Any) -> Any:
    """A private run of a small model; every part can be replaced by keyword."""

    def build(
        model: nn.Module | None = None, *, records: Any = None, loss: Any = each_loss, **parts: Any
    ) -> PrivateRun:
        model = make_model() if model is None else model
        rule = parts.pop("rule", lambda p: torch.optim.SGD(p, lr=0.5))
        settings: dict[str, Any] = {
            "sampler": PoissonSampler(0.2),
            "clip": FlatClip(1.0),
            "noise": GaussianNoise(1.0),
            "expected_batch_size": 12,
            "steps": 1_000,
        }
        trainable = [p for p in model.parameters() if p.requires_grad]
        records = data if records is None else records
        return PrivateRun(model, rule(trainable), records, loss, **(settings | parts))

    return build


@pytest.fixture
def take() -> Any:
    """Take so many steps."""

    def go(run: PrivateRun, steps: int) -> list[Any]:
        return [run.take_step() for _ in range(steps)]

    return go
