"""Small private runs to attack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, PrivateOptimizer

# Two test processes share two cores: more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture
def small_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def small_run() -> Any:
    """A private run of a small model; every part can be replaced by keyword."""

    def build(*, learning_rate: float = 0.5, **parts: Any) -> PrivateOptimizer:
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        settings: dict[str, Any] = {
            "sampler": PoissonSampler(0.2),
            "clip": FlatClip(1.0),
            "noise": GaussianNoise(1.0),
            "expected_batch_size": 12,
        }
        rule = torch.optim.SGD(model.parameters(), lr=learning_rate)
        return PrivateOptimizer(model, rule, **(settings | parts))

    return build


@pytest.fixture
def take_steps() -> Any:
    def go(run: PrivateOptimizer, data: Any, steps: int) -> None:
        for x, y in run.batches(data, steps=steps):
            run.step(cross_entropy(run.model(x), y, reduction="none"))

    return go
